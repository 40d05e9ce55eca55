"""Authorization: tokens and keys turned into grants."""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from pairbus.broker import Address, AuthorizationRule, Namespace, Right
from pairbus.dialect.paths import path_within, split_entity_path
from pairbus.dialect.sas import PREFIX, SasToken, SasTokenError, parse_sas_token
from pairbus.server.errors import InvalidCredentialsError, UnauthorizedError
from pairbus.server.host import NamespaceHost

NEVER_MS: Final = 2**62
_ALL: Final = frozenset(Right)
_BEARER: Final = "Bearer "
_SUBSCRIPTIONS: Final = "subscriptions"

_NO_RULE: Final = AuthorizationRule(name="none", rights=(), primary_key="?" * 44, secondary_key="?" * 44)
"""Stands in for a key that does not exist, so that the response time does not reveal which names do."""

Trusts = Callable[[str], bool]
"""Returns whether the signing key with this fingerprint is still one of the issuer's."""

VerifyJwt = Callable[[str, int], "Grant"]
"""Takes a JWT and the time; returns the grant, with a path of ``""``, or raises ``UnauthorizedError``."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a caller, their scope, and their expiry."""

    path: str
    """``""`` for the whole namespace; otherwise an entity's path in lower case: that entity and everything below."""

    rights: frozenset[Right]
    expires_ms: int = NEVER_MS
    entity: str | None = None
    """The entity whose key granted it; ``None`` for a key of the namespace. Below ``orders`` there may be another
    entity, ``orders/old``, to which the key of ``orders`` grants no access.
    """

    who: str = field(default="", compare=False)
    """The name of the key that granted it."""

    key: str = field(default="", compare=False, repr=False)
    """The value of that key; empty if it was not granted by one of our keys."""

    signer: str = field(default="", compare=False)
    """The fingerprint of the issuer's key that signed a JWT; empty if it was not granted by one."""

    def allows(self, path: str, right: Right, now_ms: int) -> bool:
        return (
            right in self.rights
            and now_ms < self.expires_ms
            and covers(self.path, path)
            and (self.entity is None or entity_of(path) == self.entity)
        )

    def within(self, path: str) -> Grant:
        """Return the grant narrowed to an address that it covers."""
        return replace(self, path=path if covers(self.path, path) else self.path)


def covers(path: str, wanted: str) -> bool:
    """Return whether ``wanted`` is ``path`` or below it; both in lower case, without slashes at the ends."""
    return not path or wanted == path or wanted.startswith(path + "/")


def rights_of(rule: AuthorizationRule) -> frozenset[Right]:
    """Return the rights that a rule grants: Manage includes Send and Listen."""
    return _ALL if Right.MANAGE in rule.rights else frozenset(rule.rights)


class Authorizer:
    """Checks tokens and keys against the authorization rules of the namespace and its entities."""

    def __init__(
        self,
        host: NamespaceHost,
        verify_jwt: VerifyJwt | None = None,
        max_token_ms: int | None = None,
        trusts: Trusts | None = None,
    ) -> None:
        """Check tokens for ``host``. ``max_token_ms`` limits the remaining validity of a token; ``None`` means no
        limit. ``trusts`` checks the key that signed a JWT again.
        """
        self._host = host
        self._verify_jwt = verify_jwt
        self._max_token_ms = max_token_ms
        self._trusts = trusts

    def admit(self, token: str, path: str) -> Grant:
        """Return the grant of a token for a path within the namespace; raises ``UnauthorizedError``.

        The path is in lower case and without slashes at its ends. Convert a peer's address with ``path_of`` first, and
        only once: a name may look like an address itself.
        """
        token = token.removeprefix(_BEARER)
        if token.startswith(PREFIX):
            return self._admit_sas(token, path)
        if self._verify_jwt is None:
            raise UnauthorizedError(
                "the token is not a shared access signature, and no issuer of other tokens is configured"
            )
        grant = self._verify_jwt(token, self._host.wall_ms()).within(path)
        self._check_lifetime(grant.expires_ms)
        return grant

    def admit_key(self, key_name: str, key: str) -> Grant:
        """Return the grant of a key to the whole namespace, sent as it is; raises ``UnauthorizedError``."""
        rules = self._host.use_namespace().authorization(key_name, None, self._host.now_ms())
        for rule in rules or [_NO_RULE]:  # an unknown name takes as long as a wrong key
            known = [hmac.compare_digest(_bytes(each), _bytes(key)) for each in _keys(rule)]
            if any(known) and rule is not _NO_RULE:
                return Grant("", rights_of(rule), who=key_name, key=key)
        raise InvalidCredentialsError(f"'{key_name}' is not a key of this namespace, or its value is wrong")

    def holds(self, grant: Grant) -> bool:
        """Return whether the key that proved a grant still exists and still gives all of its rights."""
        if grant.signer:
            return self._trusts is None or self._trusts(grant.signer)
        if not grant.key:
            return True
        address = None if grant.entity is None else Address.of(grant.entity)
        rules = self._host.use_namespace().authorization(grant.who, address, self._host.now_ms())
        return any(grant.key in _keys(rule) and grant.rights <= rights_of(rule) for rule in rules)

    def _check_lifetime(self, expires_ms: int) -> None:
        max_ms = self._max_token_ms
        if max_ms is not None and expires_ms - self._host.wall_ms() > max_ms:
            raise UnauthorizedError(f"the token is valid for too long: at most {max_ms // 60_000} minutes are allowed")

    def _admit_sas(self, text: str, path: str) -> Grant:
        try:
            token = parse_sas_token(text)
        except SasTokenError as error:
            raise UnauthorizedError(str(error)) from error
        now_ms = self._host.now_ms()
        expires_ms = token.expires_s * 1_000
        if expires_ms <= self._host.wall_ms():
            raise UnauthorizedError("the token has expired")
        if not token.covers(path):
            raise UnauthorizedError("the token was issued for another address")
        self._check_lifetime(expires_ms)
        namespace = self._host.use_namespace()
        own = _proof(namespace.authorization(token.key_name, None, now_ms), token)
        if own is not None:
            return Grant(path, rights_of(own[0]), expires_ms, None, token.key_name, own[1])
        entity = entity_of(path)
        address = None if entity is None else Address.of(entity)
        proof = _proof(namespace.authorization(token.key_name, address, now_ms), token)
        if proof is None:
            raise InvalidCredentialsError("invalid token signature: no key of that name signed it")
        return Grant(path, rights_of(proof[0]), expires_ms, entity, token.key_name, proof[1])


def _proof(rules: Iterable[AuthorizationRule], token: SasToken) -> tuple[AuthorizationRule, str] | None:
    """Return the rule and the key that signed a token. An unknown name takes as long as a wrong key."""
    for rule in [*rules] or [_NO_RULE]:
        key = token.signer(_keys(rule))
        if key is not None and rule is not _NO_RULE:
            return rule, key
    return None


def path_of(audience: str) -> str:
    """Return the path within the namespace that an audience names, in lower case; ``""`` for the namespace itself.

    A query is ignored: some clients sign the address of a request.
    """
    return path_within(audience.partition("?")[0]).lower()


def shown_path(audience: object) -> str | None:
    """Return the path within the namespace that an address names, for the log; ``None`` for what names no entity.

    It is the same text for all spellings of the address, but the names are as the peer wrote them.
    """
    if not isinstance(audience, str):
        return None
    path = path_within(audience.partition("?")[0])
    entity = split_entity_path(path)
    return path if entity is None else str(entity)


def entity_of(path: str) -> str | None:
    """Return the queue or topic of a path, in lower case: its keys grant access to all of its parts."""
    segments = path.split("/")
    own = takewhile(lambda segment: segment != _SUBSCRIPTIONS and not segment.startswith("$"), segments)
    return "/".join(own) or None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a peer can send invalid text; that is just a wrong key


def _keys(rule: AuthorizationRule) -> tuple[str, str]:
    return rule.primary_key, rule.secondary_key


_KEY_BYTES = 32
_RIGHTS = (Right.SEND, Right.LISTEN, Right.MANAGE)


def fresh_key() -> str:
    return b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def other_root_keys(namespace: Namespace, name: str, declared: Sequence[AuthorizationRule], now_ms: int) -> list[str]:
    """Return the undeclared keys with all rights: most likely a root key that had another name before."""
    spoken_of = {name.lower(), *(rule.name.lower() for rule in declared)}
    rules = namespace.authorization_rules(now_ms)
    return [rule.name for rule in rules if Right.MANAGE in rule.rights and rule.name.lower() not in spoken_of]


def ensure_root_key(namespace: Namespace, name: str, key: str | None, now_ms: int) -> str:
    """Ensure that a key of that name grants all rights; return its value. A value that is given is set."""
    rules = namespace.authorization_rules(now_ms)
    found = next((rule for rule in rules if rule.name.lower() == name.lower()), None)
    if found is not None and key in {None, found.primary_key}:
        return found.primary_key
    root = AuthorizationRule(
        name=name,
        rights=_RIGHTS,
        primary_key=key or fresh_key(),
        secondary_key=fresh_key() if found is None else found.secondary_key,
    )
    namespace.set_authorization_rules([*(rule for rule in rules if rule is not found), root], now_ms)
    return root.primary_key
