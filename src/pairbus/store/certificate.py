"""The TLS certificate of a self-hosted namespace, and the private certificate authority that signs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pairbus.durable import OURS_ALONE, OWNER_ONLY, make_directory, write_file
from pairbus.store.errors import StoreFailedError

DIRECTORY: Final = "tls"
"""Under the data directory."""

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_CA_LIFE: Final = timedelta(days=3650)
_LEAF_LIFE: Final = timedelta(days=825)
"""Some systems reject certificates that are valid for longer."""

_RENEW_BEFORE: Final = timedelta(days=30)
"""Remaining validity at which a certificate is renewed."""

_CLOCK_SKEW: Final = timedelta(days=1)
"""Allowance for client clocks that are behind ours."""

_UNREADABLE: Final = (FileNotFoundError, ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound)
"""Errors of a file that is missing, or holds something else. (A file that may not be read is not replaced.)"""

Key: TypeAlias = ec.EllipticCurvePrivateKey
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The certificate files: what clients trust, and what the server presents and signs with."""

    ca_file: Path
    cert_file: Path
    """The server's own certificate, followed by that of the authority."""

    key_file: Path


@dataclass(frozen=True, slots=True)
class _Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Key


def certificate_files(data: Path) -> Certificate:
    """Return the paths of the certificate files in a data directory, whether or not they exist."""
    tls = data / DIRECTORY
    return Certificate(ca_file=tls / "ca.pem", cert_file=tls / "server.pem", key_file=tls / "server-key.pem")


def open_certificate(directory: Path, names: Sequence[str], now_ms: int) -> Certificate:
    """Return the certificate in a data directory, for this machine and for ``names``; create or renew it if needed.

    Only the process that holds the data directory may call it: two at once would each create their own. Raises
    ``StoreFailedError``.
    """
    files = certificate_files(directory)
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        make_directory(files.ca_file.parent, OURS_ALONE)
        ca = _open_ca(files, now)
        _open_leaf(files, ca, _alternatives((*_LOCAL, *names)), now)
    except OSError as error:
        raise StoreFailedError(str(files.ca_file.parent), str(error)) from error
    return files


# The authority. Clients that trust it have a copy of its certificate: it is kept for as long as possible.


def _open_ca(files: Certificate, now: datetime) -> _Identity:
    key_file = files.ca_file.with_name("ca-key.pem")
    found = _readable(partial(_read_identity, files.ca_file, key_file))
    if found is not None and _is_in_force(found.certificate, now):
        return found
    made = _make_ca(now)
    _write_identity(made, files.ca_file, key_file)
    return made


def _make_ca(now: datetime) -> _Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Trust stores look certificates up by this name, and a machine may have several namespaces.
    name = _name(f"pairbus private CA {serial:X}"[:64])
    builder = (
        _builder(key, name, name, now, now + _CA_LIFE)
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _Identity(builder.sign(key, SHA256()), key)


# The server's own certificate.


def _open_leaf(files: Certificate, ca: _Identity, names: frozenset[x509.GeneralName], now: datetime) -> None:
    found = _readable(partial(_read_identity, files.cert_file, files.key_file))
    if found is not None and _readable(partial(_is_good_leaf, found, files, ca, names, now)):
        return
    _write_identity(_make_leaf(ca, names, now), files.cert_file, files.key_file, chain=[ca.certificate])


def _is_good_leaf(
    leaf: _Identity, files: Certificate, ca: _Identity, names: frozenset[x509.GeneralName], now: datetime
) -> bool:
    covered = leaf.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    chain = x509.load_pem_x509_certificates(files.cert_file.read_bytes())
    return (
        _is_in_force(leaf.certificate, now)
        and names <= set(covered)
        and chain[1:] == [ca.certificate]
        and _is_signed_by(leaf.certificate, ca.certificate)
    )


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except InvalidSignature:
        return False
    return True


def _make_leaf(ca: _Identity, names: frozenset[x509.GeneralName], now: datetime) -> _Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + _LEAF_LIFE, ca.certificate.not_valid_after_utc)
    identifier = ca.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    builder = (
        _builder(key, _name("localhost"), ca.certificate.subject, now, end)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(sorted(names, key=repr)), critical=False)
        .add_extension(authority, critical=False)
    )
    return _Identity(builder.sign(ca.key, SHA256()), key)


# Shared by both certificates.


def _builder(key: Key, subject: x509.Name, issuer: x509.Name, now: datetime, end: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(names: Sequence[str]) -> frozenset[x509.GeneralName]:
    return frozenset(map(_alternative, names))


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name.strip("[]").partition("%")[0]))
    except ValueError:
        return x509.DNSName(name.lower() if name.isascii() else name.encode("idna").decode())


def _is_in_force(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - _RENEW_BEFORE


# Files. The key is put in place first: a certificate that does not match it shows that creation was interrupted.


def _readable(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except _UNREADABLE:
        return None


def _read_identity(cert_file: Path, key_file: Path) -> _Identity:
    certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
    key = load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(key, Key) or key.public_key() != certificate.public_key():
        raise ValueError(f"{key_file} is not the key of {cert_file}")
    return _Identity(certificate, key)


def _write_identity(
    identity: _Identity, cert_file: Path, key_file: Path, chain: Sequence[x509.Certificate] = ()
) -> None:
    key = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificates = b"".join(each.public_bytes(Encoding.PEM) for each in (identity.certificate, *chain))
    write_file(key_file, key, OWNER_ONLY)
    write_file(cert_file, certificates, 0o644)
