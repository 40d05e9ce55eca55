"""The broker compared with a naive model, through every operation, in virtual time, with restarts and failing commits.

``PAIRBUS_MODEL_RUNS`` is the total number of runs; ``PAIRBUS_MODEL_OUTCOMES=1`` prints how often each operation had
which outcome.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from itertools import count
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pairbus.broker import SettlementKind, SettlementRequest
from pairbus.broker.descriptions import (
    EntityDescription,
    EntityRecord,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    Value,
)
from pairbus.broker.entity import EntityInfo
from pairbus.broker.errors import BrokerError
from pairbus.broker.limits import RELAXED, Limits
from pairbus.broker.message import Address, DeliveredMessage, NewMessage, QueueId, QueuePart, Record
from pairbus.broker.namespace import Namespace, SessionGrant
from pairbus.broker.ports import Records
from pairbus.broker.rules import Rule
from pairbus.broker.transaction import SendOperation, SettleOperation, TransactionOperation
from pairbus.store import MemoryStore, StoreError, StoreFailedError, keys
from pairbus.store.group_committer import GroupCommitter
from tests.broker.model import (
    ACTIONS,
    FILTERS,
    Box,
    Clues,
    Entity,
    Facts,
    Inside,
    Letter,
    Model,
    Write,
    encode,
    facts_in,
    facts_of,
)
from tests.thoroughness import THOROUGH

T = TypeVar("T")

RUNS: Final = int(os.environ.get("PAIRBUS_MODEL_RUNS") or (2_000 if THOROUGH else 200))
OUTCOMES: Final[Counter[str]] = Counter()
START: Final = 1_000_000
BIG: Final = 300_000
"""Three such messages fill an entity of one megabyte."""

LIMITS: Final = replace(
    RELAXED,
    message_bytes=400_000,
    batch_bytes=500_000,
    header_bytes=1_000,
    id_characters=20,
    partitions=3,
    messages_per_transaction=6,
    messages_per_delete=5,
    sql_filters_per_topic=4,
    correlation_filters_per_topic=2,
)
FEW_IDS: Final = 1
UNKNOWN_TOKEN: Final = b"a token that was never given"
TOO_LONG: Final = b"x" * 400_001
NOWHERE: Final = "nowhere"


class Spy:
    """The write batch, with a record of its calls: see ``Clues``."""

    def __init__(self, records: Records, writes: list[Write]) -> None:
        self._records = records
        self._writes = writes
        for name in dir(Records):
            if not name.startswith("_") and name not in vars(Spy):
                setattr(self, name, getattr(records, name))

    def put_record(self, place: QueueId, record: Record) -> None:
        self._writes.append(("record", place.entity_id, place.part, record.sequence))
        self._records.put_record(place, record)

    def remove_record(self, place: QueueId, sequence: int) -> None:
        self._writes.append(("record", place.entity_id, place.part, sequence))
        self._records.remove_record(place, sequence)

    def put_last_sequence(self, place: QueueId, partition: int, sequence: int) -> None:
        self._writes.append(("number", place.entity_id, place.part, sequence))
        self._records.put_last_sequence(place, partition, sequence)

    def remove_duplicate(self, entity_id: int, key: str) -> None:
        self._writes.append(("seen", entity_id, 0, key))
        self._records.remove_duplicate(entity_id, key)

    def put_entity(self, entity: EntityRecord) -> None:
        self._writes.append(("entity", entity.entity_id, 0, 0))
        self._records.put_entity(entity)

    def remove_entity(self, entity_id: int) -> None:
        self._writes.append(("gone", entity_id, 0, 0))
        self._records.remove_entity(entity_id)


class RuleChoice(NamedTuple):
    """A rule by its indexes in the tables of the model."""

    name: str
    filter: int
    action: int | None

    @property
    def description(self) -> RuleDescription:
        action = None if self.action is None else ACTIONS[self.action][0]
        return RuleDescription(name=self.name, filter=FILTERS[self.filter][0], action=action)


# Choices: a few bytes stand for many small choices, because each draw costs time

CHOICES: Final = st.binary(min_size=9, max_size=9)
FEW_CHOICES: Final = st.binary(min_size=4, max_size=4)
INDEX: Final = st.integers(0, 11)


class Picker:
    """Derives choices from bytes. Zeros give the first of every choice."""

    def __init__(self, choices: bytes) -> None:
        self._number = int.from_bytes(choices, "little")

    def of(self, choices: Sequence[T]) -> T:
        self._number, at = divmod(self._number, len(choices))
        return choices[at]

    def one_in(self, times: int) -> bool:
        self._number, at = divmod(self._number, times)
        return at == times - 1


def at(items: Sequence[T], index: int) -> T:
    return items[index % len(items)]


ACTIVE: Final = EntityStatus.ACTIVE
STATUSES: Final = (
    *(ACTIVE,) * 17,
    EntityStatus.DISABLED,
    EntityStatus.SEND_DISABLED,
    EntityStatus.RECEIVE_DISABLED,
)
DISPOSITIONS: Final = tuple(SettlementKind)
IDLE_CHOICES: Final = (*(None,) * 6, 30_000, 300_000)
PARTS: Final = st.sampled_from((QueuePart.MAIN, QueuePart.MAIN, QueuePart.DEAD_LETTER, QueuePart.TRANSFER_DEAD_LETTER))
WAITS: Final = (0, 1, 400, 1_000, 1_000, 3_000, 5_000, 10_000, 20_000, 61_000, 400_000)


class Bench(RuleBasedStateMachine):
    """Executes every operation on the broker and on the model, and compares."""

    queues: ClassVar[tuple[str, ...]] = ()
    topics: ClassVar[tuple[str, ...]] = ()
    subscriptions: ClassVar[tuple[str, ...]] = ("Sub1", "Sub2")
    session_choices: ClassVar[tuple[bool, ...]] = (False,)
    forwards: ClassVar[bool] = False
    partitioned_choices: ClassVar[tuple[bool, ...]] = (False, False, False, True)
    duplicate_choices: ClassVar[tuple[bool, ...]] = (False, False, True)
    limits: ClassVar[Limits] = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.store = MemoryStore()
        self.writes: list[Write] = []
        self.serial = count(1)
        self.keeper = GroupCommitter(self.store, self._make, self.now)
        self.model = Model(self.limits, self.now)
        self.locks: list[tuple[Address, bytes]] = []
        self.grants: list[tuple[Address, bytes]] = []
        self.asleep = False
        """True if time has passed that the broker has not seen yet."""
        self.receivable = self.model.receivable()
        self.all_touched = True
        self.is_sound = False
        """True if no difference was found so far."""
        self.is_heavy = False
        """True if large messages are common."""

    def _make(self, records: Records) -> Namespace:
        self.spy = cast(Records, Spy(records, self.writes))
        return Namespace(
            self.spy,
            limits=self.limits,
            view=Inside,
            fresh_id=lambda: UUID(int=next(self.serial)),
            fresh_token=lambda: b"token %d" % next(self.serial),
        )

    # Both sides

    def both(self, name: str, *args: object, **options: object) -> Any:
        """Execute one operation on both sides; return the broker's result, or ``None`` if both refuse."""
        note(f"{self.now}: {name} {_brief((*args, options))}")
        self.asleep = self.is_sound = False
        answer, error = self._real(name, args, options)
        self._look(answer, error)
        expected, refusal = self._expected(name, args, options)
        OUTCOMES[f"{name}: {_outcome(answer, error)}"] += 1
        assert type(error) is type(refusal), f"{name}: the broker says {error!r}, the model {refusal!r}"
        seen = _comparable(answer)
        assert seen == expected, f"{name}: {_differences(seen, expected)}"
        self.is_sound = True
        return answer

    def _real(self, name: str, args: tuple[object, ...], options: dict[str, object]) -> tuple[Any, BrokerError | None]:
        operation: Callable[..., Any] = getattr(self.keeper.use_namespace(), name)
        real_args = [arg.description if isinstance(arg, RuleChoice) else arg for arg in args]
        real_options = {
            key: value.description if isinstance(value, RuleChoice) else value for key, value in options.items()
        }
        try:
            return operation(*real_args, now_ms=self.now, **real_options), None
        except BrokerError as error:
            return None, error

    def _expected(
        self, name: str, args: tuple[object, ...], options: dict[str, object]
    ) -> tuple[Any, BrokerError | None]:
        operation: Callable[..., Any] = getattr(self.model, name)
        try:
            return operation(*args, now_ms=self.now, **options), None
        except BrokerError as error:
            return None, error

    def _look(self, answer: object = None, error: BrokerError | None = None) -> None:
        """Pass the broker's choices to the model, where the specification leaves them open."""
        self.touched = {QueueId(write[1], write[2]) for write in self.writes if write[0] == "record"}
        self.model.touched |= self.touched
        self.model.clues = Clues(self.writes)
        self.writes.clear()
        self.model.answer, self.model.error = answer, error

    # After every step

    @invariant()
    def agree(self) -> None:
        if self.asleep:
            return
        self.is_sound = False
        namespace = self.keeper.use_namespace()
        namespace.advance(self.now)
        self._look()
        self.model.advance(self.now)
        self._agree_on_news(namespace)
        self._agree_on_entities(namespace)
        self._agree_on_contents()
        self._agree_on_time(namespace)
        assert [fault for fault in namespace.audit().everything() if fault is not None] == []
        self.is_sound = True

    def _agree_on_news(self, namespace: Namespace) -> None:
        woken = set(namespace.take_woken())
        before, self.receivable = self.receivable, self.model.receivable()
        for address, ready in self.receivable.items():
            news = ready - before.get(address, set())
            assert not news or address in woken, f"nobody was woken at {address} for {news}"
        notices = sorted(namespace.take_notices(), key=repr)
        expected = sorted(self.model.notices, key=repr)
        self.model.notices.clear()
        assert notices == expected, f"notices: {notices}, expected {expected}"

    def _agree_on_entities(self, namespace: Namespace) -> None:
        expected = self.model.infos()
        found = {Address.of(info.path): info for info in (*namespace.queues(self.now), *namespace.topics(self.now))}
        for topic in namespace.topics(self.now):
            for info in namespace.subscriptions(topic.path, self.now):
                found[Address.of(topic.path, info.path)] = info
        assert found.keys() == expected.keys()
        for address, info in found.items():
            assert info == expected[address], f"{address}: {_differences(info, expected[address])}"
        for entity in self.model.everyone():
            if entity.topic is not None:
                rules = [(rule.description, rule.created_ms) for rule in entity.rules]
                real = namespace.rules(entity.topic.path, entity.path, self.now)
                assert [(rule.description, rule.created_ms) for rule in real] == rules
            if entity.has_sessions:
                self._agree_on_sessions(namespace, entity)

    def _agree_on_sessions(self, namespace: Namespace, entity: Entity) -> None:
        assert namespace.sessions(entity.address, self.now) == entity.session_names()
        with_state = sorted(name for name, session in entity.sessions.items() if session.state is not None)
        assert namespace.sessions(entity.address, self.now, 0) == with_state
        for session in entity.sessions.values():
            if session.token is not None:
                assert namespace.session_state(entity.address, session.token, self.now) == session.state

    def _agree_on_contents(self) -> None:
        """Compare the contents by what was written instead of by peeking, which is a use of an entity. The counts are
        complete.
        """
        for box in self.model.boxes():
            if self.all_touched or box.place in self.model.touched:
                expected = [facts_of(letter) for letter in box.in_order()]
                found = [self._written(box, letter.sequence) for letter in box.in_order()]
                assert found == expected, f"{box.address}: {_differences(found, expected)}"
        self.model.touched.clear()
        self.all_touched = False

    def _written(self, box: Box, sequence: int) -> Facts | None:
        record = self.spy.record(box.place, sequence)
        body = None if record is None else self.spy.body(record.body_id)
        return None if record is None or body is None else facts_in(DeliveredMessage(record, body))

    def _agree_on_time(self, namespace: Namespace) -> None:
        planned = namespace.next_due_ms()
        expected = self.model.next_due_ms(with_ids=self.limits.duplicate_ids_in_memory > FEW_IDS)
        assert planned is None or planned > self.now, f"{planned} is past and still due"
        if expected is not None:
            assert planned is not None
            assert planned <= expected, f"something is due at {expected}; the broker would sleep until {planned}"

    # Available choices

    def destinations(self) -> list[Address]:
        return [entity.address for entity in self.model.entities.values()] or [Address.of(NOWHERE)]

    def holders(self) -> list[Address]:
        found = [entity.address for entity in self.model.everyone() if not entity.is_topic]
        return found or [Address.of(NOWHERE)]

    def everything(self) -> list[Address]:
        return [entity.address for entity in self.model.everyone()] or [Address.of(NOWHERE)]

    def live_locks(self) -> list[tuple[Address, bytes]]:
        return [
            (box.address, letter.token)
            for box in self.model.boxes()
            for letter in box.letters
            if letter.token is not None
        ]

    def live_grants(self) -> list[tuple[Address, bytes]]:
        return [
            (entity.address, session.token)
            for entity in self.model.everyone()
            for session in entity.sessions.values()
            if session.token is not None
        ]

    def lock(self, index: int, luck: int) -> tuple[Address, bytes]:
        """Return a lock: mostly a valid one, else an expired one, an unknown one or one of another queue."""
        return self._handle(self.live_locks(), self.locks, index, luck)

    def grant(self, index: int, luck: int) -> tuple[Address, bytes]:
        return self._handle(self.live_grants(), self.grants, index, luck)

    def _handle(
        self, live: list[tuple[Address, bytes]], given: list[tuple[Address, bytes]], index: int, luck: int
    ) -> tuple[Address, bytes]:
        if live and luck < 9:
            return at(live, index)
        if given and luck < 10:
            return at(given, -1 - index)
        token = at(given, index)[1] if given and luck < 11 else UNKNOWN_TOKEN
        return at(self.holders(), index), token

    def token_for(self, address: Address, index: int) -> bytes | None:
        """Return the token needed to receive there: a session's, if sessions are required."""
        tokens = [token for place, token in self.live_grants() if place == address]
        return at(tokens, index) if tokens else None

    def needs_session(self, address: Address) -> bool:
        return any(entity.has_sessions and entity.address == address for entity in self.model.everyone())

    def is_holder(self, address: Address) -> bool:
        return address._replace(part=QueuePart.MAIN) in self.holders()

    def keep(self, address: Address, deliveries: list[DeliveredMessage] | None) -> None:
        self.locks += [(address, found.lock_token) for found in deliveries or () if found.lock_token is not None]

    def letters(self, address: Address, wanted: Callable[[Letter], bool]) -> list[int]:
        return [
            letter.sequence
            for box in self.model.boxes()
            if box.address == address
            for letter in box.in_order()
            if wanted(letter)
        ]

    # Messages and descriptions

    def message(self, choices: bytes, address: Address) -> NewMessage:
        pick = Picker(choices)
        is_odd = pick.one_in(12)
        message_id = pick.of(("m1", "m2", "m3", f"u{next(self.serial)}", "m1", "m2", ""))
        session_id = pick.of((None, "s1", "s2", "s3"))
        entity = self.model.entities.get(address.entity)
        if session_id is None and entity is not None and entity.has_sessions and not is_odd:
            session_id = "s1"
        partition_key = pick.of((None, None, session_id or "k1", session_id or "k2"))
        time_to_live_ms = pick.of((*(None,) * 6, 400, 5_000, 60_000, 0))
        scheduled_ms = pick.of((*(None,) * 6, self.now + 1_000, self.now + 20_000, self.now))
        user: dict[str, Value] = {}
        if color := pick.of(("red", None, "green")):
            user[pick.of(("color", "Color"))] = color
        size = pick.of((2, None, 0, 2.5))
        if size is not None:
            user["size"] = size
        system: dict[str, Value] = {"Label": label} if (label := pick.of(("a", None))) else {}
        padding = BIG if pick.one_in(12) or (self.is_heavy and not pick.one_in(4)) else 0
        message = NewMessage(
            encode(user, system, next(self.serial), padding),
            message_id,
            session_id,
            partition_key,
            time_to_live_ms,
            scheduled_ms,
        )
        return _odd(message, pick) if is_odd else message

    def queue_description(self, choices: bytes, path: str) -> QueueDescription:
        pick = Picker(choices)
        has_sessions = pick.of(self.session_choices)
        return QueueDescription(
            lock_duration_ms=pick.of((5_000, 1_000, 60_000)),
            max_size_megabytes=1,
            max_delivery_count=pick.of((2, 1, 3, 10)),
            requires_session=has_sessions,
            forward_to=self._target(pick, path),
            forward_dead_letters_to=self._target(pick, path),
            dead_letter_on_expiration=pick.of((True, False)),
            default_time_to_live_ms=pick.of((None, None, 3_000, 20_000)),
            requires_duplicate_detection=pick.of(self.duplicate_choices),
            duplicate_window_ms=pick.of((10_000, 60_000)),
            partitioned=pick.of(self.partitioned_choices),
            status=pick.of(STATUSES),
            max_message_bytes=pick.of((None, None, None, 1_000)),
            auto_delete_on_idle_ms=pick.of(IDLE_CHOICES),
        )

    def topic_description(self, choices: bytes) -> TopicDescription:
        pick = Picker(choices)
        return TopicDescription(
            max_size_megabytes=1,
            default_time_to_live_ms=pick.of((None, None, 3_000, 20_000)),
            requires_duplicate_detection=pick.of(self.duplicate_choices),
            duplicate_window_ms=pick.of((10_000, 60_000)),
            partitioned=pick.of(self.partitioned_choices),
            status=pick.of(STATUSES),
            max_message_bytes=pick.of((None, None, None, 1_000)),
            auto_delete_on_idle_ms=pick.of(IDLE_CHOICES),
        )

    def subscription_description(self, choices: bytes, topic: str) -> SubscriptionDescription:
        pick = Picker(choices)
        has_sessions = pick.of(self.session_choices)
        return SubscriptionDescription(
            lock_duration_ms=pick.of((5_000, 1_000, 60_000)),
            max_delivery_count=pick.of((2, 1, 3, 10)),
            requires_session=has_sessions,
            forward_to=self._target(pick, topic),
            forward_dead_letters_to=self._target(pick, topic),
            dead_letter_on_expiration=pick.of((True, False)),
            dead_letter_on_filter_errors=pick.of((True, False)),
            default_time_to_live_ms=pick.of((None, None, 3_000, 20_000)),
            status=pick.of(STATUSES),
            auto_delete_on_idle_ms=pick.of(IDLE_CHOICES),
        )

    def _target(self, pick: Picker, path: str) -> str | None:
        """Return a forwarding target: none, another entity in any spelling, rarely itself or a missing one."""
        if not self.forwards:
            return None
        others = [name for name in (*self.queues, *self.topics) if name != path]
        chosen = pick.of((None, *others)) if pick.of((False, True)) else None
        return NOWHERE if pick.one_in(20) else path if pick.one_in(20) else chosen and pick.of((chosen, chosen.lower()))

    def send_to(self, address: Address, many: Sequence[bytes]) -> None:
        self.both("send", address, [self.message(choices, address) for choices in many])

    def change(self, address: Address, **settings: Any) -> None:
        """Change some settings of an entity, and keep the rest."""
        entity = next(
            (found for found in self.model.everyone() if found.address == address._replace(part=QueuePart.MAIN)), None
        )
        if entity is not None and not entity.is_topic:
            self.both("update", entity.address, replace(entity.settings, **settings))

    def rule_choice(self, choices: bytes, name: str) -> RuleChoice:
        pick = Picker(choices)
        action = pick.of((None, None, *range(len(ACTIONS))))
        return RuleChoice(name, pick.of(range(len(FILTERS))), action)

    # Setup

    @initialize(many=st.lists(CHOICES, min_size=12, max_size=12))
    def found(self, many: list[bytes]) -> None:
        rest = iter(many)
        self.is_heavy = many[-1][0] % 3 == 2
        wishes: list[tuple[Address, EntityDescription]] = []
        for path in self.queues:
            queue = self.queue_description(next(rest), path)
            wishes.append((Address.of(path), queue))
            self.both("create_queue", path, replace(queue, forward_to=None, forward_dead_letters_to=None))
        for path in self.topics:
            self.both("create_topic", path, self.topic_description(next(rest)))
            for name in self.subscriptions:
                choices = next(rest)
                subscription = self.subscription_description(choices, path)
                wishes.append((Address.of(path, name), subscription))
                plain = replace(subscription, forward_to=None, forward_dead_letters_to=None)
                choice = self.rule_choice(choices[5:], "$Default") if choices[0] % 2 else None
                self.both("create_subscription", path, name, plain, rule=choice)
        for address, description in wishes:
            if not isinstance(description, TopicDescription) and (
                description.forward_to or description.forward_dead_letters_to
            ):
                self.both("update", address, description)
        self._commit()
        for at_first, choices in enumerate(rest):
            self.send_to(at(self.destinations(), at_first), [choices])

    # Time and durability, in every machine

    @rule(index=st.sampled_from((*range(len(WAITS)), -3, -2, -1, -2, -2)), asleep=st.booleans())
    def wait(self, index: int, asleep: bool) -> None:
        """Advance time: by some amount, or until something is due, give or take a millisecond."""
        due_ms = self.model.next_due_ms()
        if index >= 0 or due_ms is None:
            self.now += WAITS[index]
        else:
            self.now = max(self.now, due_ms + index + 2)
        note(f"{self.now}: {'asleep' if asleep else 'awake'}")
        self.asleep = asleep

    @rule(steps=st.sampled_from((None, 1, 2)))
    def tidy(self, steps: int | None) -> None:
        self.asleep = False
        self.agree()  # time may delete entities, in an unknown number of steps
        sweeps = self.limits.duplicate_ids_in_memory <= FEW_IDS  # these are unknown to the model, too
        if steps is not None and not self.model.has_graves and not sweeps:
            self.both("tidy", steps=steps)
        else:
            self._tidy_up()

    @rule(what=st.integers(0, 9), wait_ms=st.sampled_from((0, 0, 2_000, 70_000)))
    def survive(self, what: int, wait_ms: int) -> None:
        """Commit, restart, crash, or fail to commit."""
        match what:
            case 0 | 1 | 2:
                assert self._commit() == [None]
            case 3 | 4:
                self._restart(wait_ms)
            case 5 | 6:
                self._begin_again(wait_ms, lose=True)
            case 7 | 8:
                self._fail_to_commit(early=what == 7)
            case _:
                self._leave_nothing_behind()

    def _tidy_up(self) -> None:
        note(f"{self.now}: tidy up")
        self.asleep = False
        for _ in range(100):
            if not self.keeper.use_namespace().tidy(self.now):
                break
        else:
            raise AssertionError("tidying up does not end")
        self._look()
        self.model.tidy(self.now)

    def _commit(self) -> list[StoreError | None]:
        """Commit pending writes; return what the callbacks got."""
        note(f"{self.now}: commit")
        reported: list[StoreError | None] = []
        self.keeper.when_durable(reported.append)
        self.keeper.commit(self.now)
        if reported == [None]:
            self.model.commit()
        return reported

    def _restart(self, wait_ms: int) -> None:
        self.agree()
        assert self._commit() == [None]
        self._begin_again(wait_ms, lose=False)

    def _begin_again(self, wait_ms: int, *, lose: bool) -> None:
        self.now += wait_ms
        note(f"{self.now}: {'crash' if lose else 'restart'}")
        OUTCOMES["crash" if lose else "restart"] += 1
        self.writes.clear()
        self.keeper = GroupCommitter(self.store, self._make, self.now)
        assert self.keeper.recovery.damaged == []
        self._rebuilt(lose=lose)

    def _fail_to_commit(self, *, early: bool) -> None:
        error = StoreFailedError("the store in memory", "told so")
        before = self.keeper.use_namespace()
        self.writes.clear()
        (self.store.fail_next_prepare if early else self.store.fail_next_run)(error)
        reported: list[StoreError | None] = []
        self.keeper.when_durable(reported.append)
        with suppress(StoreFailedError):
            self.keeper.commit(self.now)
        OUTCOMES[f"fail_to_commit: {'nothing to lose' if self.keeper.use_namespace() is before else 'lost'}"] += 1
        if self.keeper.use_namespace() is before:  # there was nothing to commit
            assert reported == [None]
            self.store._prepare_error = self.store._run_error = None
            return
        note(f"{self.now}: a commit failed")
        assert reported == [error]
        self._rebuilt(lose=True)

    def _rebuilt(self, *, lose: bool) -> None:
        self.asleep = False
        self._look()
        self.model.restart(self.now, lose=lose)
        self.receivable = self.model.receivable()
        self.all_touched = True

    def teardown(self) -> None:
        if self.is_sound:
            self._leave_nothing_behind()
            self._forget_all_ids()

    def _leave_nothing_behind(self) -> None:
        """Check that after all background work the store holds what the namespace holds and no more."""
        self.asleep = False
        self.agree()
        self._tidy_up()
        self.agree()
        assert self._commit() == [None]
        letters = [letter for box in self.model.boxes() for letter in box.letters]
        assert self._kept(keys.RECORD) == len(letters)
        assert self._kept(keys.BODY) == len({letter.body for letter in letters})
        everyone = self.model.everyone()
        assert self._kept(keys.ENTITY) == len(everyone)
        assert self._kept(keys.RULE) == sum(len(entity.rules) for entity in everyone)
        ids = sum(len(entity.history) for entity in everyone)
        if self.limits.duplicate_ids_in_memory > FEW_IDS:
            assert self._kept(keys.DUPLICATE) == ids
        else:  # those that are only in the store are removed later
            assert self._kept(keys.DUPLICATE) >= ids
            assert self.keeper.use_namespace().duplicate_ids_in_memory <= FEW_IDS
        states = [session.state for entity in everyone for session in entity.sessions.values()]
        assert self._kept(keys.SESSION) == sum(state is not None for state in states)

    def _forget_all_ids(self) -> None:
        """Check that time and background work remove all ids once no window covers them."""
        namespace = self.keeper.use_namespace()
        for _ in range(3):
            self.now += 100_000
            while namespace.tidy(self.now):
                pass
            assert self._commit() == [None]
        assert self._kept(keys.DUPLICATE) == 0
        assert namespace.duplicate_ids_in_memory == 0

    def _kept(self, prefix: bytes) -> int:
        return sum(1 for _ in self.store.scan(prefix, keys.after(prefix)))


class Messaging(Bench):
    """Sends, receives and settlements. If a rule has nothing to work on, it does what comes before it."""

    @rule(to=INDEX, choices=CHOICES)
    def send(self, to: int, choices: bytes) -> None:
        self.send_to(at(self.destinations(), to), [choices])

    @rule(to=INDEX, many=st.lists(CHOICES, min_size=2, max_size=4))
    def send_batch(self, to: int, many: list[bytes]) -> None:
        self.send_to(at(self.destinations(), to), many)

    @rule(to=INDEX, part=PARTS, choices=CHOICES)
    def send_astray(self, to: int, part: QueuePart, choices: bytes) -> None:
        """Send, rarely, to a subscription, a sub-queue, or a missing entity."""
        strange = at((*self.everything(), Address.of(NOWHERE)), to)._replace(part=part)
        self.send_to(strange if to > 7 else at(self.destinations(), to), [choices])

    @rule(where=INDEX, index=INDEX, wrong=INDEX, choices=CHOICES)
    def cancel_scheduled(self, where: int, index: int, wrong: int, choices: bytes) -> None:
        addresses = [address for address in self.destinations() if self.letters(address, _is_scheduled)]
        if not addresses and wrong < 11:
            self.send(where, choices)
            return
        address = at(addresses or self.destinations(), where)
        self.both("cancel_scheduled", address, self._some(self.letters(address, _is_scheduled), index, wrong))

    @rule(where=INDEX, most=st.integers(1, 4), delete=st.sampled_from((False, False, False, True)), choices=CHOICES)
    def receive(self, where: int, most: int, delete: bool, choices: bytes) -> None:
        ready = [address for address, found in self.model.receivable().items() if found]
        if ready:
            self._receive(at(ready, where), most, delete, where)
        else:
            self.send(where, choices)

    @rule(where=INDEX, most=st.integers(1, 4), choices=CHOICES)
    def receive_more(self, where: int, most: int, choices: bytes) -> None:
        self.receive(where, most, False, choices)

    @rule(where=INDEX, part=PARTS, most=st.integers(-1, 2))
    def receive_anywhere(self, where: int, part: QueuePart, most: int) -> None:
        self._receive(at(self.holders(), where)._replace(part=part), most, False, where)

    def _receive(self, address: Address, most: int, delete: bool, index: int) -> None:
        token = self.token_for(address, index)
        if token is None and self.needs_session(address) and index < 11:
            grant = self.both("accept_session", address, None)
            if not isinstance(grant, SessionGrant):
                return
            token = grant.session_token
            self.grants.append((address, token))
        self.keep(address, self.both("receive", address, most, delete=delete, session_token=token))

    @rule(index=INDEX, luck=INDEX, how=st.sampled_from(DISPOSITIONS), choices=CHOICES)
    def settle(self, index: int, luck: int, how: SettlementKind, choices: bytes) -> None:
        if not self.live_locks() and luck < 11:
            self.receive(index, 2, False, choices)
            return
        address, token = self.lock(index, luck)
        self.both("settle", address, token, verdict=_verdict(how, choices))

    @rule(index=INDEX, how=st.sampled_from(DISPOSITIONS), choices=CHOICES)
    def settle_more(self, index: int, how: SettlementKind, choices: bytes) -> None:
        self.settle(index, 0, how, choices)

    @rule(index=INDEX, luck=INDEX, choices=CHOICES)
    def renew_lock(self, index: int, luck: int, choices: bytes) -> None:
        if not self.live_locks() and luck < 11:
            self.receive(index, 2, False, choices)
            return
        address, token = self.lock(index, luck)
        if luck > 6:  # a lock of a minute may be renewed for a second
            self.change(address, lock_duration_ms=at((1_000, 5_000), luck))
        self.both("renew_lock", address, token)

    @rule(where=INDEX, index=INDEX, wrong=INDEX, delete=st.booleans(), choices=CHOICES)
    def receive_deferred(self, where: int, index: int, wrong: int, delete: bool, choices: bytes) -> None:
        addresses = [box.address for box in self.model.boxes() if self.letters(box.address, _is_deferred)]
        if not addresses and wrong < 11:
            self.settle(index, 0, SettlementKind.DEFER, choices)
            return
        address = at(addresses or self.holders(), where)
        token = self.token_for(address, index)
        chosen = self._some(self.letters(address, _is_deferred), index, wrong)
        self.keep(address, self.both("receive_deferred", address, chosen, delete=delete, session_token=token))

    @staticmethod
    def _some(sequences: list[int], index: int, wrong: int) -> list[int]:
        """Return one of these numbers, or two, possibly equal; rarely one that is not among them."""
        chosen = [at(sequences or [index], index + more) for more in range(1 + wrong % 2)]
        return [*chosen, index] if wrong == 10 else chosen

    @rule(where=INDEX, part=PARTS, start=INDEX, most=st.integers(-1, 3), session=st.sampled_from((None, "s1", "s2")))
    def peek(self, where: int, part: QueuePart, start: int, most: int, session: str | None) -> None:
        filled = [box.address for box in self.model.boxes() if box.letters]
        address = at(filled, where) if filled and start < 10 else at(self.everything(), where)._replace(part=part)
        sequences = [0, *self.letters(address, lambda _: True), 1, 2**60]
        self.both("peek", address, at(sequences, start), most, session_id=session)

    @rule(where=INDEX, choices=FEW_CHOICES)
    def delete_messages(self, where: int, choices: bytes) -> None:
        filled = [box.address for box in self.model.boxes() if box.letters and self.is_holder(box.address)]
        address = at(filled or self.holders(), where)
        pick = Picker(choices)
        sequences = self.letters(address, lambda _: True)
        options: dict[str, object] = {}
        if pick.of((True, False)):
            options["session_token"] = self.token_for(address, where)
        if pick.of((False, True)):
            options["from_sequence"] = pick.of((0, *sequences))
        if pick.of((False, True)):
            options["to_sequence"] = pick.of((2**60, *sequences))
        if pick.of((False, True)):
            options["enqueued_before_ms"] = pick.of((self.now, self.now + 1, self.now - 1_000, self.now - 5_000))
        self.both("delete_messages", address, pick.of((2, 1, 10, 0, 10, 10, -1)), **options)

    @rule(members=st.lists(st.tuples(INDEX, INDEX, CHOICES), min_size=1, max_size=4))
    def transact(self, members: list[tuple[int, int, bytes]]) -> None:
        self.both("transact", [self._member(kind, index, choices) for kind, index, choices in members])

    def _member(self, kind: int, index: int, choices: bytes) -> TransactionOperation:
        address = at(self.destinations(), index)
        if kind < 6 and (self.live_locks() or kind == 5):
            place, token = self.lock(index, 11 if kind == 5 and index > 8 else 0)
            return SettleOperation(place, token, _verdict(at(DISPOSITIONS, choices[0]), choices[1:]))
        if kind < 9:
            times = 4 if kind == 8 and index > 8 else 1
            address = at(self.destinations(), index // (8 if self.is_heavy else 4))
            return SendOperation(address, [self.message(choices, address) for _ in range(times)])
        target = Address.of(NOWHERE) if kind == 11 and index > 6 else address
        return SendOperation(target, [self.message(choices, target)], via=at(self.holders(), choices[0]))


class Sessions(Bench):
    """Receivers that accept sessions."""

    @rule(where=INDEX, name=st.sampled_from((None, None, None, "s1", "s2", "s4", "s" * 21)))
    def accept_session(self, where: int, name: str | None) -> None:
        addresses = [entity.address for entity in self.model.everyone() if entity.has_sessions]
        address = at((addresses if where < 11 else None) or self.holders(), where)
        grant = self.both("accept_session", address, name)
        if isinstance(grant, SessionGrant):
            self.grants.append((address, grant.session_token))

    @rule(index=INDEX, luck=INDEX, most=st.integers(1, 3), delete=st.booleans())
    def receive_from_session(self, index: int, luck: int, most: int, delete: bool) -> None:
        if not self.live_grants():
            self.accept_session(index, None)
            return
        address, token = self.grant(index, luck)
        self.keep(address, self.both("receive", address, most, session_token=token, delete=delete and luck % 2 == 0))

    @rule(what=INDEX, index=INDEX, luck=INDEX)
    def keep_session(self, what: int, index: int, luck: int) -> None:
        if not self.live_grants() and luck < 11:
            self.accept_session(index, None)
            return
        address, token = self.grant(index, luck)
        match what % 4:
            case 0:
                self.both("renew_session", address, token)
            case 1 | 2:
                self.both("release_session", address, token)
            case _:
                after = at((None, 0, 1, 5_000), index)
                self.both("sessions", address, updated_after_ms=None if after is None else self.now - after)

    @rule(index=INDEX, luck=INDEX, state=st.sampled_from((b"one", b"two", None, b"", TOO_LONG)))
    def set_session_state(self, index: int, luck: int, state: bytes | None) -> None:
        if not self.live_grants() and luck < 11:
            self.accept_session(index, None)
            return
        address, token = self.grant(index, luck)
        self.both("set_session_state", address, token, state)
        self.both("session_state", address, token)


class Managing(Bench):
    """Creation, update and deletion of entities."""

    @rule(where=INDEX, choices=CHOICES, careless=INDEX)
    def update(self, where: int, choices: bytes, careless: int) -> None:
        address = at(self.everything(), where)
        self.both("update", address, self._new_description(address, choices, careless=careless == 11))

    def _new_description(self, address: Address, choices: bytes, *, careless: bool) -> EntityDescription:
        entity = next((found for found in self.model.everyone() if found.address == address), None)
        before = None if entity is None else entity.description
        match before:
            case SubscriptionDescription():
                new: EntityDescription = self.subscription_description(choices, address.entity)
            case TopicDescription():
                new = self.topic_description(choices)
            case _:
                new = self.queue_description(choices, "" if entity is None else entity.path)
        if careless or before is None:
            return new
        fixed = ("requires_session", "requires_duplicate_detection", "partitioned")
        kept = {name: getattr(before, name) for name in fixed if hasattr(before, name)}
        return replace(new, **kept)

    @rule(what=INDEX, where=INDEX, choices=CHOICES)
    def manage(self, what: int, where: int, choices: bytes) -> None:
        missing = [path for path in self.queues if path.lower() not in self.model.entities]
        if missing and what < 8:
            path = at(missing, where)
            self.both("create_queue", path, self.queue_description(choices, path))
        elif what < 5:
            self.both("delete", at((*self.everything(), Address.of(NOWHERE)), where))
        elif what < 6:
            self.both("create_queue", at(self.queues, where), self.queue_description(choices, ""))
        else:
            self.both("touch", at((*self.everything(), Address.of(NOWHERE)), where))


class Publishing(Bench):
    """Topics and their rules."""

    @rule(where=INDEX, which=INDEX, choices=CHOICES)
    def publish(self, where: int, which: int, choices: bytes) -> None:
        """Create a missing entity; else add another rule."""
        topic, name = at(self.topics, where), at(self.subscriptions, which)
        entity = self.model.entities.get(topic.lower())
        if entity is None or which == 11:
            self.both("create_topic", topic, self.topic_description(choices))
        elif name.lower() not in entity.subscriptions or which == 10:
            choice = self.rule_choice(choices[5:], "$Default") if which % 3 else None
            description = self.subscription_description(choices, topic)
            self.both("create_subscription", topic, name, description, rule=choice)
        else:
            self.change_rules(where, which, choices)

    @rule(where=INDEX, which=INDEX, choices=CHOICES)
    def change_rules(self, where: int, which: int, choices: bytes) -> None:
        topic, subscription = at(self.topics, where), at(self.subscriptions, which)
        pick = Picker(choices)
        what = pick.of(("add_rule", "add_rule", "update_rule", "remove_rule"))
        name = pick.of(("r1", "R2", "r2", "$Default"))
        self.both(what, topic, subscription, name if what == "remove_rule" else self.rule_choice(choices[2:], name))


# The machines


class QueueMachine(Messaging, Managing):
    """Queues only."""

    queues = ("Q1", "q2")


class SessionMachine(Messaging, Sessions, Managing):
    """Queues with sessions."""

    queues = ("Q1", "q2")
    session_choices = (True, True, False)


class ForwardMachine(Messaging, Managing, Publishing):
    """Queues and a topic that forward to each other."""

    queues = ("Q1", "q2", "q3")
    topics = ("T1",)
    session_choices = (False, False, False, True)
    forwards = True


class EverythingMachine(Messaging, Sessions, Managing, Publishing):
    """Everything combined."""

    queues = ("Q1", "q2", "q3")
    topics = ("T1", "t2")
    session_choices = (False, True)
    forwards = True


class SpillingMachine(EverythingMachine):
    """Everything, with hardly any memory for duplicate detection."""

    duplicate_choices = (True, True, True, False)
    limits = replace(LIMITS, duplicate_ids_in_memory=FEW_IDS)


MACHINES: Final = (QueueMachine, SessionMachine, ForwardMachine, EverythingMachine, SpillingMachine)


@pytest.mark.timeout(max(300, RUNS // 5))
@pytest.mark.parametrize("machine", MACHINES)
def test_broker_behaves_like_the_model(machine: type[Bench]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, RUNS // len(MACHINES)),
            stateful_step_count=30,
            deadline=None,
            derandomize=bool(os.environ.get("CI")),  # CI is deterministic; `make model` explores further
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(scope="module", autouse=True)
def _print_outcomes() -> Iterator[None]:
    yield
    if os.environ.get("PAIRBUS_MODEL_OUTCOMES"):
        for outcome, times in sorted(OUTCOMES.items()):
            print(f"{times:8} {outcome}")


def _odd(message: NewMessage, pick: Picker) -> NewMessage:
    """Return a message that is refused, or discarded."""
    return pick.of(
        (
            message._replace(ping=True, session_id=None, partition_key=None),
            message._replace(session_id=None, partition_key=None),
            message._replace(message_id="m" * 21),
            message._replace(time_to_live_ms=-1),
            message._replace(scheduled_ms=-1),
            message._replace(header_bytes=1_001),
            message._replace(session_id="s1", partition_key="k1"),
            message._replace(body=message.body + b"x" * 400_000),
        )
    )


def _verdict(how: SettlementKind, choices: bytes) -> SettlementRequest:
    pick = Picker(choices)
    changes: tuple[dict[str, Value], ...] = (
        {},
        {"color": "green"},
        {"COLOR": None, "tries": 1},
        {"DeadLetterReason": "mine"},
    )
    return SettlementRequest(
        disposition=how,
        properties=pick.of(changes),
        reason=pick.of((None, "because")),
        description=pick.of((None, "of something")),
    )


def _is_scheduled(letter: Letter) -> bool:
    return letter.state.name == "SCHEDULED"


def _is_deferred(letter: Letter) -> bool:
    return letter.state.name == "DEFERRED" and letter.token is None


def _brief(value: object) -> str:
    """Return a short form for messages: without default settings, and without padding."""
    if isinstance(value, NewMessage):
        return _brief({k: v for k, v in value._asdict().items() if v != NewMessage._field_defaults.get(k)})
    if isinstance(value, SendOperation | SettleOperation):
        return f"{type(value).__name__}{_brief(tuple(value))}"
    if isinstance(value, QueueDescription | TopicDescription | SubscriptionDescription):
        plain = type(value)()
        return _brief({f.name: v for f in fields(value) if (v := getattr(value, f.name)) != getattr(plain, f.name)})
    if isinstance(value, Address | SettlementKind):
        return str(value)
    if isinstance(value, bytes):
        return repr(value) if len(value) < BIG else f"{value[:90]!r}...({len(value)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_brief(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)


def _differences(found: object, expected: object) -> str:
    """Return where two results differ, as far as their shapes agree."""
    if isinstance(found, EntityInfo) and isinstance(expected, EntityInfo):
        return _differences(asdict(found), asdict(expected))
    if isinstance(found, Facts) and isinstance(expected, Facts):
        return _differences(found._asdict(), expected._asdict())
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        wrong = {key for key in found if found[key] != expected[key]}
        return "; ".join(f"{key}: {_differences(found[key], expected[key])}" for key in sorted(wrong))
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(n, *pair) for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
        return "; ".join(f"[{n}] {_differences(one, other)}" for n, one, other in pairs)
    return f"the broker has {_brief(found)}, the model {_brief(expected)}"


def _comparable(answer: object) -> object:
    if isinstance(answer, Rule):
        return None
    if isinstance(answer, list) and answer and isinstance(answer[0], DeliveredMessage):
        return [facts_in(delivery) for delivery in answer]
    return answer


def _outcome(answer: object, error: BrokerError | None) -> str:
    if error is not None:
        return type(error).__name__
    return "nothing" if answer is None or answer == [] else "done"
