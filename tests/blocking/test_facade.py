"""The blocking client has what the asyncio client has: every name, every method, every signature."""

from __future__ import annotations

import inspect
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import pairbus
from pairbus import blocking
from pairbus.blocking import facade
from tests.blocking.make_facade import CLASSES, FILES, IN_PLACE_OF, NAMES, NOT_FOR_APPLICATIONS

ROOT = Path(__file__).resolve().parents[2]
ASYNCHRONOUS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
ON_THE_LOOP = {"TokenProvider", "PairedNamespaceOptions", "Syphon"}
"""Public classes that run on the event loop, and that blocking code does not call."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_facade_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path](), "run: python tests/blocking/make_facade.py"


def test_facade_has_every_public_name() -> None:
    assert sorted(blocking.__all__) == sorted(pairbus.__all__)
    for name in pairbus.__all__:
        ours, theirs = getattr(blocking, name), getattr(pairbus, name)
        assert (ours is theirs) == (name not in NAMES), name


def test_every_class_with_coroutines_is_wrapped() -> None:
    for name in pairbus.__all__:
        thing = getattr(blocking, name)
        waits = isinstance(thing, type) and any(
            inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(thing)
        )
        assert not waits or name in ON_THE_LOOP, f"{name} has coroutine functions"


@pytest.mark.parametrize("wrapped", CLASSES, ids=lambda kind: kind.__name__)
def test_every_method_has_signature_of_wrapped_one(wrapped: type) -> None:
    wrapper = getattr(facade, wrapped.__name__)
    compared = 0
    for name, member in vars(wrapped).items():
        if name in NOT_FOR_APPLICATIONS.get(wrapped, ()):
            assert not hasattr(wrapper, name), name
            continue
        if name.startswith("_") and name not in ASYNCHRONOUS:
            continue
        ours = inspect.getattr_static(wrapper, ASYNCHRONOUS.get(name, name))
        assert isinstance(ours, property) == isinstance(member, property), name
        if isinstance(member, property):
            assert _returns(ours.fget) == _returns(member.fget)
        else:
            assert _signature(ours) == _signature(member), name
        compared += 1
    assert compared or wrapped.__name__ in {"TopicClient", "SendAvailabilityPairedNamespaceOptions"}


def _signature(function: Any) -> list[tuple[str, object, object, object]]:
    plain = function.__func__ if isinstance(function, classmethod) else function
    assert not isinstance(plain, staticmethod)
    signature = inspect.signature(plain)
    parameters = [
        (parameter.name, parameter.kind, _here(parameter.annotation), _default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    names = ["kind", "error", "trace"]  # the arguments of a context manager
    is_exit = [name for name, *_ in parameters][1:3] == names[:2]
    return [("", None, _here(signature.return_annotation), None), *([] if is_exit else parameters)]


def _here(annotation: Any) -> object:
    return IN_PLACE_OF.get(annotation, annotation)


def _default(value: object) -> object:
    return value.name if isinstance(value, Enum) else value


def _returns(function: Any) -> object:
    return inspect.signature(function).return_annotation


def test_wrappers_have_hierarchy_of_wrapped_classes() -> None:
    for one in CLASSES:
        for other in CLASSES:
            assert issubclass(getattr(facade, one.__name__), getattr(facade, other.__name__)) == issubclass(one, other)


def test_import_starts_no_thread() -> None:
    program = (
        "import threading, pairbus.blocking as blocking\n"
        "factory = blocking.MessagingFactory.create('sb://127.0.0.1:1')\n"
        "print(factory.state.name, threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert done.stdout == "OPEN 1\n"
