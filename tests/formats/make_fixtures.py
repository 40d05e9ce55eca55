"""Writes fixtures of every stored format, as this version writes them.

Run ``python -m tests.formats.make_fixtures --label LABEL`` once before a change of a stored format, and commit what it
writes: ``tests/formats/VERSION-LABEL``. Fixtures are never written anew: they are what a version has left behind.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pairbus.store import keys
from tests.formats import (
    capture_fixture,
    ledger_fixture,
    namespace_fixture,
    pair_fixture,
    side_buffer_fixture,
    streams_fixture,
)
from tests.formats.fixture import directory_of, write_fixture
from tests.formats.format_versions import records_in
from tests.spark.class_archive import java_options

MAKERS: Final[Mapping[str, Callable[[Path], dict[str, Any]]]] = {
    each.KIND: each.make
    for each in (
        namespace_fixture,
        side_buffer_fixture,
        ledger_fixture,
        streams_fixture,
        capture_fixture,
        pair_fixture,
    )
}


def main() -> None:
    arguments = _arguments()
    directory = directory_of(arguments.label)
    if directory.exists():
        sys.exit(f"{directory} exists: fixtures are never written anew; give another --label")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())
    with tempfile.TemporaryDirectory(prefix="pairbus-formats-") as scratch:
        written = Path(scratch) / "written"
        written.mkdir()
        for kind in arguments.kinds:
            content = Path(scratch) / kind / "content"
            content.mkdir(parents=True)
            print(f"{kind} …", flush=True)
            write_fixture(written, kind, content, MAKERS[kind](content))
        if arguments.kinds == [*MAKERS]:
            _expect_every_record(Path(scratch))
        directory.mkdir()
        for path in sorted(written.iterdir()):
            (directory / path.name).write_bytes(path.read_bytes())
            print(f"{path.stat().st_size:>8,} {directory / path.name}")


def _expect_every_record(scratch: Path) -> None:
    """Check that a record of each kind was written."""
    found = {key[:1] for path in scratch.rglob("data.mdb") for key, _ in records_in(path)}
    assert found == keys._KINDS.keys(), f"there is no record of {keys._KINDS.keys() - found}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", default="first", help="what tells the fixtures of one version apart")
    parser.add_argument(
        "--kinds", nargs="+", choices=[*MAKERS], default=[*MAKERS], metavar="KIND", help="which of them"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
