"""Settings: declared once, found in four places, and none of them silently ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import PREMIUM, RELAXED, STANDARD
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


def test_the_defaults() -> None:
    settings = load_settings(DATA, {}, None)
    assert settings == Settings(data=Path("there"))
    assert (settings.name, settings.host, settings.port) == ("pairbus", "127.0.0.1", (5672,))
    assert (settings.tier, settings.log_level, settings.log_format) == (Tier.STANDARD, LogLevel.INFO, LogFormat.TEXT)
    assert settings.max_store_bytes == DEFAULT_MAX_BYTES


def test_an_option_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = file_of(tmp_path, 'data = "file"\nname = "file"\nhost = "file"\n')
    environment = {"PAIRBUS_SERVE_DATA": "variable", "PAIRBUS_SERVE_NAME": "variable"}
    settings = load_settings({"data": Path("option"), "host": None}, environment, file)
    assert (settings.data, settings.name, settings.host) == (Path("option"), "variable", "file")
    assert settings.port == (5672,)


def test_everything_can_be_said_in_every_place(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "data": "d", "name": "n", "host": "h", "port": [1, 2], "tls_cert": "c", "tls_key": "k", "tier": "premium",
        "key_name": "kn", "key": "secret", "jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": "j",
        "allow_any_jwt": True, "idle_timeout_s": 5, "drain_s": 0.5, "max_connections": 9,
        "max_connections_per_address": 4, "max_token_minutes": 60, "max_store_gb": 7,
        "throttle_store_percent": 90.5, "throttle_disk_mb": 11, "throttle_memory_mb": 12,
        "throttle_processor_percent": 80.0, "throttle_delay_ms": 13, "side_buffer": "s", "side_buffer_mb": 14,
        "log_level": "debug", "log_format": "json", "open_metrics": True, "ledger": "l", "ledger_lives": True,
        "console": False,
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
def test_the_tier_chooses_the_limits(tier: str, limits: object) -> None:
    assert load_settings({**DATA, "tier": tier}, {}, None).limits is limits


def test_one_port_needs_no_list(tmp_path: Path) -> None:
    assert load_settings(DATA, {}, file_of(tmp_path, "port = 0\n")).port == (0,)
    assert load_settings(DATA, {"PAIRBUS_SERVE_PORT": "7"}, None).port == (7,)


def test_a_whole_number_will_do_where_a_number_is_asked_for(tmp_path: Path) -> None:
    assert load_settings(DATA, {}, file_of(tmp_path, "drain_s = 3\n")).drain_s == 3.0


def test_a_variable_that_is_empty_is_not_given() -> None:
    assert load_settings(DATA, {"PAIRBUS_SERVE_KEY": "", "OTHER": "x"}, None).key is None


def test_a_variable_can_name_the_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, 'name = "from-the-file"\n')
    assert load_settings(DATA, {"PAIRBUS_SERVE_CONFIG": str(file)}, None).name == "from-the-file"


def test_the_key_is_not_shown() -> None:
    assert "sesame" not in repr(load_settings({**DATA, "key": "sesame"}, {}, None))


def test_the_file_declares_entities(tmp_path: Path) -> None:
    settings = load_settings(DATA, {}, file_of(tmp_path, '[[queues]]\nname = "orders"\nlock_duration = "30s"\n'))
    (queue,) = settings.entities.queues
    assert (queue.name, queue.description.lock_duration_ms) == ("orders", 30_000)


def test_the_file_may_be_the_emulators(tmp_path: Path) -> None:
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
        ("port = 'x'", "port is 'x'; it has to be a whole number"),
        ("port = true", "it has to be a whole number"),
        ("port = []", "port is "),
        ("port = 65536", "0 to 65535"),
        ("allow_any_jwt = 1", "it has to be true or false"),
        ("tier = 'gold'", "possible are standard, premium, relaxed"),
        ("key = 7", "key is of another kind; it has to be a text"),
        ("host = ''", "host is empty"),
        ("name = 'two words'", "letters, digits and hyphens"),
        ("tls_cert = 'c.pem'", "tls_cert and tls_key belong together"),
        ("idle_timeout_s = 0", "idle_timeout_s is 0"),
        ("drain_s = -1", "drain_s is -1"),
        ("max_store_gb = 0", "max_store_gb is 0"),
        ("max_connections = 0", "max_connections is 0"),
        ("[[queues]]\nname = 'q'\nlock_duraton = 5", "queue 'q' has an unknown key 'lock_duraton'; did you mean"),
        ("this is no TOML", "pairbus.toml: "),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal({"data": "d"}, {}, file_of(tmp_path, text))


def test_a_fault_in_the_file_names_the_file(tmp_path: Path) -> None:
    for text in ("prot = 1", "port = 'x'", "[[queues]]", "="):
        file = file_of(tmp_path, text)
        assert str(file) in refusal({"data": "d"}, {}, file)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("PAIRBUS_SERVE_PROT", "1", "the variable PAIRBUS_SERVE_PROT; did you mean 'PAIRBUS_SERVE_PORT'?"),
        ("PAIRBUS_SERVE_PORT", "1,x", "the variable PAIRBUS_SERVE_PORT is 'x'; it has to be a whole number"),
        (
            "PAIRBUS_SERVE_ALLOW_ANY_JWT",
            "perhaps",
            "PAIRBUS_SERVE_ALLOW_ANY_JWT is 'perhaps'; it has to be true or false",
        ),
        ("PAIRBUS_SERVE_DRAIN_S", "long", "it has to be a number"),
        ("PAIRBUS_SERVE_CONFIG", "nowhere.toml", "nowhere.toml cannot be read"),
    ],
)
def test_a_variable_that_is_wrong_is_refused(variable: str, text: str, said: str) -> None:
    assert said in refusal({"data": "d"}, {variable: text})


def test_an_option_that_is_wrong_is_refused() -> None:
    assert refusal({"data": "d", "prot": 1}) == "there is no option 'prot'; did you mean 'port'?"
    assert refusal({"data": "d", "idle_timeout_s": "x"}).startswith("--idle-timeout-s is 'x'")


def test_a_data_directory_has_to_be_named() -> None:
    assert "--data, PAIRBUS_SERVE_DATA" in refusal({})


def test_a_secret_is_not_repeated_in_an_error(tmp_path: Path) -> None:
    assert "12345" not in refusal({"data": "d"}, {}, file_of(tmp_path, "key = 12345"))


def test_the_table_has_every_setting() -> None:
    table = settings_table()
    for setting in SETTINGS.values():
        assert f"| `{setting.name}` |" in table
        assert setting.summary in table
