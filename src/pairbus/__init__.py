"""Messaging that does not stop sending."""

__version__ = "0.1.0"
