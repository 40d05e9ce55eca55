"""Management of entities and rules over HTTP."""
