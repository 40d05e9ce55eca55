"""The end of a topic that gives messages out: one of its subscriptions."""

from __future__ import annotations

from datetime import timedelta

from pairbus.client.entity_client import EntityClient, SessionMaker
from pairbus.client.management.rules import RuleDescription
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.rule_amqp import read_rule, write_rule
from pairbus.dialect.entity_path import EntityPath
from pairbus.dialect.management import Operation

_NO_TIME = timedelta()


class SubscriptionClient(EntityClient):
    """Receives from a subscription, and manages its rules."""

    def __init__(
        self,
        maker: SessionMaker,
        topic_path: str,
        name: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(
            maker,
            str(EntityPath(topic_path, name)),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )
        self._topic_path = topic_path
        self._name = name

    @property
    def topic_path(self) -> str:
        return self._topic_path

    @property
    def name(self) -> str:
        return self._name

    async def add_rule(self, rule: RuleDescription) -> None:
        """Add a rule; raises ``EntityAlreadyExistsError`` if there is one of that name."""
        self._check_open()
        await self._node.ask(
            Operation.ADD_RULE, {"rule-name": rule.name, "rule-description": write_rule(rule, self._path)}
        )

    async def remove_rule(self, name: str) -> None:
        """Remove a rule; raises ``EntityNotFoundError`` if there is none of that name."""
        self._check_open()
        await self._node.ask(Operation.REMOVE_RULE, {"rule-name": name})

    async def get_rules(self) -> list[RuleDescription]:
        """The rules, in the order in which they were made."""
        self._check_open()
        return [read_rule(described, self._path) for described in await self._node.rules()]
