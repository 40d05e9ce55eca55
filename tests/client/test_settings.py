"""The settings of a factory."""

from __future__ import annotations

import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest

from pairbus.client.settings import MessagingFactorySettings, RetryPolicy, Transport
from pairbus.store.certificate import open_certificate


def test_settings_match_reference_page() -> None:
    settings = MessagingFactorySettings()
    assert settings.operation_timeout == timedelta(minutes=1)
    assert settings.attempt_timeout == timedelta(seconds=15)
    assert settings.idle_timeout == timedelta(minutes=1)
    assert settings.retry_policy == RetryPolicy()
    assert settings.transport is Transport.TCP


@pytest.mark.parametrize("name", ["operation_timeout", "attempt_timeout", "idle_timeout"])
@pytest.mark.parametrize("length", [timedelta(), timedelta(seconds=-1)])
def test_e4_timeout_must_be_positive(name: str, length: timedelta) -> None:
    with pytest.raises(ValueError, match=f"{name} must be > 0"):
        MessagingFactorySettings(**{name: length})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["operation_timeout", "attempt_timeout", "idle_timeout"])
def test_e4_timeout_is_limited_to_range_of_amqp(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be > 0 and <= 24 days.*got 50 days"):
        MessagingFactorySettings(**{name: timedelta(days=50)})  # type: ignore[arg-type]


def test_settings_are_immutable() -> None:
    with pytest.raises(AttributeError):
        MessagingFactorySettings().transport = Transport.WEB_SOCKET  # type: ignore[misc]


def test_certificates_are_verified_by_default(tmp_path: Path) -> None:
    context = MessagingFactorySettings().tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    own = ssl.create_default_context()
    assert MessagingFactorySettings(ssl_context=own, ca_file=tmp_path / "none").tls_context() is own


def test_only_given_authority_is_trusted(tmp_path: Path) -> None:
    authority = open_certificate(tmp_path, (), time.time_ns() // 1_000_000).ca_file
    for ca_file in (authority, str(authority)):
        trusted = MessagingFactorySettings(ca_file=ca_file).tls_context().get_ca_certs()
        assert len(trusted) == 1


def test_e4_unreadable_authority_is_rejected_by_name(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    for ca_file in (tmp_path / "missing.pem", garbage):
        with pytest.raises(ValueError, match=ca_file.name):
            MessagingFactorySettings(ca_file=ca_file).tls_context()
