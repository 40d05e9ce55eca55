"""What can be wrong with what a query says about the namespace it reads or writes."""

from __future__ import annotations


class SparkOptionError(ValueError):
    """An option that is missing, unknown, or has a value that cannot be meant."""


class ConnectionReferenceError(SparkOptionError):
    """No connection string where the option ``connection`` says that there is one. It is never repeated."""


class EntityPatternError(SparkOptionError):
    """A name or pattern of entities that nothing in the namespace answers to."""


class SchemaError(ValueError):
    """A column that messages do not have, or of another type than they have it."""


class OffsetError(ValueError):
    """An offset that a checkpoint or a query holds, and that is none of ours."""
