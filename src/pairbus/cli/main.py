"""The command ``pairbus``."""

from __future__ import annotations

import sys
from typing import Annotated

from pairbus import __version__

try:
    import typer

    from pairbus.cli.drill import drill
    from pairbus.cli.pair import pair
    from pairbus.cli.serve import serve
    from pairbus.cli.syphon import syphon
    from pairbus.cli.trust import trust
except ImportError as error:
    if (error.name or "").startswith("pairbus"):
        raise  # that would be our own mistake
    print(f"pairbus: {error}; install pairbus with its extra, 'pairbus[server]'", file=sys.stderr)
    sys.exit(1)

from pairbus.cli.demo.__main__ import main as run_demo

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # there are keys among them
    help="Service Bus namespaces on a machine of your own.",
)
for command in (serve, trust, pair, drill, syphon):
    app.command()(command)


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
    """Service Bus namespaces on a machine of your own."""


@app.command()
def demo() -> None:
    """Show what pairbus does, in a minute."""
    raise typer.Exit(run_demo())


if __name__ == "__main__":
    app()
