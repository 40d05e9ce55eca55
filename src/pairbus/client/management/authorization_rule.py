"""Keys to one queue or topic, and what they allow."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from enum import Enum

from pairbus.client.validation import check_fields, check_type


class AccessRights(Enum):
    """What a key allows its holder. Who may manage may also send and listen."""

    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


@dataclass(frozen=True, slots=True)
class SharedAccessAuthorizationRule:
    """A name with two keys, either of which opens the entity."""

    key_name: str
    _: KW_ONLY
    rights: AbstractSet[AccessRights]
    primary_key: str | None = field(default=None, repr=False)
    """``None``: the service makes one, or leaves the one that there is."""

    secondary_key: str | None = field(default=None, repr=False)
    created_at: datetime | None = field(default=None, compare=False)
    """Said by the service, where it keeps it."""

    updated_at: datetime | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        for right in self.rights:
            check_type("each of the rights", right, (AccessRights,))
        if not self.key_name or not self.rights:
            raise ValueError("an authorization rule has a name and at least one right")
        object.__setattr__(self, "rights", frozenset(self.rights))
