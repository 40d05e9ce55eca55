"""The root key: made at random when a namespace is new, and kept with it."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Sequence

from pairbus.broker import AuthorizationRule, Namespace, Right

_KEY_BYTES = 32
_RIGHTS = (Right.SEND, Right.LISTEN, Right.MANAGE)


def fresh_key() -> str:
    return b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def other_root_keys(namespace: Namespace, name: str, declared: Sequence[AuthorizationRule], now_ms: int) -> list[str]:
    """The keys with all rights that nobody speaks of: a root key that was called otherwise before, most likely."""
    spoken_of = {name.lower(), *(rule.name.lower() for rule in declared)}
    rules = namespace.authorization_rules(now_ms)
    return [rule.name for rule in rules if Right.MANAGE in rule.rights and rule.name.lower() not in spoken_of]


def ensure_root_key(namespace: Namespace, name: str, key: str | None, now_ms: int) -> str:
    """See that there is a key of that name which opens everything; its value. A value that is given is set."""
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
