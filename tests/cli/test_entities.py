"""`pairbus entities`: queues, topics and subscriptions, from the command line."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pairbus.blocking import NamespaceManager
from pairbus.broker import Right
from pairbus.cli.entity_settings import SETTINGS, has_setting
from pairbus.client.management.descriptions import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.client.management.rules import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
)
from tests.cli.everyday import CommandFixture
from tests.cli.test_cli import PAIRBUS, PATIENCE_S
from tests.cli.test_pair import with_key


def new_name() -> str:
    return f"new-{uuid4().hex[:8]}"


def reported(desk: CommandFixture, *arguments: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(desk.spoken("entities", *arguments, "--json"))
    return document


def manager(desk: CommandFixture) -> NamespaceManager:
    return NamespaceManager.from_connection_string(desk.namespace.connection_string)


# List and show.


def test_list_shows_counts(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two")
    desk.spoken("receive", queue, "--dead-letter")
    rows = [line.split("\t") for line in desk.spoken("entities", "list").splitlines()]
    assert rows[0] == ["entity", "kind", "status", "active", "dead letters", "scheduled", "transfer", "bytes"]
    (row,) = (row for row in rows if row[0] == queue)
    assert row[1:6] == ["queue", "Active", "1", "1", "0"]
    assert ["events/Subscriptions/audit", "subscription", "Active"] in [row[:3] for row in rows]
    assert ["events", "topic", "Active"] in [row[:3] for row in rows]


def test_list_as_json(desk: CommandFixture) -> None:
    queue = desk.queue(max_delivery_count=7)
    listed = reported(desk, "list")
    assert {*listed} == {"queues", "topics", "subscriptions"}
    (found,) = (one for one in listed["queues"] if one["path"] == queue)
    assert (found["max_delivery_count"], found["active_message_count"], found["status"]) == (7, 0, "Active")
    assert [one["path"] for one in listed["subscriptions"]] == ["events/Subscriptions/audit"]


@pytest.mark.parametrize(
    ("path", "kind"), [("events", "topic"), ("events/Subscriptions/audit", "subscription"), ("EVENTS", "topic")]
)
def test_show_prints_an_entity_of_any_kind(desk: CommandFixture, path: str, kind: str) -> None:
    assert f"kind: {kind}\n" in desk.spoken("entities", "show", path)
    assert reported(desk, "show", path)["kind"] == kind


def test_show_names_the_option_of_each_setting(desk: CommandFixture) -> None:
    queue = desk.queue(default_message_time_to_live=timedelta(days=14))
    lines = desk.spoken("entities", "show", queue).splitlines()
    assert "default_message_time_to_live: 14d  (--ttl)" in lines
    assert "requires_duplicate_detection: False  (--detect-duplicates)" in lines
    assert "active_message_count: 0" in lines


def test_show_prints_unset_settings(desk: CommandFixture) -> None:
    queue = desk.queue()
    assert "forward_to: not set  (--forward-to)" in desk.spoken("entities", "show", queue).splitlines()
    assert reported(desk, "show", queue)["forward_to"] is None


RULES = [
    (
        RuleDescription("$Default"),
        "all messages",
        {"type": "TrueFilter"},
    ),
    (
        RuleDescription("none", filter=FalseFilter()),
        "no messages",
        {"type": "FalseFilter"},
    ),
    (
        RuleDescription(
            "large",
            filter=SqlFilter("quantity > @least AND colour = 'red'", {"@least": 10}),
            action=SqlRuleAction("SET priority = @high", {"@high": True}),
        ),
        "quantity > @least AND colour = 'red' (@least = 10)",
        {
            "type": "SqlFilter",
            "expression": "quantity > @least AND colour = 'red'",
            "parameters": {"@least": 10},
        },
    ),
    (
        RuleDescription("paid", filter=CorrelationFilter(label="it's paid", reply_to="till", properties={"table": 4})),
        "sys.ReplyTo = 'till' AND sys.Label = 'it''s paid' AND table = 4",
        {"type": "CorrelationFilter", "label": "it's paid", "reply_to": "till", "properties": {"table": 4}},
    ),
]


def test_show_prints_the_rules_of_a_subscription(desk: CommandFixture) -> None:
    name = new_name()
    path = f"events/Subscriptions/{name}"
    with manager(desk) as namespace:
        namespace.create_subscription("events", name)
        for rule, _, _ in RULES[1:]:
            namespace.create_rule("events", name, rule)
    lines = desk.spoken("entities", "show", path).splitlines()
    for rule, text, _ in RULES:
        assert f"rule {rule.name} filter: {text}" in lines
    assert [line for line in lines if " action: " in line] == ["rule large action: SET priority = @high (@high = true)"]
    shown = reported(desk, "show", path)["rules"]
    assert [(rule["name"], rule["filter"]) for rule in shown] == [(rule.name, plain) for rule, _, plain in RULES]
    assert [rule["action"] for rule in shown if rule["action"] is not None] == [
        {"type": "SqlRuleAction", "expression": "SET priority = @high", "parameters": {"@high": True}}
    ]
    assert "rules" not in reported(desk, "show", "events")
    desk.spoken("entities", "delete", path, "--yes")


# Create and update.

OPTIONS: dict[str, list[str]] = {
    "lock_duration": ["--lock-duration", "30s"],
    "max_delivery_count": ["--max-delivery-count", "7"],
    "default_message_time_to_live": ["--ttl", "14d"],
    "enable_dead_lettering_on_message_expiration": ["--dead-letter-expired"],
    "requires_session": ["--sessions"],
    "requires_duplicate_detection": ["--detect-duplicates"],
    "duplicate_detection_history_time_window": ["--duplicate-window", "1h"],
    "max_size_in_megabytes": ["--max-size-mb", "2048"],
    "max_message_size_in_kilobytes": ["--max-message-kb", "256"],
    "enable_partitioning": ["--no-partitioned"],
    "forward_to": ["--forward-to", "events"],
    "forward_dead_lettered_messages_to": ["--forward-dead-letters-to", "events"],
    "auto_delete_on_idle": ["--auto-delete-on-idle", "never"],
    "status": ["--status", "disabled"],
    "user_metadata": ["--metadata", "of the kitchen"],
}
SHOWN = {
    "lock_duration": "30s",
    "max_delivery_count": 7,
    "default_message_time_to_live": "14d",
    "enable_dead_lettering_on_message_expiration": True,
    "requires_session": True,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": "1h",
    "max_size_in_megabytes": 2048,
    "max_message_size_in_kilobytes": 256,
    "enable_partitioning": False,
    "forward_to": "events",
    "forward_dead_lettered_messages_to": "events",
    "auto_delete_on_idle": "never",
    "status": "Disabled",
    "user_metadata": "of the kitchen",
}


def test_every_setting_has_a_test_value() -> None:
    assert OPTIONS.keys() == SHOWN.keys() == {setting.field for setting in SETTINGS.values()}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", [QueueDescription, TopicDescription, SubscriptionDescription])
def test_create_accepts_every_setting_of_each_kind(desk: CommandFixture, kind: Any, setting: Any) -> None:
    path = f"events/Subscriptions/{new_name()}" if kind is SubscriptionDescription else new_name()
    is_topic = ["--topic"] if kind is TopicDescription else []
    arguments = ("create", path, *is_topic, *OPTIONS[setting.field], "--json")
    done = desk.run("entities", *arguments)
    if not has_setting(kind, setting):
        assert done.code == 2
        assert f"{setting.option} does not apply to a " in done.reason
        return
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout)[setting.field] == SHOWN[setting.field]
    desk.spoken("entities", "delete", path, "--yes")


def test_create_and_update_print_one_line(desk: CommandFixture) -> None:
    queue = new_name()
    assert desk.spoken("entities", "create", queue) == f"queue '{queue}' created\n"
    again = desk.spoken("entities", "create", queue, "--exist-ok", "--ttl", "1d")
    assert again == f"queue '{queue}' already exists, unchanged\n"
    assert desk.spoken("entities", "update", queue, "--ttl", "1d") == f"queue '{queue}' updated\n"


def test_update_changes_given_settings_only(desk: CommandFixture) -> None:
    queue = desk.queue(max_delivery_count=7)
    changed = reported(desk, "update", queue, "--status", "SendDisabled", "--lock-duration", "20s")
    assert (changed["status"], changed["lock_duration"], changed["max_delivery_count"]) == ("SendDisabled", "20s", 7)
    assert desk.run("send", queue, "--body", "x").code == 1
    with manager(desk) as namespace:
        assert namespace.get_queue(queue).status is EntityStatus.SEND_DISABLED


@pytest.mark.parametrize("path", ["events", "events/Subscriptions/audit"])
def test_update_works_for_topics_and_subscriptions(desk: CommandFixture, path: str) -> None:
    assert reported(desk, "update", path, "--metadata", "x")["user_metadata"] == "x"


def test_create_subscription_with_filter(desk: CommandFixture) -> None:
    name = new_name()
    desk.spoken("entities", "create", f"events/Subscriptions/{name}", "--filter", "sys.label = 'paid'")
    with manager(desk) as namespace:
        (rule,) = namespace.get_rules("events", name)
    assert isinstance(rule.filter, SqlFilter)
    assert rule.filter.expression == "sys.label = 'paid'"
    desk.spoken("entities", "delete", f"events/Subscriptions/{name}", "--yes")


def test_create_of_existing_entity_fails_without_exist_ok(desk: CommandFixture) -> None:
    queue = desk.queue(max_delivery_count=7)
    done = desk.run("entities", "create", queue)
    assert done.code == 1
    assert "--exist-ok" in done.reason
    assert reported(desk, "create", queue, "--exist-ok")["max_delivery_count"] == 7


@pytest.mark.parametrize("kind", ["queue", "topic", "subscription"])
def test_delete_requires_yes_when_not_interactive(desk: CommandFixture, kind: str) -> None:
    path = f"events/Subscriptions/{new_name()}" if kind == "subscription" else new_name()
    desk.spoken("entities", "create", path, *(["--topic"] if kind == "topic" else []))
    refused = desk.run("entities", "delete", path)
    assert refused.code == 2
    assert f"add --yes to delete the {kind} '{path}'" in refused.reason
    assert desk.spoken("entities", "delete", path, "--yes") == f"{kind} '{path}' deleted\n"
    assert desk.run("entities", "show", path).code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "code", "reported"),
    [
        (b"y\n", 0, b"deleted"),
        (b"n\n", 1, b"pairbus: nothing was deleted"),
        (b"\x04", 1, b"pairbus: nothing was deleted"),
        (signal.SIGINT, 130, b"pairbus: stopped: nothing was deleted"),
    ],
    ids=["yes", "no", "Ctrl-D", "Ctrl-C"],
)
def test_delete_asks_for_confirmation_in_a_terminal(
    desk: CommandFixture, answer: bytes | signal.Signals, code: int, reported: bytes
) -> None:
    queue = desk.queue()
    desk.send(queue, "one")
    ours, theirs = pty.openpty()
    command = [*PAIRBUS, "entities", "delete", queue]
    with subprocess.Popen(
        command, env=desk.environment, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            assert process.stdout is not None
            said = b""
            while b"?" not in said:
                said += os.read(process.stdout.fileno(), 4_096)
            if isinstance(answer, bytes):
                os.write(ours, answer)
            else:
                process.send_signal(answer)
            said += process.communicate(timeout=PATIENCE_S)[0]
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)
    assert f"Delete the queue '{queue}' with its 1 message?".encode() in said
    assert (process.returncode, reported in said, b"Abort" in said) == (code, True, False)
    assert desk.run("entities", "show", queue).code == (0 if code else 1)


def listed_in_terminal(desk: CommandFixture, columns: int) -> str:
    ours, theirs = pty.openpty()
    environment = desk.environment | {"TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen([*PAIRBUS, "entities", "list"], env=environment, stdout=theirs) as process:
        os.close(theirs)
        shown = ""
        try:
            with suppress(OSError):  # a terminal reports its end as an error
                while part := os.read(ours, 4096):
                    shown += part.decode(errors="replace")
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


@pytest.mark.slow
def test_list_in_a_terminal_is_a_table(desk: CommandFixture) -> None:
    queue = desk.queue()
    wide = listed_in_terminal(desk, 200)
    assert re.search(rf"│ {queue} +│ queue +│ Active +│ +0 │ +0 │ +0 │ +0 │ +\d+ │", wide)
    assert "too narrow" not in wide
    narrow = listed_in_terminal(desk, 78)
    assert re.search(rf"│ {queue} +│ queue +│ Active +│ +0 │ +0 │\r\n", narrow)
    assert "hidden columns: scheduled, transfer, bytes (the terminal is too narrow" in narrow


# Errors.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "x/$DeadLetterQueue"), "is a dead-letter queue and cannot be managed"),
        (("create", "a/Subscriptions/b", "--topic"), "remove --topic"),
        (("create", "x", "--filter", "1 = 1"), "--filter applies to subscriptions only"),
        (("create", "x", "--lock-duration", "long"), "--lock-duration must be a number and a unit"),
        (("create", "x", "--status", "asleep"), "--status must be one of active, disabled,"),
        (("create", "x", "--max-delivery-count", "-1"), "--max-delivery-count must be >= 0, got -1"),
        (("update", "events", "--sessions"), "--sessions can only be set when an entity is created"),
        (("update", "events", "--no-partitioned"), "--partitioned can only be set when an entity is created"),
        (("create", "x*"), "must not contain '*'"),
        (("update", "events"), "no setting to update"),
        (("update", "events", "--lock-duration", "1m"), "--lock-duration does not apply to a topic"),
        (("create", "bad name!!"), "'bad name!!' has the character ' ' at position 4; the name of a queue or topic"),
        (("create", "\xe4\xf6\xfc"), "'\xe4\xf6\xfc' has the character '\xe4' at position 1"),
        (("create", "x" * 300), "the name has 300 characters; at most 260 are allowed"),
        (("create", "events/Subscriptions/a~b"), "'a~b' has the character '~' at position 2"),
        (("create", "a#b"), "must not contain '#'"),
        (("create", "x", "--lock-duration", "10m"), "--lock-duration must be from 5s to 5m, got 10m"),
        (("create", "x", "--ttl", "0s"), "--ttl must be at least 1s, got 0s"),
        (("create", "x", "--max-size-mb", "3"), "--max-size-mb must be one of 1024, 2048"),
        (("create", "x", "--max-message-kb", "999"), "--max-message-kb must be from 1 to 256, got 999"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_2(
    desk: CommandFixture, arguments: tuple[str, ...], said: str
) -> None:
    done = desk.run("entities", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.reason


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nowhere"), "there is no queue or topic 'nowhere'"),
        (("show", "events/Subscriptions/nobody"), "there is no subscription 'events/subscriptions/nobody'"),
        (("delete", "nowhere", "--yes"), "there is no queue or topic 'nowhere'"),
        (("create", "nowhere/Subscriptions/x"), "there is no topic 'nowhere'; create it with"),
        (("create", "events"), "'events' is a topic, not a queue"),
        (("create", "events", "--exist-ok"), "'events' is a topic, not a queue"),
    ],
)
def test_rejection_by_the_namespace_prints_one_line_and_exits_with_1(
    desk: CommandFixture, arguments: tuple[str, ...], said: str
) -> None:
    done = desk.run("entities", *arguments)
    assert (done.code, done.stdout) == (1, "")
    assert said in done.reason.lower()


def test_fixed_setting_is_hidden_in_the_help_of_update(desk: CommandFixture) -> None:
    assert "--sessions" in desk.spoken("entities", "create", "--help")
    assert "--sessions" not in desk.spoken("entities", "update", "--help")


def test_exist_ok_fails_for_another_kind_of_entity(desk: CommandFixture) -> None:
    queue = desk.queue()
    done = desk.run("entities", "create", queue, "--topic", "--exist-ok")
    assert (done.code, done.stdout, done.reason) == (1, "", f"pairbus: '{queue}' is a queue, not a topic")


def test_key_without_manage_exits_with_1_and_is_not_printed(desk: CommandFixture) -> None:
    text = with_key(desk.namespace, Right.LISTEN)
    done = desk.run("entities", "list", "--connection", text)
    assert done.code == 1
    assert text.partition("SharedAccessKey=")[2].partition(";")[0] not in done.reason
    assert "Manage" in done.reason
