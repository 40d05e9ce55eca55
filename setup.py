"""Builds pairbus; with PAIRBUS_COMPILE=1 the hot modules are compiled with mypyc, from the same sources."""

import importlib.util
import os

from setuptools import setup

COMPILED = [
    "src/pairbus/wire/connection.py",
    "src/pairbus/wire/decoder.py",
    "src/pairbus/wire/encoder.py",
    "src/pairbus/wire/frames.py",
    "src/pairbus/wire/hotpath.py",
    "src/pairbus/wire/link.py",
    "src/pairbus/wire/message.py",
    "src/pairbus/wire/session.py",
]

if os.environ.get("PAIRBUS_COMPILE") != "1":
    setup()
elif importlib.util.find_spec("mypyc") is None:
    setup(setup_requires=["mypy>=2.1,<3"])  # pip installs it for the build, and asks again
else:
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(["--strict", *COMPILED], opt_level="3"))
