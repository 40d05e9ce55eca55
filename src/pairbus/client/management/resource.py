"""What has an address in the management API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote

from pairbus.client.validation import check_path


@dataclass(frozen=True, slots=True)
class Resource:
    """The path of something, and who holds the keys to it."""

    path: str
    """Encoded: a slash in the name of a subscription or a rule is not one between names."""

    owner: str = ""
    """The path of the queue or topic that it is, or belongs to; ``""`` for the namespace."""

    entity: str | None = None
    """What to call it."""

    @classmethod
    def of_entity(cls, path: str) -> Self:
        """A queue or a topic."""
        check_path("path", path)
        return cls(quote(path, safe="/$"), path, path)

    @classmethod
    def of_subscription(cls, topic: str, name: str) -> Self:
        return cls.of_entity(topic).below("Subscriptions", name)

    @classmethod
    def of_rule(cls, topic: str, subscription: str, name: str) -> Self:
        return cls.of_subscription(topic, subscription).below("Rules", name)

    def all(self, word: str) -> Self:
        """All that it has of a kind."""
        return type(self)(f"{self.path}/{word}", self.owner, self.entity)

    def below(self, word: str, name: str) -> Self:
        check_path("name", name)
        return type(self)(f"{self.path}/{word}/{quote(name, safe='$')}", self.owner, f"{self.entity}/{word}/{name}")


ALL_QUEUES: Final = Resource("$Resources/Queues")
ALL_TOPICS: Final = Resource("$Resources/Topics")
NAMESPACE: Final = Resource("$namespaceinfo")
