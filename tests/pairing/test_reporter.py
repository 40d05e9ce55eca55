"""Reports of a pair in virtual time: recipients, frequency, and that they delay nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import ClosedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import PlainCredentials, Token, TokenProvider
from pairbus.console.reports import ReportApi
from pairbus.console.sampler import Sampler
from pairbus.pairing import EntityState
from pairbus.pairing.report import HEARTBEAT_S, MOST_NAME, MOST_SWITCHES, PairReport, ReportRecipient
from pairbus.pairing.reporter import PATH, ReportSender
from pairbus.server import NamespaceServer, Settings
from pairbus.server.amqp.services import AmqpServices
from tests.faults.namespace import KEY, VirtualNamespace
from tests.pairing.scenes import Scene, begin, letter, paired, took, until
from tests.simulation.pair_world import PRIMARY, SECONDARY, PairWorld, run

SOON_S: Final = 1.5
COURIER: Final = "pairbus.pairing.reporter"


class Consoles:
    """The real consoles of the two namespaces, with a record of their requests. A restart clears them."""

    def __init__(self) -> None:
        self.received: dict[str, list[tuple[float, PairReport]]] = defaultdict(list)
        self.watches: dict[str, Sampler] = {}
        self.is_silent = False
        """True to respond to no request."""
        self.asked = 0

    def reports(self, name: str) -> list[PairReport]:
        return [report for _, report in self.received[name]]

    def times(self, name: str) -> list[float]:
        return [at_s for at_s, _ in self.received[name]]

    def states(self, name: str) -> dict[str, EntityState]:
        """Return the states of the entities in the last report."""
        return {one.path: one.state for report in self.reports(name)[-1:] for one in report.entities}

    def diary(self, name: str) -> list[str]:
        return [entry.text for entry in self.watches[name].events][::-1]

    def open(self, namespace: VirtualNamespace, services: AmqpServices) -> uvicorn.Config:
        name = namespace.name
        self.watches.pop(name, None)
        server = NamespaceServer(Settings(data=Path(name), name=name))

        async def take(request: Request) -> Response:
            self.asked += 1
            if self.is_silent:
                await asyncio.Event().wait()
            watch = self.watches.get(name) or self._watch(name, services)
            return await ReportApi(services, watch.add_report).handle(request)

        return server._http(services, services.authorizer, [Route(PATH, take, methods=["POST"])])

    def _watch(self, name: str, services: AmqpServices) -> Sampler:
        watch = self.watches[name] = Sampler(services)
        hear = watch.add_report

        def received(report: PairReport) -> None:
            self.received[name].append((asyncio.get_running_loop().time(), report))
            hear(report)

        watch.add_report = received  # type: ignore[method-assign]
        return watch


@pytest.fixture
def consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consoles]:
    found = Consoles()

    def http_of(namespace: VirtualNamespace, services: AmqpServices) -> uvicorn.Config:
        return found.open(namespace, services)

    monkeypatch.setattr(VirtualNamespace, "_http_of", http_of)
    monkeypatch.setattr("socket.gethostname", lambda: "web-1")
    yield found
    assert "SharedAccess" not in repr(found.received)


async def reporting(world: PairWorld, **options: Any) -> Scene:
    scene = await paired(world, **options)
    scene.pair.report("checkout")
    return scene


# Recipients and frequency.


def test_c19_both_namespaces_get_a_report_with_each_heartbeat(consoles: Consoles) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world)
        await scene.sender()
        began_s = scene.now_s
        await asyncio.sleep(3 * HEARTBEAT_S + SOON_S)
        for name, receiver in ((PRIMARY, ReportRecipient.PRIMARY), (SECONDARY, ReportRecipient.SECONDARY)):
            first, last = consoles.reports(name)[0], consoles.reports(name)[-1]
            assert len(consoles.times(name)) == 4
            assert consoles.times(name)[0] - began_s < SOON_S
            assert (first.application, first.host, first.primary) == ("checkout", "web-1", "contoso")
            assert (last.receiver, last.number, last.switched) == (receiver, 4, 0)
            assert consoles.states(name) == {"orders": EntityState.HEALTHY}

    run(scenario)


@pytest.mark.parametrize("how", ["refuse", "hide", "kill", "stall", "drop"])
def test_c19_outage_is_reported_to_the_secondary_at_once_and_to_the_primary_later(consoles: Consoles, how: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world, ping_s=20)
        sender = await scene.sender()
        await sender.send(letter())
        await asyncio.sleep(SOON_S)
        await scene.spoil(how)
        before = len(consoles.times(PRIMARY))
        await sender.send(letter("2"))
        switched_s = scene.changes[-1][0]
        await until(lambda: consoles.states(SECONDARY).get("orders") is EntityState.FAILED_OVER, within_s=SOON_S)
        assert scene.now_s - switched_s < SOON_S + 0.1
        await asyncio.sleep(30)
        entity = consoles.reports(SECONDARY)[-1].entities[0]
        assert entity.diverted == 1
        assert entity.pings >= 1
        assert entity.reason
        times = consoles.times(SECONDARY)
        assert max(later - earlier for earlier, later in zip(times[-5:], times[-4:], strict=False)) < 6
        assert len(consoles.times(PRIMARY)) == before
        await scene.heal()
        await until(lambda: scene.state() is EntityState.HEALTHY)
        await until(lambda: consoles.states(PRIMARY) == consoles.states(SECONDARY) == {"orders": EntityState.HEALTHY})
        # The primary gets the switches that it has missed, and the last reason.
        for name in (PRIMARY, SECONDARY):
            states_seen = [one.state for report in consoles.reports(name) for one in report.switches]
            assert states_seen == [EntityState.FAILED_OVER, EntityState.HEALTHY]
            assert consoles.reports(name)[-1].entities[0].reason
            assert [text for text in consoles.diary(name) if "failed over to the backlog" in text]
            assert [text for text in consoles.diary(name) if "returned to the primary" in text]

    run(scenario)


def test_many_switches_make_few_reports_of_bounded_size(consoles: Consoles) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world)
        await asyncio.sleep(SOON_S)
        began_s = scene.now_s
        for _ in range(1_000):
            scene.pair.engage("orders")
            await asyncio.sleep(0.01)
            scene.pair.release("orders")
        await asyncio.sleep(SOON_S)
        times = [at_s for at_s in consoles.times(SECONDARY) if at_s >= began_s]
        assert len(times) <= (scene.now_s - began_s) + 1
        reports = consoles.reports(SECONDARY)
        assert max(len(report.switches) for report in reports) == MOST_SWITCHES
        assert reports[-1].switched == 2_000
        assert any("more times" in text for text in consoles.diary(SECONDARY))
        assert len(consoles.watches[SECONDARY].events) <= 200

    run(scenario)


def test_restarted_namespace_gets_a_report_again(consoles: Consoles) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world)
        scene.pair.engage("orders")
        await until(lambda: consoles.states(SECONDARY) == {"orders": EntityState.HELD_OVER})
        await asyncio.sleep(SOON_S)
        world.secondary.kill()
        world.secondary.start()
        assert SECONDARY not in consoles.watches
        await asyncio.sleep(12)
        assert len(consoles.watches[SECONDARY].reports) == 1
        assert "more" not in " ".join(consoles.diary(SECONDARY))

    run(scenario)


def test_second_call_changes_the_application_name(consoles: Consoles) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world)
        await asyncio.sleep(SOON_S)
        scene.pair.report(" till ")
        await asyncio.sleep(HEARTBEAT_S)
        assert [report.application for report in consoles.reports(SECONDARY)] == ["checkout", "till"]
        assert len(consoles.watches[SECONDARY].reports) == 1

    run(scenario)


def test_nothing_is_reported_without_a_call(consoles: Consoles) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.engage("orders")
        await asyncio.sleep(2 * HEARTBEAT_S)
        assert consoles.asked == 0

    run(scenario)


# Independence of sends and close.


@pytest.mark.parametrize("after_s", [0.0, 0.5, 2.0, 4.0])
def test_c18_unresponsive_console_delays_neither_sends_nor_close(consoles: Consoles, after_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        consoles.is_silent = True
        scene = await reporting(world)
        sender = await scene.sender()
        await asyncio.sleep(after_s)
        assert await took(sender.send(letter("1"))) < 0.1
        scene.pair.engage("orders")
        assert await took(sender.send(letter("2"))) < 0.1
        assert await took(scene.factory.close()) < 0.1

    run(scenario)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 1.0, 1.1, 3.0, 29.0, 60.0])
@pytest.mark.parametrize("how", ["refuse", "stall", "hide"])
def test_c17_reports_end_with_the_pair(consoles: Consoles, how: str, after_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world)
        await scene.spoil(how)
        world.secondary_network.stall()
        await asyncio.sleep(after_s)
        await scene.factory.close()
        asked = consoles.asked
        await asyncio.sleep(2 * HEARTBEAT_S)
        assert consoles.asked == asked  # the world checks that no task is left

    run(scenario)


def test_c18_reports_do_not_slow_down_sends(consoles: Consoles) -> None:
    durations: list[float] = []

    def with_or_without(is_reported: bool) -> Callable[[PairWorld], Any]:
        async def scenario(world: PairWorld) -> None:
            scene = await (reporting(world) if is_reported else paired(world))
            sender = await scene.sender()
            await scene.spoil("refuse")
            durations.append(sum([await took(sender.send(letter(str(number)))) for number in range(50)]))

        return scenario

    for is_reported in (False, True):
        run(with_or_without(is_reported))
    assert durations[1] == pytest.approx(durations[0], abs=0.01)


# Failures.


def test_failed_reports_are_logged_once_and_when_they_succeed_again(
    consoles: Consoles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: PairWorld) -> None:
        consoles.is_silent = True
        await reporting(world)
        await asyncio.sleep(3 * HEARTBEAT_S)
        texts = [record.getMessage() for record in caplog.records if record.name == COURIER]
        assert len(texts) == 2
        assert all("pair report failed " in text for text in texts)
        consoles.is_silent = False
        await asyncio.sleep(2 * HEARTBEAT_S)
        texts = [record.getMessage() for record in caplog.records if record.name == COURIER]
        assert len(texts) == 4
        assert all("pair reports accepted again" in text for text in texts[2:])

    with caplog.at_level(logging.INFO, COURIER):
        run(scenario)


def test_namespace_without_a_console_is_retried_seldom(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world)
        scene.pair.engage("orders")
        networks = (world.primary_network, world.secondary_network)
        before = [len(network.relays) for network in networks]
        await asyncio.sleep(60)
        assert all(len(network.relays) - count <= 7 for network, count in zip(networks, before, strict=True))

    run(scenario)
    texts = [record.getMessage() for record in caplog.records if record.name == COURIER]
    assert len(texts) == 2
    said = 'error="the namespace has no console, reports are not shown"'
    assert all(text.startswith("pair report failed endpoint=") and text.endswith(said) for text in texts)
    assert "SharedAccess" not in caplog.text


class Slow(TokenProvider):
    """A token provider that never returns."""

    async def get_token(self, audience: str) -> Token:
        await asyncio.Event().wait()
        raise AssertionError(audience)


class Broken(TokenProvider):
    async def get_token(self, audience: str) -> Token:
        raise RuntimeError(f"no token for {audience} today")


@pytest.mark.parametrize(("provider", "words"), [(Slow(), "no response within 3 s"), (Broken(), "no token for sb://")])
def test_failing_token_provider_does_not_end_the_reports(
    provider: TokenProvider, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await reporting(world)
        factory = MessagingFactory.create(world.primary_network.endpoint, provider, MessagingFactorySettings())
        reporter = scene.pair._reporter
        assert reporter is not None
        task = begin(ReportSender(factory, ReportRecipient.PRIMARY, reporter._report).run())
        await asyncio.sleep(5)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])

    run(scenario)
    assert words in caplog.text


def test_user_and_password_authorize_reports(consoles: Consoles) -> None:
    async def scenario(world: PairWorld) -> None:
        factory = MessagingFactory.create(
            world.primary_network.endpoint, PlainCredentials(KEY.name, KEY.primary_key), MessagingFactorySettings()
        )
        world.factories.append(factory)
        await reporting(world, factory=factory)
        await asyncio.sleep(SOON_S)
        assert len(consoles.reports(PRIMARY)) == 1

    run(scenario)


@pytest.mark.parametrize(
    ("host", "has_console"),
    [
        ("contoso.servicebus.windows.net", False),
        ("Contoso.ServiceBus.chinacloudapi.cn", False),
        ("localhost", True),
        ("servicebus.example", True),
    ],
)
def test_azure_gets_no_reports(host: str, has_console: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        factory = world.factory_at(Endpoint(host))
        report_sender = ReportSender(factory, ReportRecipient.SECONDARY, lambda *_: pytest.fail("nothing is sent"))
        assert report_sender.has_console is has_console

    run(scenario)


# Arguments.


@pytest.mark.parametrize("name", ["", "  ", "x" * (MOST_NAME + 1)])
def test_invalid_application_name_is_rejected(name: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        with pytest.raises(ValueError, match="application"):
            scene.pair.report(name)
        with pytest.raises(TypeError, match="application"):
            scene.pair.report(7)  # type: ignore[arg-type]

    run(scenario)


def test_default_application_name_is_the_program(consoles: Consoles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/srv/till.py", "--key=secret"])

    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.report()
        await asyncio.sleep(SOON_S)
        assert consoles.reports(SECONDARY)[0].application == "till"
        assert "secret" not in repr(consoles.received)

    run(scenario)


def test_c17_report_of_a_closed_pair_raises() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        await scene.factory.close()
        with pytest.raises(ClosedError):
            scene.pair.report("checkout")

    run(scenario)
