"""Costs of namespaces: bills from their ledgers, and forecasts."""
