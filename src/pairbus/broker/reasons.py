"""Why a message is dead-lettered: the words that receivers find in its properties."""

from __future__ import annotations

from typing import Final

REASON_PROPERTY: Final = "DeadLetterReason"
DESCRIPTION_PROPERTY: Final = "DeadLetterErrorDescription"
RULE_PROPERTY: Final = "RuleName"
"""Which rule with an action made this copy of a message."""

EXPIRED: Final = "TTLExpiredException"
MAX_DELIVERY_COUNT: Final = "MaxDeliveryCountExceeded"
MAX_HOPS: Final = "MaxTransferHopCountExceeded"
NO_SESSION_ID: Final = "Session ID is null."
CAME_ROUND: Final = "ForwardedInCircle"
FILTER_FAILED: Final = "FilterEvaluationException"
RULE_BUDGET: Final = "RuleBudgetExceeded"
DESTINATION_NOT_FOUND: Final = "DestinationNotFound"
DESTINATION_DISABLED: Final = "DestinationDisabled"
DESTINATION_FULL: Final = "DestinationQuotaExceeded"
DESTINATION_REFUSES_SIZE: Final = "DestinationMessageSizeExceeded"
DAMAGED: Final = "MessageDamaged"
"""The message itself cannot be read any more: its dead letter is a stub with what is known of it."""
