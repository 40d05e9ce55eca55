"""The certificate of a namespace: valid for every client, kept as long as possible, and repaired after a kill."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from pairbus.store import StoreFailedError
from pairbus.store.certificate import Certificate, certificate_files, open_certificate

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
FILES = ("ca.pem", "ca-key.pem", "server.pem", "server-key.pem")


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def content(path: Path) -> dict[str, bytes]:
    return {name: (path / "tls" / name).read_bytes() for name in FILES}


def leaf(certificate: Certificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.cert_file.read_bytes())


def names(certificate: Certificate) -> set[str]:
    found = leaf(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in found}


def shake_hands(certificate: Certificate, host: str, *, strict: bool = True) -> str | None:
    """Do a TLS handshake in memory; return the negotiated version."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate.cert_file, certificate.key_file)
    client = ssl.create_default_context(cafile=str(certificate.ca_file))
    if strict:
        client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
            version = end.version()
    return version


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "bus.example.org", "10.1.2.3"])
def test_strict_client_accepts_it_under_every_name(tmp_path: Path, host: str) -> None:
    certificate = open_certificate(tmp_path, ["bus.example.org", "10.1.2.3"], now_ms())
    assert shake_hands(certificate, host) == "TLSv1.3"


def test_client_refuses_it_under_another_name(tmp_path: Path) -> None:
    certificate = open_certificate(tmp_path, [], now_ms())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(certificate, "example.org")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_openssl_verifies_the_chain(tmp_path: Path) -> None:
    certificate = open_certificate(tmp_path, [], now_ms())
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(certificate.ca_file)]
    done = subprocess.run([*command, str(certificate.cert_file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_keys_are_private(tmp_path: Path) -> None:
    open_certificate(tmp_path / "data", [], NOW_MS)
    for name in ("ca-key.pem", "server-key.pem"):
        assert stat.S_IMODE((tmp_path / "data" / "tls" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "data" / "tls").stat().st_mode) == 0o700


def test_certificate_is_kept_across_restarts(tmp_path: Path) -> None:
    first = open_certificate(tmp_path, ["a.example.org", "b.example.org"], NOW_MS)
    before = content(tmp_path)
    assert open_certificate(tmp_path, ["B.example.org"], NOW_MS + DAY_MS) == first == certificate_files(tmp_path)
    assert content(tmp_path) == before


def test_directories_have_separate_authorities(tmp_path: Path) -> None:
    one, other = (open_certificate(tmp_path / name, [], NOW_MS) for name in ("one", "other"))
    assert leaf(one).issuer != leaf(other).issuer


def test_additional_names_issue_a_new_certificate_of_the_same_authority(tmp_path: Path) -> None:
    open_certificate(tmp_path, [], NOW_MS)
    before = content(tmp_path)
    certificate = open_certificate(tmp_path, ["[fe80::1]", "bücher.example"], NOW_MS)
    after = content(tmp_path)
    assert names(certificate) == {"localhost", "127.0.0.1", "::1", "fe80::1", "xn--bcher-kva.example"}
    assert [name for name in FILES if before[name] != after[name]] == ["server.pem", "server-key.pem"]


@pytest.mark.parametrize(("days", "renewed"), [(790, False), (800, True)])
def test_certificate_is_renewed_before_it_expires(tmp_path: Path, days: int, renewed: bool) -> None:
    open_certificate(tmp_path, [], NOW_MS)
    before = content(tmp_path)
    certificate = open_certificate(tmp_path, [], NOW_MS + days * DAY_MS)
    assert (content(tmp_path)["server.pem"] != before["server.pem"]) is renewed
    assert content(tmp_path)["ca.pem"] == before["ca.pem"]
    assert leaf(certificate).not_valid_after_utc.timestamp() * 1000 > NOW_MS + (days + 30) * DAY_MS


def test_certificate_expires_no_later_than_its_authority_and_both_are_renewed(tmp_path: Path) -> None:
    open_certificate(tmp_path, [], NOW_MS)
    before = content(tmp_path)
    certificate = open_certificate(tmp_path, [], NOW_MS + 3600 * DAY_MS)
    authority = x509.load_pem_x509_certificate(before["ca.pem"])
    assert leaf(certificate).not_valid_after_utc == authority.not_valid_after_utc
    open_certificate(tmp_path, [], NOW_MS + 3630 * DAY_MS)
    after = content(tmp_path)
    assert [name for name in FILES if before[name] == after[name]] == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "rubbish"])
def test_missing_or_damaged_files_are_recreated(tmp_path: Path, name: str, damage: str) -> None:
    open_certificate(tmp_path, [], now_ms())
    before = content(tmp_path)
    file = tmp_path / "tls" / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "cut": before[name][: len(before[name]) // 3], "rubbish": b"\xff" * 9}[damage])
    certificate = open_certificate(tmp_path, [], now_ms())
    assert shake_hands(certificate, "localhost") == "TLSv1.3"
    assert (content(tmp_path)["ca.pem"] == before["ca.pem"]) is name.startswith("server")


@pytest.mark.parametrize("name", FILES)
def test_file_of_another_directory_is_replaced(tmp_path: Path, name: str) -> None:
    """Simulate a kill between two files: each is valid, but they do not match."""
    for directory in ("ours", "other"):
        open_certificate(tmp_path / directory, [], now_ms())
    shutil.copy(tmp_path / "other" / "tls" / name, tmp_path / "ours" / "tls" / name)
    certificate = open_certificate(tmp_path / "ours", [], now_ms())
    assert shake_hands(certificate, "localhost") == "TLSv1.3"


def test_pair_of_another_authority_is_replaced(tmp_path: Path) -> None:
    for directory in ("ours", "other"):
        open_certificate(tmp_path / directory, [], now_ms())
    for name in ("server.pem", "server-key.pem"):
        shutil.copy(tmp_path / "other" / "tls" / name, tmp_path / "ours" / "tls" / name)
    assert shake_hands(open_certificate(tmp_path / "ours", [], now_ms()), "localhost") == "TLSv1.3"


def test_chain_without_the_authority_is_completed(tmp_path: Path) -> None:
    certificate = open_certificate(tmp_path, [], now_ms())
    alone = certificate.cert_file.read_bytes().partition(b"-----END CERTIFICATE-----\n")
    certificate.cert_file.write_bytes(b"".join(alone[:2]))
    open_certificate(tmp_path, [], now_ms())
    assert len(x509.load_pem_x509_certificates(certificate.cert_file.read_bytes())) == 2


def test_leftovers_of_an_interrupted_start_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    for name in FILES:
        (tmp_path / "tls" / f"{name}.new").write_bytes(b"half")
    open_certificate(tmp_path, [], NOW_MS)
    assert sorted(os.listdir(tmp_path / "tls")) == sorted(FILES)


def test_wrong_clock_does_no_lasting_harm(tmp_path: Path) -> None:
    open_certificate(tmp_path, [], now_ms() + 4000 * DAY_MS)
    assert shake_hands(open_certificate(tmp_path, [], now_ms()), "localhost") == "TLSv1.3"


def test_system_error_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("a file", encoding="utf-8")
    with pytest.raises(StoreFailedError, match="tls"):
        open_certificate(tmp_path, [], NOW_MS)


def test_file_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "tls" / "ca.pem").mkdir(parents=True)
    with pytest.raises(StoreFailedError, match="directory"):
        open_certificate(tmp_path, [], NOW_MS)
