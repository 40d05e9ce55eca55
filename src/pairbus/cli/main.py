"""The command ``pairbus``."""

from __future__ import annotations

from typing import Annotated, Final

from pairbus import __version__
from pairbus.cli.extra import extra_needed

with extra_needed():
    import typer

    from pairbus.cli.command_group import MARKUP, command_group

_COMMANDS: Final = {
    "demo": "pairbus.cli.demo.command",
    "serve": "pairbus.cli.serve",
    "trust": "pairbus.cli.trust",
    "send": "pairbus.cli.send",
    "receive": "pairbus.cli.receive",
    "peek": "pairbus.cli.peek",
    "pair": "pairbus.cli.pair",
    "drill": "pairbus.cli.drill",
    "syphon": "pairbus.cli.syphon",
    "capture": "pairbus.cli.capture",
    "cost": "pairbus.cli.cost",
    "reconcile": "pairbus.cli.reconcile",
    "entities": "pairbus.cli.entities",
}

app = typer.Typer(
    cls=command_group(_COMMANDS),
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_show_locals=False,  # there are keys among them
)


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
