"""The claims of the keys of a pair: checked when it is created, and again when they were extended."""

from __future__ import annotations

import asyncio
import logging

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
from tests.faults.namespace import KEY
from tests.pairing.scenes import ORDERS, VISITS, allow, app_key, app_manager, begin, letter, paired, seconds
from tests.pairing.syphon_fixture import SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run

# A missing claim raises when the pair is created.


def test_c3_key_without_listen_raises_if_session_order_is_preserved() -> None:
    async def scenario(world: PairWorld) -> None:
        allow(world.secondary, Right.SEND)
        primary, secondary = world.primary_factory(), _factory(world)
        world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
        with pytest.raises(UnauthorizedError, match="Listen") as caught:
            await paired(world, factory=primary, secondary=secondary, preserve_session_order=True)
        assert "messaging_factory" in str(caught.value)
        assert primary.pairing is None
        allow(world.secondary, Right.SEND, Right.LISTEN)
        scene = await paired(world, factory=primary, secondary=secondary, preserve_session_order=True)
        sender = await scene.sender(VISITS)
        await asyncio.sleep(5)
        for number in range(5):
            await sender.send(letter(str(number), session_id="a"))
        assert len(await scene.delivered(VISITS)) == 5
        assert await scene.backlog() == []

    run(scenario)


def test_c3_key_without_listen_suffices_without_session_order() -> None:
    async def scenario(world: PairWorld) -> None:
        allow(world.secondary, Right.SEND)
        scene = await paired(world, secondary=_factory(world))
        scene.pair.engage()
        await (await scene.sender()).send(letter())
        assert len(await scene.backlog()) == 1

    run(scenario)


def test_c20_later_loss_of_listen_is_logged_once_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        allow(world.secondary, Right.SEND, Right.LISTEN)
        scene = await paired(world, count=1, secondary=_factory(world), preserve_session_order=True)
        scene.pair.engage()
        await (await scene.sender()).send(letter(session_id="a"))
        scene.pair.release()
        allow(world.secondary, Right.SEND)
        world.secondary_network.cut()
        await asyncio.sleep(300)

    with caplog.at_level(logging.DEBUG, "pairbus.pairing.session_order"):
        run(scenario)
    levels = [record.levelno for record in caplog.records if "scan of a backlog queue failed" in record.message]
    assert levels[0] == logging.WARNING
    assert levels.count(logging.WARNING) == 1


@pytest.mark.parametrize("who", ["secondary_namespace_manager", "messaging_factory"])
def test_c3_error_names_the_option_whose_key_lacks_a_claim(who: str) -> None:
    async def scenario(world: PairWorld) -> None:
        allow(world.secondary, Right.LISTEN)
        weak = _factory(world)
        manager = world.secondary_manager()
        if who == "secondary_namespace_manager":
            manager = app_manager(world)
            weak = world.secondary_factory()
        with pytest.raises(UnauthorizedError, match=f"the key of {who} lacks a claim on .*fabrikam"):
            await world.primary_factory().pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, weak, 2))

    run(scenario)


# Claims on the primary are checked only by sends.


def test_c7_key_without_send_on_the_primary_raises_and_diverts_nothing() -> None:
    async def scenario(world: PairWorld) -> None:
        allow(world.primary, Right.LISTEN)
        scene = await paired(world, factory=_factory(world, is_primary=True))
        sender = await scene.sender()
        with pytest.raises(UnauthorizedError, match="Send"):
            await sender.send(letter("refused"))
        assert await scene.backlog() == []
        allow(world.primary, Right.LISTEN, Right.SEND)
        await sender.send(letter("taken"))
        assert await scene.delivered() == [b"taken"]

    run(scenario)


# A rejected token is put again.


@pytest.mark.parametrize("opening", ["sender", "receiver", "peek"])
def test_key_with_added_claims_works_at_once(opening: str) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        factory = _factory(world, is_primary=True)
        allow(world.primary, Right.LISTEN if opening == "sender" else Right.SEND)
        for _ in range(2):
            with pytest.raises(UnauthorizedError):
                await _open(factory, opening)
        allow(world.primary, Right.LISTEN, Right.SEND)
        await _open(factory, opening)
        assert len(world.primary_network.relays) == 1  # the same connection

    run(scenario)


def test_c15_unauthorized_destination_is_retried_with_a_new_token() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        allow(world.primary, Right.LISTEN, name=KEY.name)
        syphon = await fixture.started()
        ids = fixture.put("orders", 3)
        await asyncio.sleep(100)
        assert fixture.delivered("orders") == []
        allow(world.primary, Right.SEND, Right.LISTEN, Right.MANAGE, name=KEY.name)
        await fixture.drained(61.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_unauthorized_entity_does_not_affect_others() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            tokens = _recorded(peer)
            await factory.open_sending_link("orders")
            line = factory._current.ready
            assert line is not None
            authorization = line.authorization
            assert authorization is not None
            authorization.forget("others")  # an entity without a token
            await factory.open_sending_link("orders")
            assert tokens == ["orders"]
            authorization.forget("orders")
            await factory.open_sending_link("orders")
            assert tokens == ["orders", "orders"]

    run_peer(scenario())


# A greeting does not affect links that are being opened.


def test_concurrent_links_wait_for_the_token_being_put() -> None:
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


def test_each_greeting_sends_a_request() -> None:
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
            line = factory._current.ready
            assert line is not None
            assert isinstance(line.authorization, Authorization)
            assert len(line.authorization._grants) == 1  # one task renews it
            await settled()

    run_peer(scenario())


def test_unauthorized_greeting_raises_and_is_repeated() -> None:
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
    """A token provider that returns a token after its event."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def get_token(self, audience: str) -> Token:
        await self.go_on.wait()
        return await TokenProvider.from_key("root", "secret").get_token(audience)


def _factory(world: PairWorld, *, is_primary: bool = False) -> MessagingFactory:
    """Return a client with the key ``APP``."""
    network = world.primary_network if is_primary else world.secondary_network
    factory = MessagingFactory.create(network.endpoint, app_key(world))
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
    """Return a list that gets the entity of each token put from now on."""
    found: list[str] = []

    def take(request: Request) -> Response:
        found.append(str(request.properties["name"]).rpartition("/")[2])
        return Response(status=200)

    peer.answers[Operation.PUT_TOKEN] = take
    return found
