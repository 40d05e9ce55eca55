"""E3, E5: the hostile peers whose input takes most decoding, on a compiled server (``make compiled``)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from benchmarks.transfer import COMPILED
from tests.server.test_hostile_peers import (
    COMES_BACK_BYTES,
    CONNECTIONS,
    HOSTILE,
    Served,
    exchange,
    measured,
    prepare,
    say,
    send_chosen_keys,
    visit,
)
from tests.waiting import eventually

KINDS: Final = (
    "requests of empty lists",
    "attaches of empty lists",
    "maps whose keys have the same hash",
    "requests with many properties",
    "deep JSON in a token",
    "noise",
)

pytestmark = [
    pytest.mark.slow,
    measured,
    pytest.mark.skipif(
        not (COMPILED / ".ready").exists(), reason="pairbus is not compiled: build/compiled is missing (make compiled)"
    ),
]


class CompiledServed(Served):
    """A namespace whose process runs the compiled build."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.program = (sys.executable, "-m", "pairbus.cli.main")
        self.environment = {"PYTHONPATH": str(COMPILED)}

    @property
    def libraries(self) -> set[str]:
        """Return the names of the extension modules of the package that the process has loaded."""
        assert self._process is not None
        maps = Path(f"/proc/{self._process.pid}/maps").read_text("ascii").splitlines()
        loaded = {Path(line.split()[-1]) for line in maps if line.endswith(".so")}
        inside = [path.relative_to(COMPILED) for path in loaded if path.is_relative_to(COMPILED)]
        return {str(path).partition(".")[0] for path in inside}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompiledServed]:
    with CompiledServed(tmp_path_factory.mktemp("hostile") / "contoso") as process:
        asyncio.run(prepare(process))
        visit(process)
        yield process


def test_compiled_modules_are_loaded(compiled: CompiledServed) -> None:
    # Those that another compiled module loads first are a part of the library that all of them share.
    assert {"pairbus/wire/connection", "pairbus/callbacks"} <= compiled.libraries


@pytest.mark.parametrize("kind", KINDS)
def test_e5_hostile_peers_do_not_affect_an_honest_client_of_the_compiled_build(
    compiled: CompiledServed, kind: str
) -> None:
    before, data = compiled.resident_bytes, HOSTILE[kind]()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            say(stack.enter_context(compiled.connect()), data)
        asyncio.run(exchange(compiled))
    eventually(lambda: compiled.resident_bytes - before < COMES_BACK_BYTES)
    asyncio.run(exchange(compiled))


def test_e3_keys_with_the_same_hash_do_not_affect_other_clients_of_the_compiled_build(compiled: CompiledServed) -> None:
    send_chosen_keys(compiled)
