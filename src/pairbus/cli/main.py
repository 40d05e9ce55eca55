"""The command ``pairbus``."""

from __future__ import annotations

import sys
from typing import Annotated

from pairbus import __version__

try:
    import typer

    from pairbus.cli.capture import capture
    from pairbus.cli.cost import cost
    from pairbus.cli.demo.command import demo
    from pairbus.cli.drill import drill
    from pairbus.cli.entities import entities
    from pairbus.cli.pair import pair
    from pairbus.cli.peek import peek
    from pairbus.cli.receive import receive
    from pairbus.cli.reconcile import reconcile
    from pairbus.cli.send import send
    from pairbus.cli.serve import serve
    from pairbus.cli.syphon import syphon
    from pairbus.cli.trust import trust
except ImportError as error:
    if (error.name or "").startswith("pairbus"):
        raise  # that would be our own mistake
    print(f"pairbus: {error}; install pairbus with its extra, 'pairbus[server]'", file=sys.stderr)
    sys.exit(1)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",  # else the lines of a paragraph end where they end in the source
    pretty_exceptions_show_locals=False,  # there are keys among them
)
for command in (demo, serve, trust, send, receive, peek, pair, drill, syphon, capture, cost, reconcile):
    app.command()(command)
app.add_typer(entities, name="entities")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"pairbus {__version__}")
        raise typer.Exit


@app.callback()
def pairbus(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Service Bus namespaces on a machine of your own.

    Connection strings are named by option, by variable, or, with @FILE, by a file; none is printed with its key.

    Example: pairbus serve --data ./contoso --name contoso --port 5672

    Example: pairbus --install-completion
    """


if __name__ == "__main__":
    app()
