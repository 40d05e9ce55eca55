"""Self-repair: components that fail are noticed, described in a diagnostic bundle, and restarted alone.

Read in this order: ``operation_log`` (what was done last), ``supervisor`` (the table of components), ``watchdog`` (the
thread that watches the event loop), ``diagnostics`` (bundles). ``server.components`` has the components of a server,
``server.index_check`` those that are entities.
"""
