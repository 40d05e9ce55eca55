"""Settings: declared once, read from four sources, and none of them silently ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import PREMIUM, RELAXED, STANDARD
from pairbus.server.connection_limits import ConnectionLimits
from pairbus.server.settings import (
    SETTINGS,
    LogFormat,
    LogLevel,
    Settings,
    SettingsError,
    Tier,
    load_settings,
    settings_table,
)
from pairbus.store.lmdb import DEFAULT_MAX_BYTES

DATA = {"data": "there"}


def file_of(path: Path, text: str, name: str = "pairbus.toml") -> Path:
    file = path / name
    file.write_text(text, encoding="utf-8")
    return file


def refusal(options: dict[str, object], environment: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(options, environment or {}, file)
    return str(caught.value)


def test_defaults() -> None:
    settings = load_settings(DATA, {}, None)
    assert settings == Settings(data=Path("there"))
    assert (settings.name, settings.host, settings.port) == ("pairbus", "127.0.0.1", (5672,))
    assert (settings.tier, settings.log_level, settings.log_format) == (Tier.STANDARD, LogLevel.INFO, LogFormat.TEXT)
    assert settings.max_store_bytes == DEFAULT_MAX_BYTES


def test_precedence_is_option_variable_file_default(tmp_path: Path) -> None:
    file = file_of(tmp_path, 'data = "file"\nname = "file"\nhost = "file"\n')
    environment = {"PAIRBUS_SERVE_DATA": "variable", "PAIRBUS_SERVE_NAME": "variable"}
    settings = load_settings({"data": Path("option"), "host": None}, environment, file)
    assert (settings.data, settings.name, settings.host) == (Path("option"), "variable", "file")
    assert settings.port == (5672,)


def test_every_setting_can_be_set_in_every_source(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "data": "d", "name": "n", "host": "h", "port": [1, 2], "tls_cert": "c", "tls_key": "k", "tier": "premium",
        "key_name": "kn", "key": "secret", "jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": "j",
        "jwt_refresh_s": 90.0,
        "allow_any_jwt": True, "idle_timeout_s": 5, "drain_s": 0.5, "max_connections": 9,
        "max_connections_per_address": 4, "max_token_minutes": 60, "max_store_gb": 7,
        "max_sessions_per_connection": 15, "max_links_per_connection": 16, "max_tokens_per_connection": 17,
        "max_rules_per_subscription": 18, "rule_budget_ms": 19, "max_duplicate_ids_in_memory": 20,
        "unproven_connection_bytes": 5_000, "unproven_received_bytes": 6_000, "unproven_total_bytes": 7_000,
        "handshake_timeout_s": 1.5, "token_timeout_s": 2.5, "http_request_timeout_s": 3.5, "http_send_timeout_s": 4.5,
        "throttle_store_percent": 90.5, "throttle_disk_mb": 11, "throttle_memory_mb": 12,
        "throttle_processor_percent": 80.0, "throttle_delay_ms": 13, "side_buffer": "s", "side_buffer_mb": 14,
            "storage_timeout_s": 5.5,
        "log_level": "debug", "log_format": "json", "open_metrics": True, "ledger": "l", "ledger_lives": True,
        "console": False, "trace_frames": True, "trace_frames_of": ["app-*", "10.0.0.*"], "audit_log": False,
        "audit_log_mb": 21, "audit_log_files": 22, "connection_file": "f", "max_entity_metrics": 23,
        "allow_faults": True, "scrub_days": 1.5, "blocked_exit_s": 30.5,
    }  # fmt: skip
    assert values.keys() == SETTINGS.keys()
    by_option = load_settings(values, {}, None)
    variables = {SETTINGS[name].variable: text_of(value) for name, value in values.items()}
    lines = "".join(f"{name} = {toml_of(value)}\n" for name, value in values.items())
    assert load_settings({}, variables, None) == by_option
    assert load_settings({}, {}, file_of(tmp_path, lines)) == by_option
    assert by_option.port == (1, 2)
    assert by_option.tier is Tier.PREMIUM


def text_of(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def toml_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize(
    ("tier", "limits"), [("standard", STANDARD), ("premium", PREMIUM), ("relaxed", RELAXED)], ids=list(Tier)
)
def test_tier_chooses_the_limits(tier: str, limits: object) -> None:
    assert load_settings({**DATA, "tier": tier}, {}, None).limits == limits


def test_limits_of_rules_and_duplicates_are_settings() -> None:
    chosen = {"max_rules_per_subscription": 5, "rule_budget_ms": 7, "max_duplicate_ids_in_memory": 9}
    limits = load_settings({**DATA, "tier": "relaxed", **chosen}, {}, None).limits
    assert (limits.rules_per_subscription, limits.rule_units, limits.duplicate_ids_in_memory) == (5, 7_000_000, 9)
    assert limits.message_bytes == RELAXED.message_bytes


def test_limits_of_connections_are_settings() -> None:
    assert load_settings(DATA, {}, None).connection_limits == ConnectionLimits()
    limits = load_settings({**DATA, "max_links_per_connection": 3, "token_timeout_s": 0.5}, {}, None).connection_limits
    assert limits == ConnectionLimits(max_links_per_connection=3, token_timeout_s=0.5)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_sessions_per_connection", 0, "max_sessions_per_connection must be between 1 and 65536, got 0"),
        ("max_sessions_per_connection", 65_537, "must be between 1 and 65536, got 65537"),
        ("max_links_per_connection", 0, "must be between 1 and 1000000, got 0"),
        ("max_tokens_per_connection", 0, "must be between 1 and 1000000, got 0"),
        ("max_rules_per_subscription", -1, "must be between 0 and 1000000, got -1"),
        ("rule_budget_ms", 0, "must be between 1 and 10000, got 0"),
        ("max_duplicate_ids_in_memory", 0, "must be between 1 and 100000000, got 0"),
        ("unproven_connection_bytes", 4_095, "must be between 4096 and 16777216, got 4095"),
        ("unproven_received_bytes", 1, "must be between 4096 and 1073741824, got 1"),
        (
            "unproven_total_bytes",
            65_535,
            "unproven_total_bytes must be >= unproven_connection_bytes (65536), got 65535",
        ),
        ("handshake_timeout_s", 0.0, "must be between 0.1 and 3600, got 0.0"),
        ("token_timeout_s", 3_601.0, "must be between 0.1 and 3600, got 3601.0"),
        ("http_request_timeout_s", -1.0, "must be between 0.1 and 3600, got -1.0"),
        ("http_send_timeout_s", 0.0, "must be between 0.1 and 3600, got 0.0"),
        ("audit_log_mb", 0, "must be between 1 and 10000, got 0"),
        ("audit_log_files", 0, "must be between 1 and 1000, got 0"),
        ("max_entity_metrics", -1, "must be between 0 and 1000000, got -1"),
        ("trace_frames_of", ("app-*",), "trace_frames_of needs trace_frames"),
    ],
)
def test_limit_that_is_out_of_range_is_refused(name: str, value: object, said: str) -> None:
    assert said in refusal({**DATA, name: value})


def test_one_port_needs_no_list(tmp_path: Path) -> None:
    assert load_settings(DATA, {}, file_of(tmp_path, "port = 0\n")).port == (0,)
    assert load_settings(DATA, {"PAIRBUS_SERVE_PORT": "7"}, None).port == (7,)


def test_whole_number_is_accepted_as_a_number(tmp_path: Path) -> None:
    assert load_settings(DATA, {}, file_of(tmp_path, "drain_s = 3\n")).drain_s == 3.0


def test_empty_variable_is_unset() -> None:
    assert load_settings(DATA, {"PAIRBUS_SERVE_KEY": "", "OTHER": "x"}, None).key is None


def test_variable_can_name_the_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, 'name = "from-the-file"\n')
    assert load_settings(DATA, {"PAIRBUS_SERVE_CONFIG": str(file)}, None).name == "from-the-file"


def test_key_is_not_shown() -> None:
    assert "sesame" not in repr(load_settings({**DATA, "key": "sesame"}, {}, None))


def test_file_declares_entities(tmp_path: Path) -> None:
    settings = load_settings(DATA, {}, file_of(tmp_path, '[[queues]]\nname = "orders"\nlock_duration = "30s"\n'))
    (queue,) = settings.entities.queues
    assert (queue.name, queue.description.lock_duration_ms) == ("orders", 30_000)


def test_emulator_file_is_accepted(tmp_path: Path) -> None:
    text = '{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "q"}]}]}}'
    for name in ("Config.json", "config"):
        settings = load_settings(DATA, {}, file_of(tmp_path, "\ufeff" + text, name))
        assert settings.name == "sbemulatorns"
        assert [queue.name for queue in settings.entities.queues] == ["q"]
    assert load_settings({**DATA, "name": "mine"}, {}, tmp_path / "Config.json").name == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "has an unknown key 'prot'; did you mean 'port'?"),
        ("log-level = 'info'", "did you mean 'log_level'?"),
        ("[[queue]]", "did you mean 'queues'?"),
        ("zzz = 1", "known are"),
        ("port = 'x'", "port must be a whole number, got 'x'"),
        ("port = true", "must be a whole number, got True"),
        ("port = []", "port must be "),
        ("port = 65536", "between 0 and 65535"),
        ("allow_any_jwt = 1", "must be true or false, got 1"),
        ("tier = 'gold'", "must be one of standard, premium, relaxed"),
        ("key = 7", "key must be a text, got another type"),
        ("host = ''", "host is empty"),
        ("name = 'two words'", "letters, digits and hyphens"),
        ("tls_cert = 'c.pem'", "tls_cert and tls_key must be set together"),
        ("idle_timeout_s = 0", "idle_timeout_s must be >= 1, got 0"),
        ("drain_s = -1", "drain_s must be >= 0, got -1"),
        ("max_store_gb = 0", "max_store_gb must be >= 1, got 0"),
        ("max_connections = 0", "max_connections must be >= 1, got 0"),
        ("[[queues]]\nname = 'q'\nlock_duraton = 5", "queue 'q' has an unknown key 'lock_duraton'; did you mean"),
        ("this is no TOML", "pairbus.toml: "),
    ],
)
def test_invalid_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal({"data": "d"}, {}, file_of(tmp_path, text))


def test_error_in_the_file_names_the_file(tmp_path: Path) -> None:
    for text in ("prot = 1", "port = 'x'", "[[queues]]", "="):
        file = file_of(tmp_path, text)
        assert str(file) in refusal({"data": "d"}, {}, file)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("PAIRBUS_SERVE_PROT", "1", "the variable PAIRBUS_SERVE_PROT; did you mean 'PAIRBUS_SERVE_PORT'?"),
        ("PAIRBUS_SERVE_PORT", "1,x", "the variable PAIRBUS_SERVE_PORT must be a whole number, got 'x'"),
        (
            "PAIRBUS_SERVE_ALLOW_ANY_JWT",
            "perhaps",
            "PAIRBUS_SERVE_ALLOW_ANY_JWT must be true or false, got 'perhaps'",
        ),
        ("PAIRBUS_SERVE_DRAIN_S", "long", "must be a number, got 'long'"),
        ("PAIRBUS_SERVE_CONFIG", "nowhere.toml", "nowhere.toml cannot be read"),
    ],
)
def test_invalid_variable_is_refused(variable: str, text: str, said: str) -> None:
    assert said in refusal({"data": "d"}, {variable: text})


def test_invalid_option_is_refused() -> None:
    assert refusal({"data": "d", "prot": 1}) == "there is no option 'prot'; did you mean 'port'?"
    assert refusal({"data": "d", "idle_timeout_s": "x"}).startswith("--idle-timeout-s must be a whole number, got 'x'")


def test_missing_data_directory_is_refused() -> None:
    assert "--data, PAIRBUS_SERVE_DATA" in refusal({})


def test_secret_is_not_repeated_in_an_error(tmp_path: Path) -> None:
    assert "12345" not in refusal({"data": "d"}, {}, file_of(tmp_path, "key = 12345"))


def test_table_has_every_setting() -> None:
    table = settings_table()
    for setting in SETTINGS.values():
        assert f"| `{setting.name}` |" in table
        assert setting.summary in table
