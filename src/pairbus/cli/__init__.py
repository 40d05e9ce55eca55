"""The command line interface: the ``pairbus`` command."""
