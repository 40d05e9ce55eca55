"""Who may do what: the keys of the namespace and of its entities."""

from __future__ import annotations

from collections.abc import Sequence

from pairbus.broker.address import Address
from pairbus.broker.catalogue import Catalogue
from pairbus.broker.context import Context
from pairbus.broker.descriptions import AuthorizationRule
from pairbus.broker.entity import SubscriptionEntity
from pairbus.broker.errors import EntityNotFoundError, InvalidDescriptionError
from pairbus.broker.kinds import check_list, is_authorization_rule
from pairbus.broker.notices import AccessChanged
from pairbus.broker.validation import check_keys

_NAMESPACE = "the namespace"


class Access:
    """Keeps the rules of the namespace, and finds those that a token can be checked against.

    The broker knows which key allows what; whether a token was made with a key is for the server to see.
    """

    def __init__(self, context: Context, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue
        self.rules: tuple[AuthorizationRule, ...] = ()

    def set_rules(self, rules: Sequence[AuthorizationRule]) -> None:
        check_list(rules, "authorization rules")
        if not all(is_authorization_rule(rule) for rule in rules):
            raise InvalidDescriptionError("this is no list of AuthorizationRule", _NAMESPACE)
        most = self._context.limits.authorization_rules
        if len(rules) > most:
            raise InvalidDescriptionError(f"a namespace has at most {most} authorization rules", _NAMESPACE)
        check_keys(_NAMESPACE, rules)
        self._context.records.put_access(tuple(rules))
        self._context.notices.append(AccessChanged())
        self.rules = tuple(rules)

    def restore(self, rules: Sequence[AuthorizationRule]) -> None:
        self.rules = tuple(rules)

    def candidates(self, key_name: str, address: Address | None) -> list[AuthorizationRule]:
        """The rules of that name that open an address: the entity's own, then the namespace's.

        An entity that is not there has none of its own, so that a stranger learns nothing about it.
        """
        name = key_name.lower()
        return [rule for rule in (*self._entity_rules(address), *self.rules) if rule.name.lower() == name]

    def _entity_rules(self, address: Address | None) -> tuple[AuthorizationRule, ...]:
        if address is None:
            return ()
        try:
            entity = self._catalogue.entity(address)
        except EntityNotFoundError:
            return ()
        holder = entity.topic if isinstance(entity, SubscriptionEntity) else entity  # a topic's keys open it all
        return holder.description.authorization_rules
