"""What the keys of a pair allow: told when it is made, and looked at again when it was widened."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import pytest

from pairbus.broker import AuthorizationRule, QueueDescription, Right
from pairbus.client.amqp.authorization import Authorization
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import EntityNotFoundError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.token_provider import SharedAccessKeyTokenProvider, Token, TokenProvider
from pairbus.dialect.management import Operation, Request, Response
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from tests.client.amqp_peer import Peer, scripted, settled
from tests.client.amqp_peer import run as run_peer
from tests.faults.namespace import KEY, VirtualNamespace
from tests.pairing.pumping import Pumping, queues
from tests.pairing.scenes import ORDERS, VISITS, begin, letter, paired, seconds
from tests.simulation.pair_world import PairWorld, run

APP: Final = "app"


# A key that lacks something is told when the pair is made.


def test_c3_a_key_that_may_not_listen_is_raised_where_sessions_are_to_stay_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        _allow(world.secondary, Right.SEND)
        primary, secondary = world.primary_factory(), _factory(world)
        world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
        with pytest.raises(UnauthorizedError, match="Listen") as caught:
            await paired(world, factory=primary, secondary=secondary, preserve_session_order=True)
        assert "messaging_factory" in str(caught.value)
        assert primary.pairing is None
        _allow(world.secondary, Right.SEND, Right.LISTEN)
        scene = await paired(world, factory=primary, secondary=secondary, preserve_session_order=True)
        sender = await scene.sender(VISITS)
        await asyncio.sleep(5)
        for number in range(5):
            await sender.send(letter(str(number), session_id="a"))
        assert len(await scene.home(VISITS)) == 5
        assert await scene.backlog() == []

    run(scenario)


def test_c3_without_that_such_a_key_is_good_enough() -> None:
    async def scenario(world: PairWorld) -> None:
        _allow(world.secondary, Right.SEND)
        scene = await paired(world, secondary=_factory(world))
        scene.pair.engage()
        await (await scene.sender()).send(letter())
        assert len(await scene.backlog()) == 1

    run(scenario)


def test_c20_a_key_that_loses_listen_later_is_told_once_at_a_level_that_is_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        _allow(world.secondary, Right.SEND, Right.LISTEN)
        scene = await paired(world, count=1, secondary=_factory(world), preserve_session_order=True)
        scene.pair.engage()
        await (await scene.sender()).send(letter(session_id="a"))
        scene.pair.release()
        _allow(world.secondary, Right.SEND)
        world.secondary_road.cut()
        await asyncio.sleep(300)

    with caplog.at_level(logging.DEBUG, "pairbus.pairing.session_order"):
        run(scenario)
    told = [record.levelno for record in caplog.records if "cannot be looked through" in record.message]
    assert told[0] == logging.WARNING
    assert told.count(logging.WARNING) == 1


@pytest.mark.parametrize("who", ["secondary_namespace_manager", "messaging_factory"])
def test_c3_it_is_told_which_of_the_keys_is_not_good_enough(who: str) -> None:
    async def scenario(world: PairWorld) -> None:
        _allow(world.secondary, Right.LISTEN)
        weak = _factory(world)
        manager = world.secondary_manager()
        if who == "secondary_namespace_manager":
            manager = type(manager).create(world.secondary_road.endpoint, _key(world))
            weak = world.secondary_factory()
        with pytest.raises(UnauthorizedError, match=f"{who}, of .*fabrikam.* is not allowed to"):
            await world.primary_factory().pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, weak, 2))

    run(scenario)


# What a key may do on the primary is known only by sending.


def test_c7_a_key_that_may_not_send_to_the_primary_is_raised_by_the_send_and_diverts_nothing() -> None:
    async def scenario(world: PairWorld) -> None:
        _allow(world.primary, Right.LISTEN)
        scene = await paired(world, factory=_factory(world, is_primary=True))
        sender = await scene.sender()
        with pytest.raises(UnauthorizedError, match="Send"):
            await sender.send(letter("refused"))
        assert await scene.backlog() == []
        _allow(world.primary, Right.LISTEN, Right.SEND)
        await sender.send(letter("taken"))
        assert await scene.home() == [b"taken"]

    run(scenario)


# A token that was refused is put again.


@pytest.mark.parametrize("opening", ["sender", "receiver", "peek"])
def test_a_key_whose_rights_were_widened_works_at_once(opening: str) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        factory = _factory(world, is_primary=True)
        _allow(world.primary, Right.LISTEN if opening == "sender" else Right.SEND)
        for _ in range(2):
            with pytest.raises(UnauthorizedError):
                await _open(factory, opening)
        _allow(world.primary, Right.LISTEN, Right.SEND)
        await _open(factory, opening)
        assert len(world.primary_road.relays) == 1  # on the connection that there was

    run(scenario)


def test_c15_a_destination_that_was_down_because_of_rights_is_tried_with_another_token() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        _allow(world.primary, Right.LISTEN, name=KEY.name)
        syphon = await pumping.started()
        ids = pumping.put("orders", 3)
        await asyncio.sleep(100)
        assert pumping.home("orders") == []
        _allow(world.primary, Right.SEND, Right.LISTEN, Right.MANAGE, name=KEY.name)
        await pumping.drained(61.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_one_that_is_refused_disturbs_no_other_entity() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            tokens = _recorded(peer)
            await factory.open_sending_link("orders")
            line = factory._slot.ready
            assert line is not None
            authorization = line.authorization
            assert authorization is not None
            authorization.forget("others")  # which nobody has asked for
            await factory.open_sending_link("orders")
            assert tokens == ["orders"]
            authorization.forget("orders")
            await factory.open_sending_link("orders")
            assert tokens == ["orders", "orders"]

    run_peer(scenario())


# Greeting does not disturb those who are just opening.


def test_a_token_that_is_just_being_put_is_waited_for_by_all() -> None:
    async def scenario() -> None:
        provider = _Slow()
        async with scripted(credentials=provider) as (peer, factory):
            tokens = _recorded(peer)
            opening = [begin(factory.open_sending_link("orders")) for _ in range(3)]
            await asyncio.sleep(1)
            greeting = [begin(factory.greet("orders")) for _ in range(3)]
            await asyncio.sleep(1)
            assert not any(task.done() for task in opening + greeting)
            provider.go_on.set()
            await asyncio.gather(*opening, *greeting)
            assert tokens == ["orders"]

    run_peer(scenario())


def test_a_greeting_asks_the_namespace_each_time() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            tokens = _recorded(peer)
            for number in range(3):
                await factory.greet("orders")
                assert tokens == ["orders"] * (number + 1)
            link = await factory.open_sending_link("orders")
            await factory.greet("orders")
            assert link.error is None
            assert len(peer.connections) == 1
            line = factory._slot.ready
            assert line is not None
            assert isinstance(line.authorization, Authorization)
            assert len(line.authorization._grants) == 1  # and one renews it
            await settled()

    run_peer(scenario())


def test_a_greeting_of_what_is_refused_raises_and_is_asked_again() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        factory = MessagingFactory.create(
            Endpoint(world.primary.name, world.primary.port, tls=False),
            SharedAccessKeyTokenProvider(KEY.name, "wrong", clock=world.wall_s),
        )
        world.factories.append(factory)
        for _ in range(2):
            with pytest.raises(UnauthorizedError):
                await factory.greet(ORDERS)
        rule = AuthorizationRule(name=KEY.name, rights=KEY.rights, primary_key="wrong", secondary_key="second")
        world.primary.call(lambda namespace, now_ms: namespace.set_authorization_rules([rule], now_ms))
        await factory.greet(ORDERS)
        with pytest.raises(EntityNotFoundError):
            await factory.greet("nowhere")

    run(scenario)


# Helpers.


class _Slow(TokenProvider):
    """Has a token when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def get_token(self, audience: str) -> Token:
        await self.go_on.wait()
        return await TokenProvider.from_key("root", "secret").get_token(audience)


def _allow(namespace: VirtualNamespace, *rights: Right, name: str = APP) -> None:
    """Change what a key may do."""
    rule = AuthorizationRule(name=name, rights=rights, primary_key="first", secondary_key="second")
    rules = [rule] if name == KEY.name else [KEY, rule]
    namespace.call(lambda broker, now_ms: broker.set_authorization_rules(rules, now_ms))


def _key(world: PairWorld) -> SharedAccessKeyTokenProvider:
    return SharedAccessKeyTokenProvider(APP, "first", clock=world.wall_s)


def _factory(world: PairWorld, *, is_primary: bool = False) -> MessagingFactory:
    """A client with that key."""
    road = world.primary_road if is_primary else world.secondary_road
    factory = MessagingFactory.create(road.endpoint, _key(world))
    world.factories.append(factory)
    return factory


async def _open(factory: MessagingFactory, what: str) -> None:
    match what:
        case "sender":
            async with await factory.create_message_sender(ORDERS) as sender:
                await sender.send(letter())
        case "receiver":
            async with await factory.create_message_receiver(ORDERS) as receiver:
                await receiver.receive(1, seconds(0.1))
        case _:
            async with await factory.create_message_receiver(ORDERS) as receiver:
                await receiver.peek(1)


def _recorded(peer: Peer) -> list[str]:
    """The entities for which tokens are put from now on."""
    found: list[str] = []

    def take(request: Request) -> Response:
        found.append(str(request.properties["name"]).rpartition("/")[2])
        return Response(status=200)

    peer.answers[Operation.PUT_TOKEN] = take
    return found
