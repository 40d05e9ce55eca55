"""Entities and their rules: made, read, changed and removed over HTTP."""
