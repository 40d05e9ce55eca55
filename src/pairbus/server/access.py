"""Who may do what: tokens and keys turned into grants."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from pairbus.broker import Address, AuthorizationRule, Right
from pairbus.dialect.entity_path import path_within
from pairbus.dialect.sas import PREFIX, SasToken, SasTokenError, parse_sas_token
from pairbus.server.errors import InvalidCredentialsError, UnauthorizedError
from pairbus.server.host import NamespaceHost

NEVER_MS: Final = 2**62
_ALL: Final = frozenset(Right)
_BEARER: Final = "Bearer "
_SUBSCRIPTIONS: Final = "subscriptions"

_NO_RULE: Final = AuthorizationRule(name="none", rights=(), primary_key="?" * 44, secondary_key="?" * 44)
"""Stands in for a key that does not exist, so that the time of an answer does not tell which names do."""

VerifyJwt = Callable[[str, int], "Grant"]
"""Takes a JWT and the time; gives the grant, with a path of ``""``, or raises ``UnauthorizedError``."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What its holder may do, where, and until when."""

    path: str
    """``""`` for the whole namespace; otherwise an entity's path in lower case: it and everything below."""

    rights: frozenset[Right]
    expires_ms: int = NEVER_MS
    entity: str | None = None
    """Whose key it was made with; ``None`` for a key of the namespace. Below ``orders`` there may be another entity,
    ``orders/old``, which the key of ``orders`` does not open."""

    who: str = field(default="", compare=False)
    """The name of the key that proved it."""

    key: str = field(default="", compare=False, repr=False)
    """The value of that key; empty where no key of ours proved it."""

    def allows(self, path: str, right: Right, now_ms: int) -> bool:
        return (
            right in self.rights
            and now_ms < self.expires_ms
            and covers(self.path, path)
            and (self.entity is None or entity_of(path) == self.entity)
        )

    def within(self, path: str) -> Grant:
        """The same, narrowed to an address that it covers."""
        return replace(self, path=path if covers(self.path, path) else self.path)


def covers(path: str, wanted: str) -> bool:
    """Whether ``wanted`` is ``path`` or lies below it; both in lower case, without slashes at the ends."""
    return not path or wanted == path or wanted.startswith(path + "/")


def rights_of(rule: AuthorizationRule) -> frozenset[Right]:
    """Who may manage may also send and listen."""
    return _ALL if Right.MANAGE in rule.rights else frozenset(rule.rights)


class Gatekeeper:
    """Checks tokens and keys against the authorization rules of the namespace and its entities."""

    def __init__(
        self, host: NamespaceHost, verify_jwt: VerifyJwt | None = None, max_token_ms: int | None = None
    ) -> None:
        """``max_token_ms`` is for how long a token may still hold when it is shown; ``None`` for any time."""
        self._host = host
        self._verify_jwt = verify_jwt
        self._max_token_ms = max_token_ms

    def admit(self, token: str, path: str) -> Grant:
        """The grant that a token gives for a path within the namespace; raises ``UnauthorizedError``.

        The path is in lower case and without slashes at its ends. What a peer calls an address has to be made one
        first, by ``path_of``, and once only: a name may look like an address itself.
        """
        token = token.removeprefix(_BEARER)
        if token.startswith(PREFIX):
            return self._admit_sas(token, path)
        if self._verify_jwt is None:
            raise UnauthorizedError("the token is no shared access signature, and no issuer of other tokens is set up")
        grant = self._verify_jwt(token, self._host.wall_ms()).within(path)
        self._check_lifetime(grant.expires_ms)
        return grant

    def admit_key(self, key_name: str, key: str) -> Grant:
        """The grant of a key to the whole namespace, shown as it is; raises ``UnauthorizedError``."""
        rules = self._host.namespace.authorization(key_name, None, self._host.now_ms())
        for rule in rules or [_NO_RULE]:  # an unknown name takes as long as a wrong key
            known = [hmac.compare_digest(_bytes(each), _bytes(key)) for each in _keys(rule)]
            if any(known) and rule is not _NO_RULE:
                return Grant("", rights_of(rule), who=key_name, key=key)
        raise InvalidCredentialsError(f"'{key_name}' is no key of this namespace, or has another value")

    def holds(self, grant: Grant) -> bool:
        """Return whether the key that proved a grant still exists and still gives all of its rights."""
        if not grant.key:
            return True
        address = None if grant.entity is None else Address.of(grant.entity)
        rules = self._host.namespace.authorization(grant.who, address, self._host.now_ms())
        return any(grant.key in _keys(rule) and grant.rights <= rights_of(rule) for rule in rules)

    def _check_lifetime(self, expires_ms: int) -> None:
        most_ms = self._max_token_ms
        if most_ms is not None and expires_ms - self._host.wall_ms() > most_ms:
            raise UnauthorizedError(
                f"the token holds for too long: {most_ms // 60_000} minutes are the most allowed here"
            )

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
            raise UnauthorizedError("the token was made for another address")
        self._check_lifetime(expires_ms)
        namespace = self._host.namespace
        own = _proof(namespace.authorization(token.key_name, None, now_ms), token)
        if own is not None:
            return Grant(path, rights_of(own[0]), expires_ms, None, token.key_name, own[1])
        entity = entity_of(path)
        address = None if entity is None else Address.of(entity)
        proof = _proof(namespace.authorization(token.key_name, address, now_ms), token)
        if proof is None:
            raise InvalidCredentialsError("invalid token signature: no key of that name has made it")
        return Grant(path, rights_of(proof[0]), expires_ms, entity, token.key_name, proof[1])


def _proof(rules: Iterable[AuthorizationRule], token: SasToken) -> tuple[AuthorizationRule, str] | None:
    """Find the rule and the key that have signed a token. An unknown name takes as long as a wrong key."""
    for rule in [*rules] or [_NO_RULE]:
        key = token.signer(_keys(rule))
        if key is not None and rule is not _NO_RULE:
            return rule, key
    return None


def path_of(audience: str) -> str:
    """Return the path within the namespace that an audience means, in lower case; ``""`` for the namespace itself.

    A query is left out: some clients sign the address of a request.
    """
    return path_within(audience.partition("?")[0]).lower()


def entity_of(path: str) -> str | None:
    """The queue or topic that a path leads to or into, in lower case: its keys open all that is part of it."""
    segments = path.split("/")
    own = takewhile(lambda segment: segment != _SUBSCRIPTIONS and not segment.startswith("$"), segments)
    return "/".join(own) or None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a peer can send what is no text; that is just a wrong key


def _keys(rule: AuthorizationRule) -> tuple[str, str]:
    return rule.primary_key, rule.secondary_key
