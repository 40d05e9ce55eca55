"""What can be set for a factory."""

from __future__ import annotations

import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest

from pairbus.client.retry import RetryPolicy
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.store.certificate import open_certificate


def test_the_settings_are_those_that_the_page_names() -> None:
    settings = MessagingFactorySettings()
    assert settings.operation_timeout == timedelta(minutes=1)
    assert settings.attempt_timeout == timedelta(seconds=15)
    assert settings.idle_timeout == timedelta(minutes=1)
    assert settings.retry_policy == RetryPolicy()
    assert settings.transport is Transport.TCP


@pytest.mark.parametrize("name", ["operation_timeout", "attempt_timeout", "idle_timeout"])
@pytest.mark.parametrize("length", [timedelta(), timedelta(seconds=-1)])
def test_e4_a_time_out_is_above_zero(name: str, length: timedelta) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; it must be above zero"):
        MessagingFactorySettings(**{name: length})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["operation_timeout", "attempt_timeout", "idle_timeout"])
def test_e4_a_time_out_is_no_longer_than_amqp_can_say(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 50 days.* at most 24 days"):
        MessagingFactorySettings(**{name: timedelta(days=50)})  # type: ignore[arg-type]


def test_settings_cannot_be_changed_under_a_factory() -> None:
    with pytest.raises(AttributeError):
        MessagingFactorySettings().transport = Transport.WEB_SOCKET  # type: ignore[misc]


def test_certificates_are_checked_unless_a_context_says_otherwise(tmp_path: Path) -> None:
    context = MessagingFactorySettings().tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    own = ssl.create_default_context()
    assert MessagingFactorySettings(ssl_context=own, ca_file=tmp_path / "none").tls_context() is own


def test_an_authority_that_is_named_is_trusted_and_no_other(tmp_path: Path) -> None:
    authority = open_certificate(tmp_path, (), time.time_ns() // 1_000_000).ca_file
    for ca_file in (authority, str(authority)):
        trusted = MessagingFactorySettings(ca_file=ca_file).tls_context().get_ca_certs()
        assert len(trusted) == 1


def test_e4_an_authority_that_cannot_be_read_is_told_by_name(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    for ca_file in (tmp_path / "missing.pem", garbage):
        with pytest.raises(ValueError, match=ca_file.name):
            MessagingFactorySettings(ca_file=ca_file).tls_context()
