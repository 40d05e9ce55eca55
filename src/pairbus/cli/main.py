"""The ``pairbus`` command."""

from __future__ import annotations

from typing import Annotated, Final

from pairbus import __version__
from pairbus.cli.failure import extra_needed

with extra_needed():
    import typer

    from pairbus.cli.command_group import MARKUP, command_group

_COMMANDS: Final = {
    "demo": "pairbus.cli.demo.command",
    "serve": "pairbus.cli.serve",
    "trust": "pairbus.cli.trust",
    "diagnostics": "pairbus.cli.diagnostics",
    "repair": "pairbus.cli.repair",
    "send": "pairbus.cli.send",
    "receive": "pairbus.cli.receive",
    "peek": "pairbus.cli.peek",
    "pair": "pairbus.cli.pair",
    "drill": "pairbus.cli.drill",
    "fault": "pairbus.cli.fault",
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
    pretty_exceptions_show_locals=False,  # locals may contain keys
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        print(f"pairbus {__version__}")
        raise typer.Exit


@app.callback()
def pairbus(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Run and use Service Bus namespaces and pairs of them.

    Pass a connection string as an option, in a variable, or, with @FILE, in a file. Keys are never printed in errors.

    Example: pairbus serve --data ./contoso --name contoso --port 5672 --connection-file contoso.txt

    Example: pairbus --install-completion
    """


if __name__ == "__main__":
    app()
