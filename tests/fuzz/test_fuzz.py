"""Fuzzing: a moment of it in every run of the tests, and many inputs when there is time."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pairbus.wire import (
    Attach,
    Begin,
    Configuration,
    Connection,
    EncodeError,
    Error,
    LocalProtocolError,
    Open,
    SaslCode,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME
from pairbus.wire.performatives import Close, Detach, End, SaslOutcome
from tests.fuzz.mutation import mutate
from tests.fuzz.seeds import FRAMES, MESSAGES, SASL_FRAMES, STREAMS, VALUES, corpus
from tests.fuzz.targets import TARGETS, run
from tests.fuzz.watcher import Watcher
from tests.thoroughness import times
from tests.wire.pair import frame

HARNESS = Path(__file__).with_name("fuzz_wire.py")
RUNS = 40_000
LARGEST = 2048

CORPUS = corpus()


def scramble(data: bytes, largest: int, random: Random) -> bytes:
    """Change a few bytes without knowing what they mean, as libFuzzer does for the real thing."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        place = random.randint(0, len(changed))
        match random.randrange(4):
            case 0:
                changed[place:place] = random.choice((b"\0", b"\xff", b"\x40", b"\x00\x53", random.randbytes(4)))
            case 1:
                del changed[place : place + random.randint(1, 4)]
            case 2 if place < len(changed):
                changed[place] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
            case _ if place < len(changed):
                changed[place] ^= 1 << random.randrange(8)
    return bytes(changed[:largest])


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """Inputs that are a few changes away from ones that mean something."""
    data = draw(st.sampled_from(CORPUS))
    random = Random(draw(st.integers(0, 2**32)))  # noqa: S311
    for _ in range(draw(st.integers(1, 8))):
        data = mutate(data, LARGEST, random, lambda part, largest: scramble(part, largest, random))
    return data


def test_every_target_has_inputs_to_start_from() -> None:
    assert {data[0] for data in CORPUS} == set(range(len(TARGETS)))


@pytest.mark.parametrize("target", range(len(TARGETS)), ids=lambda number: TARGETS[number].__name__)
def test_no_input_to_start_from_breaks_its_target(target: int) -> None:
    for data in CORPUS:
        if data[0] == target:
            run(data)


def test_every_target_accepts_every_fragment() -> None:
    for target in range(len(TARGETS)):
        for piece in (*VALUES, *MESSAGES, *FRAMES, *SASL_FRAMES, *STREAMS):
            run(bytes([target, 0]) + piece)
            run(bytes([target]) + piece)


@settings(max_examples=times(1500), deadline=None)
@given(mutants())
def test_almost_valid_inputs_raise_only_protocol_errors(data: bytes) -> None:
    run(data)


@settings(max_examples=times(500), deadline=None)
@given(st.binary(max_size=200))
@example(b"")
def test_random_inputs_raise_only_protocol_errors(data: bytes) -> None:
    run(data)


@pytest.mark.parametrize("error", [IndexError, RecursionError, AssertionError, EncodeError, LocalProtocolError])
def test_other_errors_of_a_target_are_detected(error: type[Exception]) -> None:
    def fail(data: bytes) -> None:
        raise error(data)

    with pytest.raises(error):
        run(b"\0anything", [fail])


def test_invalid_output_is_detected() -> None:
    opened = Watcher()
    engine = Connection(Configuration(container_id="engine"))
    engine.open()
    opened.watch(engine.data_to_send(), engine)
    for wrong in (
        frame(Open(container_id="again")),
        frame(End(), channel=1),
        frame(Attach(name="nowhere", handle=0, role=True), channel=1),
        frame(Close()) + frame(Close()),
        frame(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)) + frame(Detach(handle=5)),
        AMQP_HEADER,
        frame(SaslOutcome(code=SaslCode.OK), kind=SASL_FRAME),
        frame(Close(error=Error("too:large", "." * 600))),
        frame()[:-1] + b"\0" * 9,
    ):
        with pytest.raises((AssertionError, struct.error)):
            deepcopy(opened).watch(wrong, engine)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_inputs_raise_only_protocol_errors(tmp_path: Path) -> None:
    if find_spec("atheris") is None:
        assert os.environ.get("CI") != "true", "atheris is not installed: pip install pairbus[fuzz]"
        pytest.skip("atheris is not installed: pip install pairbus[fuzz]")
    harness = subprocess.run(
        [sys.executable, str(HARNESS), f"-runs={RUNS}", "-seed=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = harness.stdout + harness.stderr
    assert harness.returncode == 0, said[-5000:]
    assert re.search(rf"^{RUNS} inputs$", harness.stdout, re.MULTILINE), said[-5000:]
    assert f"Done {RUNS} runs" in said
