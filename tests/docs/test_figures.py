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

from benchmarks import comparison, hostile, hostile_peers, scale
from benchmarks.brokers import azure, load
from benchmarks.figures import MAX_OTHERS_SHARE
from pairbus import MessagingFactorySettings, RetryPolicy, SendAvailabilityPairedNamespaceOptions, TokenProvider
from pairbus.broker import STANDARD, Namespace, QueueDescription, router, rules
from pairbus.broker import queue as broker_queue
from pairbus.broker.sql import evaluation, operators
from pairbus.cli import arguments, drill, serve
from pairbus.cli.demo import outage
from pairbus.client import encoding as client_encoding
from pairbus.client import endpoint
from pairbus.client.amqp import authorization, sending_link
from pairbus.client.management import http as client_http
from pairbus.client.receiver import MessageReceiver
from pairbus.console import auth, message_page, pair_page, reports, routes, sampler
from pairbus.jobs.cost import forecast, month
from pairbus.jobs.reconcile import events as reconcile_events
from pairbus.jobs.reconcile import reconciliation
from pairbus.jobs.reconcile.report import LISTED, LONGEST_SILENCE
from pairbus.jobs.syphon import standalone
from pairbus.ledger import LedgerSettings
from pairbus.ledger import events as ledger_events
from pairbus.pairing import backlog, entity, events, pair, report, reporter, route
from pairbus.pairing import session_order as order
from pairbus.pairing.syphon import IDLE_POLLS_PER_PEEK, SyphonSettings, destination
from pairbus.server import Settings, dispatcher, jwt, listener, outbox, peer_limits, turns, websocket
from pairbus.server.amqp import connection, node, producer, requests, services
from pairbus.server.amqp.requests import RequestNode
from pairbus.server.connection_limits import ConnectionLimits
from pairbus.server.http import answers, call, protocol
from pairbus.server.side_buffer import archive, compactor, replayer
from pairbus.server.throttle import gauges, throttle
from pairbus.spark import connections, consumption, depths, locks
from pairbus.store import buffer_directory, certificate, lmdb, segment_log
from pairbus.wire import decoder
from pairbus.wire.configuration import MAX_VALUES
from tests.docs.snippets import ROOT
from tests.fuzz import test_fuzz
from tests.server import test_guessing_run, test_hostile_peers, test_revocation
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


def hours(each_us: float) -> Spellings:
    """Return the time of the backlog of the scale page if a message takes so long."""
    return {f"{scale.MESSAGES * each_us / 1e6 / scale.HOUR_S:.1f}"}


def default(function: Any, parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


QUEUE: Final = QueueDescription()
LIMITS: Final = ConnectionLimits()
MOST_CONNECTIONS: Final[Any] = next(each.default for each in fields(Settings) if each.name == "max_connections")
CLIENT: Final = MessagingFactorySettings()
SYPHON: Final = SyphonSettings()
BACKLOG: Final = backlog.backlog_description("contoso/x-servicebus-transfer/0")
PAIR_PARAMETERS: Final = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
PAIR: Final = {name: parameter.default for name, parameter in PAIR_PARAMETERS.items()}
IDLE_A_DAY: Final = PAIR["backlog_queue_count"] * (timedelta(days=1) // SYPHON.long_poll)
STANDARD_CARD: Final = tomllib.loads((ROOT / "src/pairbus/jobs/cost/rates/standard.toml").read_text("utf-8"))
RUNS: Final = test_simulation.RUNS * (1 if THOROUGH else _PART)
OUTAGES: Final = sum(len(make_plan(seed).planned_faults) for seed in range(RUNS)) // 1_000 * 1_000
FORECAST: Final = forecast.Workload(messages_per_day=1)

Figures = list[tuple[str, *tuple[Spellings, ...]]]

FIGURES: Final[dict[str, Figures]] = {
    "README.md": [
        ("an application send {} messages a second", count(outage.Plan().rate)),
        ("SIGKILL. {} later its entities are failed over", span(outage._FAILOVER)),
        ("By default, an entity fails over after {} of errors", span(PAIR["failover_interval"])),
        ("the primary is pinged {} until it is back", span(PAIR["ping_interval"])),
    ],
    "docs/explanation/design-notes.md": [
        ("and its messages {} at a time (`tidy`)", count(default(Namespace.tidy, "steps"))),
        ("The dispatcher delivers {} messages at a time", count(dispatcher.SHARE)),
        ("at most {} that is not on disk yet", size(connection._MOST_UNCONFIRMED_BYTES)),
        ("and {} that its peer has not read", size(connection._MOST_UNSENT_BYTES)),
    ],
    "docs/explanation/disk-layout.md": [
        ("`identity` is {} random bytes", count(buffer_directory._IDENTITY_BYTES)),
        (
            "A file of {}, or of {} of `side_buffer_mb`",
            size(segment_log.SEGMENT_BYTES),
            share(1 / archive.MIN_SEGMENTS),
        ),
        ("When {} of it is left or less", share(1 / compactor._COMPACT_BELOW)),
    ],
    "docs/explanation/guarantees.md": [
        ("when that works again: after {} at the most", seconds(replayer.MERGE_BACKOFF.longest_s)),
    ],
    "docs/explanation/paired-namespaces.md": [
        ("the send waits {} or more and tries again", span(RetryPolicy().server_busy_backoff)),
        ("its properties for the {} that a service takes", size(route._HEADER_LIMIT_BYTES)),
        ("the next message that is diverted after {};", seconds(backlog._BACKOFF.first_s)),
        ("the wait doubles, up to {}.", seconds(backlog._BACKOFF.longest_s)),
        ("said *busy* is left alone for {} at least", seconds(backlog._BUSY_PAUSE_S)),
        ("a time to live of {}.", span(entity._LIFETIME)),
        ("they expire after {}, but", span(entity._LIFETIME)),
        ("it tries after {}, then less and less often", seconds(destination.PROBE_BACKOFF.first_s)),
        ("less often, every {} in the end. If one", seconds(destination.PROBE_BACKOFF.longest_s)),
        ("tried with one message after {}, then", seconds(destination.RETRY_BACKOFF.first_s)),
        ("then less often, {} in the end ([ADR", seconds(destination.RETRY_BACKOFF.longest_s)),
        ("peeking through the backlog, {} or less often", seconds(order._LOOK_S)),
        ("the last messages are delivered: {}, or one and a half", seconds(order._HOLD_S)),
        ("the earlier ones took, and {} at most", count(order._LONGEST_HOLD_S)),
        ("the other has {} to be closed as well", seconds(pair.PATIENCE_S)),
        ("A syphon waits for {} at each empty backlog queue", span(SYPHON.long_poll)),
        ("Once {} it also peeks at each queue", span(IDLE_POLLS_PER_PEEK * SYPHON.long_poll)),
    ],
    "docs/explanation/performance.md": [
        ("Deliveries have {} of a pass", {f"{turns._DELIVERY_S * 1_000:g} ms"}),
        ("since the last one, up to {}", {f"{turns._LONGEST_DELIVERY_S * 1_000:g} ms"}),
        ("is sent together, and every {} immediately", size(sending_link._FLUSH_BYTES)),
        ("fails after the attempt timeout of {}", span(PAIR["attempt_timeout"])),
        ("took more than {} of the processors", {f"{MAX_OTHERS_SHARE:.0%}"}),
        ("the Azure SDK with asyncio, {} connections", count(azure.CONNECTIONS)),
        ("for {} more rounds at most", count(comparison.Options().repeats)),
        ("is the median of {} rounds", count(comparison.Options().rounds)),
        ("Throughput: {} messages are in flight", count(load.WINDOW)),
    ],
    "docs/explanation/threat-model.md": [
        ("sessions of an unproven connection | {} |", count(services.BOUNDS.sessions)),
        ("links of an unproven connection | {} |", count(services.BOUNDS.links)),
        ("on one unproven connection | {} |", size(LIMITS.unproven_connection_bytes)),
        ("may send in all | {} |", size(LIMITS.unproven_received_bytes)),
        ("unproven connections together | {} |", size(LIMITS.unproven_total_bytes)),
        ("size of a request to `$cbs` | {} |", size(services.TOKEN_BYTES)),
        ("values in such a request, or in a frame | {} |", count(services.BOUNDS.values)),
        ("time until the first byte | {} |", seconds(LIMITS.handshake_timeout_s)),
        ("time for the TLS handshake | {} |", seconds(LIMITS.handshake_timeout_s)),
        ("time until AMQP is opened | {} |", seconds(LIMITS.token_timeout_s)),
        ("until the first token | {} |", seconds(LIMITS.token_timeout_s)),
        ("to arrive, body included | {} |", seconds(LIMITS.http_request_timeout_s)),
        ("may wait to be read | {} |", seconds(LIMITS.http_send_timeout_s)),
        ("size of the head of a request over HTTP | {} |", size(protocol.HEAD_BYTES)),
        ("lines of that head | {} |", count(protocol.HEADERS)),
        ("reads and drops up to {} for", size(protocol._DISCARDED_BYTES)),
        ("drops up to 256 KB for up to {}, until", seconds(protocol._READ_WITHIN_S)),
        ("one that has sent more than {} counts", size(services._TLS_SMALL_BYTES)),
        ("more than 16 KB counts with {}.", size(services._TLS_BYTES)),
        ("a turn ends after {} of parsing", {f"{protocol._UNPROVEN_TURN_S * 1_000:g} ms"}),
        ("connections in all | {} |", count(MOST_CONNECTIONS)),
        ("one unproven connection, for {}.", {f"{connection._UNPROVEN_TURN_S * 1_000:g} ms"}),
        ("have sent more than {} recently", size(turns._MODEST_BYTES)),
        ("it serves one every {}.", {f"{turns._PAUSE_S * 1_000:g} ms"}),
        ("**Log.** At most {} lines a second", count(serve.LINES_A_SECOND)),
        ("line in the log, up to {} a second", count(serve.LINES_A_SECOND)),
        ("A batch is decoded {} messages at a time", count(producer._PART)),
        ("waits as long, up to {}, before", seconds(turns._LONGEST_REST_S)),
        ("A request of {} or more is decoded", size(requests._LARGE_BYTES)),
        ("| messages in a batch | {} |", count(STANDARD.messages_per_batch)),
        ("responses to new connections | {} |", count(listener._MOST_REFUSALS)),
        ("is served for {}, then", {f"{connection._TURN_S * 1_000:g} ms"}),
        ("decode more than {} values of a frame", count(MAX_VALUES)),
        ("values of a frame or {} of a request", count(RequestNode.max_values)),
        ("sessions of a connection | {} |", count(LIMITS.max_sessions_per_connection)),
        ("links of a connection | {} |", count(LIMITS.max_links_per_connection)),
        ("tokens of a connection | {} |", count(LIMITS.max_tokens_per_connection)),
        ("work of rules for one message | {} ms |", count(STANDARD.rule_units // 1_000_000)),
        (
            "for a batch or a transaction | {} times that, or {} ms for each message",
            {str(router.BATCH_BUDGETS)},
            {f"{router.BATCH_MESSAGE_UNITS / 1_000_000:g}"},
        ),
        ("in memory for duplicate detection | {} |", count(STANDARD.duplicate_ids_in_memory)),
        ("not on disk yet is bounded to {}", size(connection._MOST_UNCONFIRMED_BYTES)),
        ("what it does not read to {}", size(connection._MOST_UNSENT_BYTES)),
        ("that are not on disk yet; then it is not read | {} |", size(connection._MOST_UNCONFIRMED_BYTES)),
        ("then it is not read either | {} |", size(connection._MOST_UNSENT_BYTES)),
        ("the session window of a link; then it is detached | {} |", size(node._MAX_WAITING_BYTES)),
        (
            "before the first token | {} |",
            size(protocol._AMQP_FRAME_BYTES + LIMITS.unproven_connection_bytes),
        ),
        ("the largest message and {} |", size(websocket._ENVELOPE_BYTES)),
        ("open transactions of a connection | {} |", count(node._MAX_OPEN)),
        ("in the open transactions of a connection | {}, or", size(node._MAX_BYTES)),
        ("a transaction may be open | {} |", {f"{node._TIMEOUT_MS // 1_000} s"}),
        ("logins at the console | {} |", count(auth._MAX_SESSIONS)),
        ("one address with one key name | {} |", count(peer_limits.BY_KEY.burst)),
        ("one address with all key names | {} |", count(peer_limits.BY_ADDRESS.burst)),
        ("| 20 | {} responses a second |", count(peer_limits.BY_KEY.per_second)),
        ("| 100 | {} responses a second |", count(peer_limits.BY_ADDRESS.per_second)),
        ("responses a second | after {} more |", count(peer_limits._MOST_DEBT)),
        ("The limiter remembers {} addresses", count(peer_limits._MOST_BUCKETS)),
        ("each with {} peers, against", count(test_hostile_peers.CONNECTIONS)),
        ("runs {} kinds of attack", count(len(test_hostile_peers.HOSTILE))),
        ("real process; {} kinds run over", count(len(test_hostile_peers.OVER_TLS))),
        ("grows by less than {} meanwhile", size(test_hostile_peers.AT_ONCE_BYTES)),
        ("comes back to within {}; after all", size(test_hostile_peers.COMES_BACK_BYTES)),
        ("it has kept less than {}.", size(test_hostile_peers.LEFT_BYTES)),
        (
            "served, it grows by less than {}.",
            size(test_hostile_peers.AT_ONCE_BYTES + test_hostile_peers.COMES_BACK_BYTES),
        ),
        ("In {} phases", count(len(test_hostile_peers.PHASES))),
        ("{} more attacks use a valid key", count(len(test_hostile_peers.KNOWN))),
        ("are confirmed within {} ms; run alone", count(int(hostile.GOAL_MS))),
        ("of its {} kinds", count(len(hostile_peers.KINDS))),
        ("makes {} guesses over", count(2 * sum(way.total for way in test_guessing_run.WAYS))),
        ("the console: {} are checked", count(2 * len(test_guessing_run.WAYS) * test_guessing_run.LOOKED_AT)),
        ("checked, {} for each name", count(test_guessing_run.LOOKED_AT)),
        ("opened ends within {}, and", seconds(test_revocation.WITHIN_S)),
        ("everything that it opened, within {}:", seconds(test_revocation.WITHIN_S)),
    ],
    "docs/explanation/reconciliation.md": [
        ("until it can: up to {} of them", size(outbox.MOST_BYTES)),
        ("at most {} in memory. It drops", count(LedgerSettings().most_waiting)),
        ("ledger is read from {} before the range", span(reconciliation.CLOCK_SLACK)),
        ("last {} minutes in which something happened", count(reconcile_events._LAST_MINUTES)),
        ("continues for more than {} |", span(LONGEST_SILENCE)),
        ("that the last {} of a running ledger", span(LONGEST_SILENCE)),
    ],
    "docs/explanation/scale.md": [
        ("no test machine holds: {} messages in", count(scale.MESSAGES)),
        ("messages in {} backlog queues, and", count(scale.QUEUES)),
        ("and {} executors with {} cores each", count(scale.EXECUTORS), count(scale.Scenario().cores)),
        ("removes a message in {} µs of one core", count(scale.PLAIN.secondary_us)),
        ("µs of one core, {} µs compiled", count(scale.COMPILED.secondary_us)),
        ("backlog takes at least {} hours", hours(scale.PLAIN.secondary_us)),
        ("hours, {} compiled, however many", hours(scale.COMPILED.secondary_us)),
        ("accepts a message in {} µs, {} µs compiled", count(scale.PLAIN.primary_us), count(scale.COMPILED.primary_us)),
        (
            "queues: {} hours at least, {} compiled",
            hours(scale.PLAIN.primary_us),
            hours(scale.COMPILED.primary_us),
        ),
        ("With the default of {} messages", count(scale.Scenario().batch_messages)),
        ("a group of {} messages with locks", count(scale.Scenario().group)),
        ("accepts {} connections, and", count(MOST_CONNECTIONS)),
        ("and {} links on each", count(LIMITS.max_links_per_connection)),
        ("so that {} executors of 4 cores", count(MOST_CONNECTIONS / scale.Scenario().cores)),
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
        ("larger than {} is charged for each", size(ledger_events.UNIT_BYTES)),
        ("With {} million operations included", {f"{STANDARD_CARD['operations']['tiers'][0]['up_to'] / 1_000_000:g}"}),
        ("Amounts have {} decimals", count(month.AMOUNT_DIGITS)),
        ("to a month of {} that has not", seconds(forecast.DAYS * 86_400)),
    ],
    "docs/how-to/capture-to-parquet.md": [
        ("as long as a lock lasts, {} at most", seconds(locks._DEFAULT_S)),
    ],
    "docs/how-to/connect.md": [
        ("default ports: {} for AMQP, {} for WebSockets", {str(endpoint._AMQPS_PORT)}, {str(endpoint._HTTPS_PORT)}),
        ("default ports: {} for AMQP, {} for WebSockets", {str(endpoint._AMQP_PORT)}, {str(endpoint._HTTP_PORT)}),
        ("a token of its own, good for {} or `time_to_live`", span(default(TokenProvider.from_key, "time_to_live"))),
        ("renewed when {} of their time have passed", share(authorization._RENEW_AT)),
    ],
    "docs/how-to/console.md": [
        ("A wrong key is rejected after {}.", seconds(routes.WRONG_KEY_DELAY_S)),
        ("after {} without activity", ms(auth.IDLE_MS)),
        ("without activity, after {}, when", ms(auth.MAX_SESSION_MS)),
        ("messages per second, over the last {}", ms(sampler._WINDOW_MS)),
        ("of a long body, the first {}", size(message_page.SHOWN_BYTES)),
        ("of more than {}, the rest is only counted", count(pair_page._MAX_ROWS)),
        ("has not reported for {} is removed", ms(reports.EXPIRES_MS)),
        ("for each backlog queue and over the last {}", ms(sampler.KEPT_MS)),
        ("with a point every {}, and so", ms(sampler.STEP_MS)),
    ],
    "docs/how-to/drill.md": [
        ("It waits for {}, or for `--timeout`", seconds(default(drill.drill, "timeout"))),
    ],
    "docs/how-to/everyday-commands.md": [
        ("lists them within {}", seconds(arguments._PATIENCE_S)),
    ],
    "docs/how-to/operate.md": [
        ("grows in steps of {} ahead of need", size(lmdb._STEP_BYTES)),
        ("in the store, up to {} of them", size(outbox.MOST_BYTES)),
        ("some {} more are kept in memory", count(LedgerSettings().most_waiting // 2)),
        ("If more than {} messages are in it then", count(LedgerSettings().most_waiting)),
        ("moved together, within {}", seconds(replayer.MERGE_BACKOFF.longest_s)),
        ("Clients wait for {} or more and try again", span(RetryPolicy().server_busy_backoff)),
        ("the event loop has used in the last {} |", seconds((gauges._KEPT - 1) * throttle._EVERY_S)),
        ("the median of the last {} |", seconds((gauges._KEPT - 1) * throttle._EVERY_S)),
        ("Facets are read {}", seconds(throttle._EVERY_S)),
        ("when it is {} better than that", share(1 - default(throttle.Facet, "relief"))),
    ],
    "docs/how-to/pair.md": [
        ("messages are diverted after an entity has failed for {},", span(PAIR["failover_interval"])),
        ("fails after `attempt_timeout`, {} by default", span(PAIR["attempt_timeout"])),
        ("waits at an empty queue ({};", span(SYPHON.long_poll)),
        ("the other is not within {}, that one is faulted", seconds(pair.PATIENCE_S)),
        ("near the limit of {} that would", size(route._HEADER_LIMIT_BYTES)),
    ],
    "docs/how-to/prove-that-nothing-was-lost.md": [
        ("messages that are listed: {} by default", count(LISTED)),
    ],
    "docs/how-to/read-and-write-with-spark.md": [
        ("are spread over up to {} tasks", count(consumption._FEW_TASKS)),
    ],
    "docs/how-to/receive.md": [
        ("before its lock expires ({}, unless", ms(QUEUE.lock_duration_ms)),
        ("After {} deliveries (`max_delivery_count`)", count(QUEUE.max_delivery_count)),
    ],
    "docs/how-to/send.md": [
        ("restarted or busy) until `operation_timeout`, {}", span(CLIENT.operation_timeout)),
    ],
    "docs/how-to/serve.md": [
        ("with less than {} left", span(certificate._RENEW_BEFORE)),
        ("authority is valid for {}", span(certificate._CA_LIFE)),
        ("a key of fewer than {} characters", count(serve._KEY_CHARACTERS)),
    ],
    "docs/how-to/sessions.md": [
        ("as long as that of a message ({}, unless", ms(QUEUE.lock_duration_ms)),
    ],
    "docs/how-to/syphon-on-spark.md": [
        ("messages were delivered; at most every {}", seconds(standalone._LINE_S)),
        ("did not answer within {};", seconds(standalone._ATTEMPT_S)),
        ("when their locks expire, in {}.", span(BACKLOG.lock_duration)),
    ],
    "docs/how-to/tokens.md": [
        ("RSA keys have at least {} bits", count(jwt._LEAST_RSA_BITS)),
        ("at most {} in the future", ms(jwt.LEEWAY_MS)),
        ("a URL every {}", seconds(jwt.REFRESH_S)),
        ("read again: a URL at most {}", seconds(jwt._URL_PAUSE_S)),
        ("at least {} apart", seconds(jwt._URL_PAUSE_S)),
        ("is limited to {}, and must arrive within {}", size(jwt.MAX_BYTES), seconds(jwt.TIMEOUT_S)),
        ("a file that has not ended after {} is abandoned", seconds(jwt._FILE_TIMEOUT_S)),
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
    "docs/migration/from-kafka.md": [
        ("deferred messages among the first {} of each entity", count(depths._MAX_PEEKED)),
        ("within `connect_timeout`, {} by default", span(connections.CONNECT_TIMEOUT)),
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
        ("`partition_key` | {} characters", count(client_encoding.LONGEST_ID)),
        ("an answer over HTTP | {} |", size(client_http.MAX_RESPONSE_BYTES)),
        ("of `receive` and `peek` | {} |", count(default(MessageReceiver.receive, "max_message_count"))),
        ("of `TokenProvider.from_key` | {} |", span(default(TokenProvider.from_key, "time_to_live"))),
    ],
    "docs/reference/http.md": [
        ("`SharedAccessAuthorizationRule`, of at most {}", size(call.MAX_BODY_BYTES)),
        ("the default is the first {}, and the maximum is {}", count(answers.DEFAULT_TOP), count(answers.MAX_TOP)),
    ],
    "docs/reference/ledger.md": [
        ("`pairbus.ledger.version`. It is {};", count(ledger_events.VERSION)),
        ("at most {} in memory) were reached", count(LedgerSettings().most_waiting)),
        ("| units of {}, each message", size(ledger_events.UNIT_BYTES)),
    ],
    "docs/reference/pairing.md": [
        ("or {} where the service refuses that", count(backlog.MOST_DELIVERIES)),
        ("allows only {} deliveries", count(backlog.MOST_DELIVERIES)),
        ("`events()` keeps {} events", count(events._MOST_EVENTS)),
        ("at once, but at most {}, when", seconds(reporter._SOON_S)),
        ("every {} while one is not healthy", seconds(reporter._RESTLESS_S)),
        ("else every {}.", seconds(report.HEARTBEAT_S)),
        ("is left alone for {} |", seconds(reporter._TROUBLED_S)),
        ("at most {}, {} entities,", size(report.MOST_BYTES), count(report.MOST_ENTITIES)),
        ("and {} switches", count(report.MOST_SWITCHES)),
        ("A report has {}, and", seconds(reporter._PATIENCE_S)),
        ("it has more than {} |", size(report.MOST_BYTES)),
        ("{} applications, or {} entities, are known", count(reports.MAX_APPLICATIONS), count(reports.MAX_ENTITIES)),
        ("and forgets it {} after it came", ms(reports.EXPIRES_MS)),
    ],
    "docs/reference/rules.md": [
        ("the default of `rule_units` is about {} milliseconds", count(STANDARD.rule_units // 1_000_000)),
        ("or a transaction | {} times `rule_units`, or", count(router.BATCH_BUDGETS)),
        ("have a budget together: {} times", count(router.BATCH_BUDGETS)),
        ("`rule_units`, or {} units for each message", count(router.BATCH_MESSAGE_UNITS)),
        ("message of a batch or a transaction | {} |", count(router.COPY_UNITS)),
        ("| a rule | {} |", count(rules._RULE_UNITS)),
        ("of an action that is applied | {} |", count(rules.EXPRESSION_UNITS)),
        ("property of a correlation filter | {} |", count(rules._PROPERTY_UNITS)),
        ("with a text between two `%` | {} for each character", count(operators._SEARCH_UNITS)),
        ("| a computed pattern | {}, and as many for each `%`", count(operators._COMPILE_UNITS)),
        (
            "`%`; {} for each `_`; {} for each",
            count(operators._COMPILE_ANY_UNITS),
            count(operators._COMPILE_CHARACTER_UNITS),
        ),
        ("a text of more than {} characters", count(evaluation.LONG_TEXT)),
        ("characters | 1 for {} characters", count(evaluation._COPIED_AT_ONCE)),
        ("and {} for each property", count(router._AMENDMENT_UNITS)),
    ],
    "docs/reference/wire.md": [
        ("nesting beyond {} levels, counts", count(decoder.MAX_DEPTH)),
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
