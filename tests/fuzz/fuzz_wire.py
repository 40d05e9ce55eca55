"""Fuzzes the wire with atheris: ``python tests/fuzz/fuzz_wire.py -runs=1000000``, and any other option of libFuzzer."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

LARGEST = 2048
"""The largest input, unless ``-max_len`` says otherwise: longer ones take longer and find nothing new."""


def main() -> None:
    """Fuzz in a process of its own, since libFuzzer leaves without tidying up."""
    with tempfile.TemporaryDirectory() as directory:
        fuzzer = os.fork()
        if fuzzer == 0:
            fuzz(Path(directory))
        _, status = os.waitpid(fuzzer, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def fuzz(directory: Path) -> None:
    """Write the seeds where libFuzzer looks for them, and do not return."""
    import atheris

    with atheris.instrument_imports(include=["pairbus"]):
        import pairbus.wire  # noqa: F401

    from tests.fuzz.mutation import mutate
    from tests.fuzz.seeds import corpus
    from tests.fuzz.targets import run

    for number, data in enumerate(corpus()):
        (directory / str(number)).write_bytes(data)
    runs = next((int(option[6:]) for option in sys.argv if option.startswith("-runs=")), -1)
    count = 0

    def fuzz_one(data: bytes) -> None:
        nonlocal count
        count += 1
        run(data)
        if count == runs:
            print(f"{count} inputs", flush=True)

    def mutate_one(data: bytes, largest: int, seed: int) -> bytes:
        return mutate(data, largest, Random(seed), atheris.Mutate)  # noqa: S311

    options = [sys.argv[0], f"-max_len={LARGEST}", *sys.argv[1:], str(directory)]
    atheris.Setup(options, fuzz_one, custom_mutator=mutate_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
