"""Fuzzes the wire with atheris: ``python tests/fuzz/fuzz_wire.py -runs=1000000``, and any other option of libFuzzer."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Write the seeds where libFuzzer looks for them, and fuzz."""
    import atheris

    with atheris.instrument_imports(include=["pairbus"]):
        import pairbus.wire  # noqa: F401

    from tests.fuzz.mutation import mutate
    from tests.fuzz.seeds import corpus
    from tests.fuzz.targets import run

    runs = next((int(option[6:]) for option in sys.argv if option.startswith("-runs=")), -1)
    count = 0

    def fuzz(data: bytes) -> None:
        nonlocal count
        count += 1
        run(data)
        if count == runs:  # libFuzzer leaves without giving Python a last word
            print(f"{count} inputs", flush=True)

    def mutate_one(data: bytes, largest: int, seed: int) -> bytes:
        return mutate(data, largest, Random(seed), atheris.Mutate)  # noqa: S311

    with tempfile.TemporaryDirectory() as directory:
        for number, data in enumerate(corpus()):
            Path(directory, str(number)).write_bytes(data)
        atheris.Setup([*sys.argv, directory], fuzz, custom_mutator=mutate_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
