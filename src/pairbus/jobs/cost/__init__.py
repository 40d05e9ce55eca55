"""What namespaces cost: bills from their ledgers, and forecasts."""
