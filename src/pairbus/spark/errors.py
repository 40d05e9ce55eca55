"""Errors in the options, schema or offsets of a query."""

from __future__ import annotations


class SparkOptionError(ValueError):
    """An option is missing, unknown, or has an invalid value."""


class ConnectionReferenceError(SparkOptionError):
    """The option ``connection`` does not lead to a connection string. The message never contains the string."""


class EntityPatternError(SparkOptionError):
    """A name or pattern that matches no entity of the namespace."""


class SchemaError(ValueError):
    """A column that messages do not have, or a column of the wrong type."""


class OffsetError(ValueError):
    """An offset of a checkpoint or query that this data source did not write."""
