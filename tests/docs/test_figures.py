"""Figures in sentences: each one that restates a constant of the code is compared with that constant.

The tests of the pages compare the figures in tables. Here a sentence is listed with ``{}`` for each figure, followed by
the figures, which a page may write in any of their spellings.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from itertools import product
from typing import Any, Final

import pytest

from pairbus import MessagingFactorySettings, RetryPolicy, SendAvailabilityPairedNamespaceOptions, TokenProvider
from pairbus.broker import STANDARD, Namespace, QueueDescription, router, rules
from pairbus.broker import queue as broker_queue
from pairbus.broker.sql import evaluation, like
from pairbus.cli import drill, entity_names, serve
from pairbus.cli.demo import outage
from pairbus.client import endpoint
from pairbus.client import message as client_message
from pairbus.client.amqp import authorization, sending_link
from pairbus.client.management import http as client_http
from pairbus.client.receiver import MessageReceiver
from pairbus.console import annex, reports, session, timeline, watch
from pairbus.console import message as console_message
from pairbus.console.pages import senders
from pairbus.jobs.cost import forecast, month
from pairbus.jobs.reconcile import holes, reconciliation
from pairbus.jobs.reconcile.report import LISTED
from pairbus.jobs.syphon import standalone
from pairbus.jobs.syphon import watch as syphon_watch
from pairbus.ledger import LedgerSettings, columns, operation
from pairbus.pairing import backlog, events, partnership, ping, report, report_courier, report_json, rotation, route
from pairbus.pairing import session_order as order
from pairbus.pairing.homecoming import contact, destination
from pairbus.pairing.syphon import IDLE_POLLS_PER_PEEK, SyphonSettings
from pairbus.server import Settings, dispatcher, guesses, jwt, listener, outbox, reception, signing_keys
from pairbus.server.amqp import claims, connection, unproven
from pairbus.server.amqp.requests import RequestNode
from pairbus.server.http import app, paging, protocol
from pairbus.server.side_buffer import archive, directory, merger, shelf, sweeper
from pairbus.server.throttle import facet, pulse, timer
from pairbus.spark import lock_time
from pairbus.store import certificate, lmdb
from pairbus.wire import Configuration, decoder
from pairbus.wire.configuration import MAX_VALUES
from tests.docs.snippets import ROOT
from tests.fuzz import test_fuzz
from tests.simulation import entities, test_simulation
from tests.simulation.plan import make_plan
from tests.thoroughness import _PART, THOROUGH

WORDS: Final = {
    2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten", 15: "fifteen",
    20: "twenty", 1_000: "a thousand", 100_000: "a hundred thousand",
}  # fmt: skip
FRACTIONS: Final = {3 / 4: "three quarters", 1 / 4: "a fourth", 1 / 8: "an eighth", 1 / 10: "a tenth"}
TIMES: Final = {"year": 365 * 86_400, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
SIZES: Final = {"MiB": 1 << 20, "MB": 1 << 20, "KB": 1 << 10}
Spellings = set[str]


def count(number: float) -> Spellings:
    whole = round(number)
    assert whole == number, number
    return {f"{whole:,}", f"{whole}", *([WORDS[whole]] if whole in WORDS else [])}


def seconds(number: float) -> Spellings:
    spellings: Spellings = {f"{number:g} s"}
    for unit, length in TIMES.items():
        if number == length:
            article = "an" if unit == "hour" else "a"
            words = (article, "one", "1", "every", f"once {article}")
            spellings |= {unit, *(f"{word} {unit}" for word in words)}
        elif number % length == 0:
            spellings |= {f"{amount} {unit}s" for amount in count(number // length)}
    return spellings


def span(length: timedelta | None) -> Spellings:
    return set() if length is None else seconds(length.total_seconds())


def ms(number: float) -> Spellings:
    return seconds(number / 1_000)


def size(number: int) -> Spellings:
    return {f"{number // unit:,} {name}" for name, unit in SIZES.items() if number % unit == 0}


def share(number: float) -> Spellings:
    return {FRACTIONS[round(number, 6)]}


def default(function: Any, parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


QUEUE: Final = QueueDescription()
WIRE: Final = Configuration(container_id="any")
MOST_CONNECTIONS: Final[Any] = next(each.default for each in fields(Settings) if each.name == "max_connections")
CLIENT: Final = MessagingFactorySettings()
SYPHON: Final = SyphonSettings()
BACKLOG: Final = backlog.backlog_description("contoso/x-servicebus-transfer/0")
PAIR_PARAMETERS: Final = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
PAIR: Final = {name: parameter.default for name, parameter in PAIR_PARAMETERS.items()}
IDLE_A_DAY: Final = PAIR["backlog_queue_count"] * (timedelta(days=1) // SYPHON.long_poll)
STANDARD_CARD: Final = tomllib.loads((ROOT / "src/pairbus/jobs/cost/rates/standard.toml").read_text("utf-8"))
RUNS: Final = test_simulation.RUNS * (1 if THOROUGH else _PART)
OUTAGES: Final = sum(len(make_plan(seed).mishaps) for seed in range(RUNS)) // 1_000 * 1_000
FORECAST: Final = forecast.Workload(messages_per_day=1)

Figures = list[tuple[str, *tuple[Spellings, ...]]]

FIGURES: Final[dict[str, Figures]] = {
    "README.md": [
        ("an application send {} messages a second", count(outage.Plan().rate)),
        ("SIGKILL. {} later its entities are failed over", span(outage._FAILOVER)),
        ("By default failures are borne for {} before", span(PAIR["failover_interval"])),
        ("the primary is asked {} whether it is back", span(PAIR["ping_interval"])),
    ],
    "docs/explanation/architecture.md": [
        ("and its messages {} at a time (`tidy`)", count(default(Namespace.tidy, "steps"))),
        ("is given out {} messages at a time", count(dispatcher.SHARE)),
        ("at most {} that is not on disk yet", size(connection._MOST_UNCONFIRMED_BYTES)),
        ("and {} that its peer has not read", size(connection._MOST_UNSENT_BYTES)),
    ],
    "docs/explanation/disk-layout.md": [
        ("`identity` is {} random bytes", count(directory.IDENTITY_BYTES)),
        ("A file of {}, or of {} of `side_buffer_mb`", size(shelf.SEGMENT_BYTES), share(1 / archive._MOST_SEGMENTS)),
        ("When {} of it is left or less", share(1 / sweeper._LITTLE)),
    ],
    "docs/explanation/guarantees.md": [
        ("when that works again: after {} at the most", seconds(merger.Pauses().longest_s)),
    ],
    "docs/explanation/paired-namespaces.md": [
        ("the send waits {} or more and tries again", span(RetryPolicy().server_busy_backoff)),
        ("its properties for the {} that a service takes", size(route._HEADER_LIMIT_BYTES)),
        ("the next message that is diverted after {};", seconds(rotation._FIRST_PAUSE_S)),
        ("the wait doubles, up to {}.", seconds(rotation._LONGEST_PAUSE_S)),
        ("said *busy* is left alone for {} at least", seconds(rotation._BUSY_PAUSE_S)),
        ("a time to live of {}.", span(ping._LIFETIME)),
        ("they expire after {}, but", span(ping._LIFETIME)),
        ("it tries after {}, then less and less often", seconds(contact._FIRST_PAUSE_S)),
        ("less often, every {} in the end. If one", seconds(contact._LONGEST_PAUSE_S)),
        ("tried with one message after {}, then", seconds(destination._FIRST_PAUSE_S)),
        ("then less often, {} in the end ([ADR", seconds(destination._LONGEST_PAUSE_S)),
        ("peeking through the backlog, {} or less often", seconds(order._LOOK_S)),
        ("the last ones come home: {}, or half as long", seconds(order._HOLD_S)),
        ("has taken, and {} at most", count(order._LONGEST_HOLD_S)),
        ("the other has {} to be closed as well", seconds(partnership.PATIENCE_S)),
        ("A syphon waits for {} at each empty backlog queue", span(SYPHON.long_poll)),
        ("Once {} it also peeks at each queue", span(IDLE_POLLS_PER_PEEK * SYPHON.long_poll)),
    ],
    "docs/explanation/performance.md": [
        ("{} messages are the most that are given out at a time", count(dispatcher._AT_ONCE)),
        ("goes out together, and every {} at once", size(sending_link._FLUSH_BYTES)),
        ("is given the attempt time-out of {}", span(PAIR["attempt_timeout"])),
    ],
    "docs/explanation/threat-model.md": [
        ("sessions of an unproven connection | {} |", count(unproven.BOUNDS.sessions)),
        ("links of an unproven connection | {} |", count(unproven.BOUNDS.links)),
        ("on one unproven connection | {} |", size(unproven.BOUNDS.incomplete_bytes)),
        ("on all of them together | {} |", size(unproven.TOTAL_BYTES)),
        ("size of a request to `$cbs` | {} |", size(unproven.TOKEN_BYTES)),
        ("values in such a request, or in a frame | {} |", count(unproven.BOUNDS.values)),
        ("time until the first byte | {} |", seconds(reception.SPEAK_WITHIN_S)),
        ("time for the TLS handshake | {} |", seconds(reception.SPEAK_WITHIN_S)),
        ("time until AMQP is opened | {} |", seconds(connection._OPEN_WITHIN_S)),
        ("until the first token | {} |", seconds(connection._TOKEN_WITHIN_S)),
        ("to arrive, body included | {} |", seconds(protocol._REQUEST_WITHIN_S)),
        ("may wait to be read | {} |", seconds(protocol._ANSWER_READ_WITHIN_S)),
        ("connections in all (`max_connections`) | {} |", count(MOST_CONNECTIONS)),
        ("answers at a time that there is no room | {} |", count(listener._MOST_REFUSALS)),
        ("is served for {}, then", {f"{connection._TURN_S * 1_000:g} ms"}),
        ("decode more than {} values of a frame", count(MAX_VALUES)),
        ("values of a frame or {} of a request", count(RequestNode.max_values)),
        ("at most {} links", count(WIRE.max_links)),
        ("links, {} sessions", count(WIRE.channel_max + 1)),
        ("sessions and {} tokens", count(claims._MOST_AUDIENCES)),
        ("not on disk yet is bounded to {}", size(connection._MOST_UNCONFIRMED_BYTES)),
        ("what it does not read to {}", size(connection._MOST_UNSENT_BYTES)),
        ("may fail {} times with one key name", count(guesses.BY_KEY.burst)),
        ("and {} times in all", count(guesses.BY_ADDRESS.burst)),
        ("after that it has {} and", count(guesses.BY_KEY.per_second)),
        ("and {} answers a second", count(guesses.BY_ADDRESS.per_second)),
        ("Another {} failures beyond that", count(guesses._MOST_DEBT)),
    ],
    "docs/explanation/reconciliation.md": [
        ("ledger is read from {} before the range", span(reconciliation.CLOCK_SLACK)),
        ("last {} minutes in which something happened", count(holes._LAST_MINUTES)),
    ],
    "docs/explanation/simulation.md": [
        ("`make test` runs {} of them", count(test_simulation.SOON)),
        ("`make slow` runs {} more", count(RUNS // _PART - test_simulation.SOON)),
        ("with `CI=true`, `make test` runs all {}, which have more than {} outages", count(RUNS), count(OUTAGES)),
        ("The entities of the simulation do so for {};", ms(entities._DAY_MS)),
        ("with the default of {}, an outage", ms(QUEUE.duplicate_window_ms)),
    ],
    "docs/explanation/two-engines.md": [
        ("each backlog queue is asked once in {}", span(SYPHON.long_poll)),
        ("[{} receives an hour]", count(IDLE_A_DAY // 24)),
        ("for {} queues", count(PAIR["backlog_queue_count"])),
        ("its locks end after {} |", span(BACKLOG.lock_duration)),
    ],
    "docs/explanation/what-pairing-costs.md": [
        ("{}, and asks again", span(SYPHON.long_poll)),
        ("make {} an hour, {} a day,", count(IDLE_A_DAY // 24), count(IDLE_A_DAY)),
        ("a day, {} in 30 days.", count(30 * IDLE_A_DAY)),
        ("larger than {} is charged for each", size(operation.UNIT_BYTES)),
        ("With {} million operations included", {f"{STANDARD_CARD['operations']['tiers'][0]['up_to'] / 1_000_000:g}"}),
        ("Amounts have {} decimals", count(month.AMOUNT_DIGITS)),
        ("on a month of {} that nobody", seconds(forecast.DAYS * 86_400)),
    ],
    "docs/how-to/capture-to-parquet.md": [
        ("as long as a lock lasts, {} at most", seconds(lock_time._USUAL_S)),
    ],
    "docs/how-to/connect.md": [
        ("without a port {} for AMQP, {} for WebSockets", {str(endpoint._AMQPS_PORT)}, {str(endpoint._HTTPS_PORT)}),
        ("without a port {} for AMQP, {} for WebSockets", {str(endpoint._AMQP_PORT)}, {str(endpoint._HTTP_PORT)}),
        ("a token of its own, good for {} or `time_to_live`", span(default(TokenProvider.from_key, "time_to_live"))),
        ("renewed when {} of their time have passed", share(authorization._RENEW_AT)),
    ],
    "docs/how-to/console.md": [
        ("A wrong key is refused after {};", seconds(annex.WRONG_KEY_DELAY_S)),
        ("after {} in which you did nothing", ms(session.IDLE_MS)),
        ("did nothing, after {}, when", ms(session.LONGEST_MS)),
        ("messages a second, over the last {}", ms(watch._WINDOW_MS)),
        ("of a long body the first {}", size(console_message.SHOWN_BYTES)),
        ("of more than {} the rest is counted", count(senders._MOST_ROWS)),
        ("not been heard of for {} is gone", ms(reports.EXPIRES_MS)),
        ("for each backlog queue and over the last {}", ms(timeline.KEPT_MS)),
        ("a point every {}, and so", ms(timeline.STEP_MS)),
    ],
    "docs/how-to/drill.md": [
        ("It waits for {}, or for `--timeout`", seconds(default(drill.drill, "timeout"))),
    ],
    "docs/how-to/everyday-commands.md": [
        ("tells them within {}", seconds(entity_names._PATIENCE_S)),
    ],
    "docs/how-to/operate.md": [
        ("grows in steps of {} ahead of need", size(lmdb._STEP_BYTES)),
        ("in the store, up to {} of them", size(outbox.MOST_BYTES)),
        ("some {} more are kept in memory", count(LedgerSettings().most_waiting // 2)),
        ("If more than {} messages lie in it then", count(LedgerSettings().most_waiting)),
        ("moved together, within {}", seconds(merger.Pauses().longest_s)),
        ("Clients wait for {} or more and try again", span(RetryPolicy().server_busy_backoff)),
        ("the event loop has used in the last {} |", seconds((pulse._KEPT - 1) * timer._EVERY_S)),
        ("the median of the last {} |", seconds((pulse._KEPT - 1) * timer._EVERY_S)),
        ("Facets are read {}", seconds(timer._EVERY_S)),
        ("when it is {} better than that", share(1 - default(facet.Facet, "relief"))),
    ],
    "docs/how-to/pair.md": [
        ("By default an entity may fail for {} before", span(PAIR["failover_interval"])),
        ("fails after `attempt_timeout`, {} if nothing else", span(PAIR["attempt_timeout"])),
        ("waits at an empty queue ({};", span(SYPHON.long_poll)),
        ("the other is not within {}, that one is faulted", seconds(partnership.PATIENCE_S)),
        ("near the limit of {} that would", size(route._HEADER_LIMIT_BYTES)),
    ],
    "docs/how-to/prove-that-nothing-was-lost.md": [
        ("are listed at most: {} if you do not say", count(LISTED)),
    ],
    "docs/how-to/receive.md": [
        ("before its lock ends ({}, unless", ms(QUEUE.lock_duration_ms)),
        ("After {} deliveries (`max_delivery_count`)", count(QUEUE.max_delivery_count)),
    ],
    "docs/how-to/send.md": [
        ("is tried again until `operation_timeout`, {}", span(CLIENT.operation_timeout)),
    ],
    "docs/how-to/serve.md": [
        ("when less than {} of it are left", span(certificate._REST)),
        ("authority stays the same for {}", span(certificate._CA_LIFE)),
        ("than {} characters is warned of", count(serve._KEY_CHARACTERS)),
    ],
    "docs/how-to/sessions.md": [
        ("as long as that of a message ({}, unless", ms(QUEUE.lock_duration_ms)),
    ],
    "docs/how-to/syphon-on-spark.md": [
        ("messages have moved; at most every {}", seconds(syphon_watch._LINE_S)),
        ("has said nothing within {};", seconds(standalone._ATTEMPT_S)),
        ("when its locks have ended, in {}.", span(BACKLOG.lock_duration)),
    ],
    "docs/how-to/tokens.md": [
        ("RSA keys have at least {} bits", count(signing_keys._LEAST_RSA_BITS)),
        ("at most {} in the future", ms(jwt.LEEWAY_MS)),
        ("and again {}. A token", seconds(signing_keys.REFRESH_S)),
        ("read again: a URL at most {}", seconds(signing_keys._URL_PAUSE_S)),
        ("may count for up to {};", seconds(signing_keys.REFRESH_S)),
        ("It may have {}, and {} to arrive", size(signing_keys.MAX_BYTES), seconds(signing_keys.TIMEOUT_S)),
    ],
    "docs/how-to/know-what-it-costs.md": [
        ("the size of one, on average | {} |", count(FORECAST.message_bytes)),
        ("| backlog queues of the pair | {} |", count(FORECAST.backlog_queues)),
        ("an entity is pinged that is down | `{}m` |", count(FORECAST.ping_interval / timedelta(minutes=1))),
        ("waits at an empty backlog queue | `{}m` |", count(FORECAST.long_poll / timedelta(minutes=1))),
        ("down in a month of {} |", seconds(forecast.DAYS * 86_400)),
    ],
    "docs/migration/from-dotnet.md": [
        ("at least 1; {} by default", count(PAIR["backlog_queue_count"])),
    ],
    "docs/migration/from-the-emulator.md": [
        ("a message lives {}, a lock lasts", {"forever"} if QUEUE.default_time_to_live_ms is None else set()),
        ("a lock lasts {} |", ms(QUEUE.lock_duration_ms)),
    ],
    "docs/reference/broker.md": [
        ("the upper {} bits are the partition", count(64 - broker_queue.PARTITION_SHIFT)),
        ("over at most {} stages", count(STANDARD.forwarding_hops)),
    ],
    "docs/reference/client.md": [
        ("[{} in the standard tier]", size(STANDARD.message_bytes)),
        ("`partition_key` | {} characters", count(client_message._LONGEST_ID)),
        ("an answer over HTTP | {} |", size(client_http.MAX_RESPONSE_BYTES)),
        ("of `receive` and `peek` | {} |", count(default(MessageReceiver.receive, "max_message_count"))),
        ("of `TokenProvider.from_key` | {} |", span(default(TokenProvider.from_key, "time_to_live"))),
    ],
    "docs/reference/http.md": [
        ("`SharedAccessAuthorizationRule`, of at most {}", size(app.MAX_BODY_BYTES)),
        ("it is the first {}, and at most {} come at once", count(paging.DEFAULT_TOP), count(paging.MAX_TOP)),
        ("the body is larger than {} |", size(app.MAX_BODY_BYTES)),
    ],
    "docs/reference/ledger.md": [
        ("`pairbus.ledger.version`. It is {};", count(columns.VERSION)),
        ("| of {} that have begun", size(operation.UNIT_BYTES)),
    ],
    "docs/reference/pairing.md": [
        ("or {} where the service refuses that", count(backlog.MOST_DELIVERIES)),
        ("allows only {} deliveries", count(backlog.MOST_DELIVERIES)),
        ("`events()` keeps {} events", count(events._MOST_EVENTS)),
        ("at once, but at most {}, when", seconds(report_courier._SOON_S)),
        ("every {} while one is not healthy", seconds(report_courier._RESTLESS_S)),
        ("else every {}.", seconds(report.HEARTBEAT_S)),
        ("is left alone for {} |", seconds(report_courier._TROUBLED_S)),
        ("at most {}, {} entities,", size(report_json.MOST_BYTES), count(report.MOST_ENTITIES)),
        ("and {} switches", count(report.MOST_SWITCHES)),
        ("A report has {}, and", seconds(report_courier._PATIENCE_S)),
        ("it has more than {} |", size(report_json.MOST_BYTES)),
        ("{} applications, or {} entities, are known", count(reports.MOST_APPLICATIONS), count(reports.MOST_ENTITIES)),
        ("and forgets it {} after it came", ms(reports.EXPIRES_MS)),
    ],
    "docs/reference/rules.md": [
        ("the default of `rule_units` is about {} milliseconds", count(STANDARD.rule_units // 1_000_000)),
        ("| a rule | {} |", count(rules._RULE_UNITS)),
        ("of an action that is applied | {} |", count(rules.EXPRESSION_UNITS)),
        ("property of a correlation filter | {} |", count(rules._PROPERTY_UNITS)),
        ("with a text between two `%` | {} for each character", count(like._SEARCH_UNITS)),
        ("| a computed pattern | {}, and as many for each `%`", count(like._COMPILE_UNITS)),
        ("`%`; {} for each `_`; {} for each", count(like._COMPILE_ANY_UNITS), count(like._COMPILE_CHARACTER_UNITS)),
        ("a text of more than {} characters", count(evaluation.LONG_TEXT)),
        ("characters | 1 for {} characters", count(evaluation._COPIED_AT_ONCE)),
        ("and {} for each property", count(router._AMENDMENT_UNITS)),
    ],
    "docs/reference/wire.md": [
        ("nesting beyond {}, counts", count(decoder.MAX_DEPTH)),
        ("values nest at most {} deep", count(decoder.MAX_DEPTH)),
        ("the constructor of an array at most {},", count(decoder.MAX_ARRAY_DESCRIPTORS)),
        ("take no bytes has at most {} of them", count(decoder.MAX_EMPTY_ELEMENTS)),
        ("more than {} keys that are not text", count(decoder._MANY_KEYS)),
    ],
    "docs/tutorial/first-messages.md": [
        ("waits for the first message, for {} unless", span(CLIENT.operation_timeout)),
        ("that is abandoned {} times", count(QUEUE.max_delivery_count)),
        ("for {} before it raises an error", span(CLIENT.operation_timeout)),
    ],
    "docs/tutorial/survive-an-outage.md": [
        ("By default both are {}.", span(PAIR["failover_interval"])),
        ("By default both are {}.", span(PAIR["ping_interval"])),
    ],
    "CONTRIBUTING.md": [
        ("the slow ones: {} fuzz inputs", count(test_fuzz.RUNS)),
    ],
}  # fmt: skip


def listed() -> Iterator[Any]:
    for page, figures in FIGURES.items():
        for sentence, *values in figures:
            yield pytest.param(page, sentence, values, id=f"{page}: {sentence}")


@pytest.mark.parametrize(("page", "sentence", "values"), [*listed()])
def test_figure_is_that_of_the_code(page: str, sentence: str, values: list[Spellings]) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split()).lower()
    spellings = [sentence.format(*chosen).lower() for chosen in product(*values)]
    found = re.search(".{1,40}?".join(map(re.escape, sentence.lower().split("{}"))), text)
    written = f"it says '{found.group()}'" if found else "the sentence is gone: list the new one here"
    assert any(spelling in text for spelling in spellings), f"{page}: expected one of {spellings}; {written}"
