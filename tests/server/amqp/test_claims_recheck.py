"""E5: after a change of keys, the grants of all connections are checked in small parts, and in time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from pairbus.broker import Right
from pairbus.server.access import Grant
from pairbus.server.amqp.claims_recheck import LAST_DUE_S, PASS_COST, REVOCATION_COST, ClaimsRecheck, Holds
from pairbus.server.amqp.node import Claims
from pairbus.store import StoreError

CONNECTIONS: Final = 5_000
PROMISE_S: Final = 5.0


class Loop:
    """An event loop whose passes and time are the test's."""

    def __init__(self, pass_s: float = 0.001) -> None:
        self.now_s = 1_000.0
        self.planned: list[tuple[float, Callable[[], object]]] = []
        self._pass_s = pass_s

    def call_later(self, pause_s: float, work: Callable[[], object]) -> None:
        self.planned.append((self.now_s + pause_s, work))

    def time(self) -> float:
        return self.now_s

    def run_pass(self) -> None:
        self.now_s += self._pass_s
        due = [work for at_s, work in self.planned if at_s <= self.now_s]
        self.planned = [each for each in self.planned if each[0] > self.now_s]
        for work in due:
            work()


class Peer:
    """A connection with the tokens of one key."""

    def __init__(self, key: str = "kept", tokens: int = 1) -> None:
        self.claims = Claims()
        for number in range(tokens):
            self.claims.put(f"queue{number}", Grant(f"queue{number}", frozenset([Right.SEND]), who=key, key=key))
        self.checked = self.revoked = 0
        self.has_failed = False

    def recheck_claims(self, holds: Holds) -> Generator[int, None, None]:
        held = 0
        for _, grant in self.claims.grants():
            self.checked += 1
            held += holds(grant)
            yield 1
        if held < len(self.claims):
            self.revoked += 1
            yield REVOCATION_COST

    def fail(self) -> None:
        self.has_failed = True


def is_kept(grant: Grant) -> bool:
    return grant.key == "kept"


def recheck_of(loop: Loop, peers: list[Peer], holds: Holds = is_kept) -> ClaimsRecheck:
    return ClaimsRecheck(dict.fromkeys(peers), holds, loop.call_later, loop.time)


def costs_of_passes(recheck: ClaimsRecheck, loop: Loop, peers: list[Peer]) -> list[int]:
    """Check all; return the cost of each pass."""

    def total() -> int:
        return sum(peer.checked + REVOCATION_COST * peer.revoked for peer in peers)

    costs, before = [], total()
    recheck.start()
    while True:
        costs.append(total() - before)
        before = total()
        if not recheck:
            return costs
        loop.run_pass()


def test_e5_no_pass_checks_more_grants_of_one_connection_than_its_share() -> None:
    loop, peers = Loop(), [Peer(tokens=9_000)]
    costs = costs_of_passes(recheck_of(loop, peers), loop, peers)
    assert max(costs) <= PASS_COST
    assert sum(costs) == 9_000
    assert not loop.planned


def test_e5_five_thousand_revoked_connections_are_ended_in_passes_of_a_bounded_share_and_in_time() -> None:
    loop, peers = Loop(), [Peer("revoked") for _ in range(CONNECTIONS)]
    costs = costs_of_passes(recheck_of(loop, peers), loop, peers)
    assert max(costs) <= PASS_COST + REVOCATION_COST
    assert all(peer.revoked == 1 for peer in peers)
    assert loop.now_s - 1_000 < PROMISE_S


def test_e5_long_passes_of_a_busy_loop_do_not_delay_the_end_of_revoked_connections() -> None:
    loop, peers = Loop(pass_s=0.5), [Peer("revoked") for _ in range(CONNECTIONS)]
    costs = costs_of_passes(recheck_of(loop, peers), loop, peers)
    assert all(peer.revoked == 1 for peer in peers)
    assert loop.now_s - 1_000 <= LAST_DUE_S + 0.5 < PROMISE_S
    assert max(costs) < 0.5 * sum(costs), "they are spread over the time that there is"


def test_e5_changes_in_close_succession_do_not_postpone_the_connections_that_wait() -> None:
    loop, peers = Loop(pass_s=0.1), [Peer("kept", 2_000), *(Peer("revoked") for _ in range(1_000))]
    recheck = recheck_of(loop, peers)
    for _ in range(int((LAST_DUE_S + 0.2) / 0.1)):
        recheck.start()
        loop.run_pass()
    assert all(peer.revoked for peer in peers[1:])


def test_e5_change_during_a_check_checks_all_again() -> None:
    loop, keys = Loop(), {"kept", "later"}
    peers = [Peer("later"), Peer("kept", 2_000)]
    recheck = recheck_of(loop, peers, lambda grant: grant.key in keys)
    recheck.start()
    assert (peers[0].checked, peers[0].revoked, len(recheck)) == (1, 0, 1)
    keys.remove("later")
    recheck.start()
    while recheck:
        loop.run_pass()
    assert (peers[0].checked, peers[0].revoked) == (2, 1)


def test_keys_are_looked_up_once_for_all_grants_that_they_gave() -> None:
    loop, asked = Loop(), []
    peers = [Peer(tokens=100) for _ in range(100)]

    def holds(grant: Grant) -> bool:
        asked.append(grant)
        return True

    recheck = recheck_of(loop, peers, holds)
    for expected in (1, 2):
        costs_of_passes(recheck, loop, peers)
        assert len(asked) == expected, "again after each change"


def test_e5_grants_are_checked_once_the_store_can_be_read_again() -> None:
    loop, peers, failures = Loop(), [Peer("revoked")], [StoreError("closed"), StoreError("closed")]

    def holds(_grant: Grant) -> bool:
        if failures:
            raise failures.pop()
        return False

    recheck = recheck_of(loop, peers, holds)
    recheck.start()
    for _ in range(2_000):
        loop.run_pass()
    assert peers[0].revoked == 1
    assert not recheck


def test_e5_connection_whose_grants_cannot_be_checked_is_ended_and_the_others_are_checked() -> None:
    loop, peers = Loop(), [Peer("broken"), Peer("revoked")]

    def holds(grant: Grant) -> bool:
        if grant.key == "broken":
            raise ValueError("a defect")
        return False

    recheck_of(loop, peers, holds).start()
    assert (peers[0].has_failed, peers[1].revoked) == (True, 1)


def test_closed_connection_is_not_checked() -> None:
    loop, open_peers = Loop(), dict.fromkeys([Peer(tokens=PASS_COST), Peer("revoked")])
    recheck = ClaimsRecheck(open_peers, is_kept, loop.call_later, loop.time)
    recheck.start()
    closed = [*open_peers][1]
    del open_peers[closed]
    loop.run_pass()
    assert (len(recheck), closed.checked) == (0, 0)


def test_e5_outcome_for_one_signing_key_is_not_that_for_another() -> None:
    loop, peers = Loop(), [Peer(tokens=0) for _ in range(2)]
    for peer, signer in zip(peers, ("kept", "removed"), strict=True):
        peer.claims.put("", Grant("", frozenset([Right.SEND]), who="app", signer=signer))
    recheck_of(loop, peers, lambda grant: grant.signer == "kept").start()
    assert [peer.revoked for peer in peers] == [0, 1]
