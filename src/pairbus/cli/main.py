"""The ``pairbus`` command."""

from __future__ import annotations

from typing import Annotated, Final

from pairbus import __version__
from pairbus.build import build
from pairbus.cli.failure import extra_needed

with extra_needed():
    import typer

    from pairbus.cli.command_group import MARKUP, LazyCommand, command_group

_COMMANDS: Final = {
    "demo": LazyCommand(
        "pairbus.cli.demo.command",
        "Kill the primary of a pair while an application sends, and account for every message.",
    ),
    "serve": LazyCommand("pairbus.cli.serve", "Serve a namespace and print its connection string."),
    "trust": LazyCommand(
        "pairbus.cli.trust",
        "Print the path of the certificate authority of a namespace, and how to make clients trust it.",
    ),
    "diagnostics": LazyCommand(
        "pairbus.cli.diagnostics",
        "Print a diagnostic bundle as JSON: stacks, last operations, components, facets, store, versions and settings.",
    ),
    "repair": LazyCommand(
        "pairbus.cli.repair",
        "Copy everything that can be read from a damaged data directory into a new one, and list the rest.",
    ),
    "send": LazyCommand("pairbus.cli.send", "Send messages to a queue or a topic, on pairbus or Azure."),
    "receive": LazyCommand(
        "pairbus.cli.receive",
        "Receive messages of a queue or subscription; by default one, which is printed and abandoned.",
    ),
    "peek": LazyCommand(
        "pairbus.cli.peek", "Show messages of a queue or subscription, 10 by default, without locking or removing them."
    ),
    "pair": LazyCommand(
        "pairbus.cli.pair",
        "Set up a pair of namespaces: create the missing backlog queues and verify that the pair works.",
    ),
    "drill": LazyCommand(
        "pairbus.cli.drill",
        "Prove that a pair works: divert a marked message, wait until the syphon delivers it, and print the times.",
    ),
    "fault": LazyCommand(
        "pairbus.cli.fault", "Inject faults into a namespace to practise outages, list them, and clear them."
    ),
    "syphon": LazyCommand(
        "pairbus.cli.syphon", "Deliver the backlog of a pair to the primary, until stopped, or once."
    ),
    "capture": LazyCommand(
        "pairbus.cli.capture",
        "Copy the messages of queues and subscriptions to Parquet files, each message once, until stopped.",
    ),
    "cost": LazyCommand(
        "pairbus.cli.cost", "Print what namespaces have cost, from their ledgers, or forecast what pairing would cost."
    ),
    "reconcile": LazyCommand(
        "pairbus.cli.reconcile", "Account for every message of a pair: received, waiting, missing."
    ),
    "entities": LazyCommand(
        "pairbus.cli.entities",
        "List, show, create, update and delete queues, topics and subscriptions, on pairbus or Azure.",
    ),
}

app = typer.Typer(
    cls=command_group(_COMMANDS),
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_show_locals=False,  # locals may contain keys
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        print(f"pairbus {__version__} ({build()})")
        raise typer.Exit


@app.callback()
def pairbus(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show version and build, and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Run and use Service Bus namespaces and pairs of them.

    Pass a connection string as an option, in a variable, or, with @FILE, in a file. Keys are never printed in errors.

    Example: pairbus serve --data ./contoso --name contoso --port 5672 --connection-file contoso.txt

    Example: pairbus --install-completion
    """


if __name__ == "__main__":
    app()
