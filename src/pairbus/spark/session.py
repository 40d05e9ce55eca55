"""Spark sessions that start on any machine, log little, and clean up after themselves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pairbus.spark.added_settings import ADDED
from pairbus.spark.java import java_home, packaged_java_home

_LOOPBACK: Final = "127.0.0.1"
_EXIT_TIMEOUT_S: Final = 10.0

_SQL: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.python.filterPushdown.enabled": "true"}

_LAUNCHED: Final = {
    **_SQL,
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL: Final = {
    **_LAUNCHED,
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}

LIGHT: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For short work on this machine, or work that Java only passes on to processes with which it shares the processors:
the cost of its optimizing compiler and its parallel collector would never pay off."""

# Spark's shell reads the level of the second logger, and prints a notice if it differs from the root level.
_LOGGING: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
appender.console.name = console
appender.console.type = Console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""

_leases: dict[SparkSession, int] = {}
"""Number of users of each session that ``ensured_session`` started."""

_starting = threading.Lock()
"""Only one session is started at a time, since the environment is shared by the process."""


class SparkStartError(RuntimeError):
    """Spark did not start with the given master and configuration."""


def spark_session(
    master: str = "local[*]", *, app_name: str = "pairbus", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session unchanged, or start one. Inside ``spark-submit`` the master given there is used.

    ``config`` takes precedence over the settings made here. It is visible in the process list, so it must not contain
    keys. A cluster keeps its own configuration of addresses, directories, logs and user interface.

    Raise ``JavaNotFoundError`` if there is no Java to start it with, and ``SparkStartError`` if it does not start.
    """
    return _obtain(master, {"spark.app.name": app_name, **(config or {})})[0]


@contextmanager
def ensured_session(
    master: str = "local[*]", *, app_name: str = "pairbus", config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Provide a session, and stop it after its last user has finished. A session that was already running is kept."""
    session = _lease(master, {"spark.app.name": app_name, **(config or {})})
    try:
        yield session
    finally:
        if _release(session):
            stop_session(session)


def stop_session(session: SparkSession) -> None:
    """Stop a session and its Java process, even if that does not respond.

    PySpark keeps that process, with its memory, until this one exits. A process started by ``spark-submit`` is kept.
    """
    with _starting:
        with warnings.catch_warnings(), suppress(Py4JError, OSError):
            warnings.simplefilter("ignore", RuntimeWarning)  # Java may have exited already
            session.stop()
        _end_java()


def end_java_quietly() -> bool:
    """End the Java process without logs of the work it interrupts. Return whether there was one.

    Threads that wait for a result from Java get an error.
    """
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return False
    with suppress(Py4JError, OSError):
        log4j = gateway.jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)
    _end_java()
    return True


def session_settings(master: str, scratch: Path, config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings to start a session with; ``scratch`` is a directory for this session alone."""
    if not is_local(master):
        return {"spark.master": master, **_LAUNCHED, **config}
    logging = f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}"
    return {
        "spark.master": master,
        **_LOCAL,
        "spark.local.dir": tempfile.gettempdir(),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **config,
        "spark.driver.extraJavaOptions": f"{logging} {config.get('spark.driver.extraJavaOptions', '')}".strip(),
    }


def session_environment(
    master: str, environ: Mapping[str, str], java: Path | None, python: str
) -> dict[str, str | None]:
    """Return the environment variables to start a session with; ``None`` for those that must be unset."""
    # Only if everything runs on this machine is it certain that the workers can use this Python.
    workers = python if is_local(master) else environ.get("PYSPARK_PYTHON", python)
    return {
        "JAVA_HOME": None if java is None else str(java),
        "PYSPARK_DRIVER_PYTHON": python,
        "PYSPARK_PYTHON": workers,
        **({"SPARK_LOCAL_IP": _LOOPBACK} if is_local(master) else {}),
    }


def is_local(master: str) -> bool:
    """Return whether everything runs on this machine."""
    return master.startswith("local")


def _obtain(master: str, config: Mapping[str, str]) -> tuple[SparkSession, bool]:
    """Return a session, and whether it is new."""
    config = {**config, **ADDED}
    with _starting:
        running = _running()
        if running is not None:
            return running, False
        if master.startswith("sc://"):
            return _build({"spark.remote": master, **_SQL, **config}), True
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java already
            return _build({**_SQL, **config}), True
        return _launch(master, config), True


def _lease(master: str, config: Mapping[str, str]) -> SparkSession:
    session, is_new = _obtain(master, config)
    with _starting:
        if is_new or session in _leases:
            _leases[session] = _leases.get(session, 0) + 1
    return session


def _release(session: SparkSession) -> bool:
    """Release a session, and return whether it was started here and has no users left."""
    with _starting:
        if session not in _leases:
            return False
        _leases[session] -= 1
        if _leases[session]:
            return False
        del _leases[session]
        return True


def is_alive(session: SparkSession) -> bool:
    """Return whether a session responds: it may have been stopped, or its Java process may have died."""
    try:
        return not _is_stopped(session) and _responds(session)
    except Exception:  # noqa: BLE001 (the error depends on how it died)
        return False


def _running() -> SparkSession | None:
    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return SparkSession.builder.getOrCreate() if _has_context() else None
    except (Py4JError, OSError):  # its Java process does not respond any more
        _end_java()
        return None
    return None if _is_stopped(session) else session


def _launch(master: str, config: Mapping[str, str]) -> SparkSession:
    java = java_home(os.environ, packaged_java_home())
    _end_java()  # a Java process left by a stopped session does not have this environment
    with ExitStack() as stack:
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-spark-", ignore_cleanup_errors=True))
        )
        logging = _LOGGING.format(level=config.get("spark.log.level", "ERROR"))
        (scratch / "log4j2.properties").write_text(logging, encoding="utf-8")
        with _environment(session_environment(master, os.environ, java, sys.executable)):
            session = _build_or_end_java(session_settings(master, scratch, config))
        weakref.finalize(session, stack.pop_all().close)
    return session


def _build(settings: Mapping[str, str]) -> SparkSession:
    return SparkSession.builder.config(map=dict(settings)).getOrCreate()


def _build_or_end_java(settings: Mapping[str, str]) -> SparkSession:
    try:
        with _signals_deferred():
            return _build(settings)
    except (Py4JError, PySparkRuntimeError) as error:
        reason = _reason(error)  # ask before Java is ended
        _end_java()
        raise SparkStartError(f"Spark did not start with the master {settings['spark.master']!r}: {reason}") from None
    except BaseException:
        _end_java()
        raise


def _reason(error: Exception) -> str:
    """Return the message of an error without Java's stack trace."""
    lines = str(error).splitlines()
    return next((line[2:] for line in lines if line.startswith(": ")), lines[0])


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    _set_environment(changes)
    try:
        yield
    finally:
        _set_environment(before)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Hold back Ctrl-C until Spark is running: a Java process that is just starting would be left behind.

    SIGTERM is held back, too, if the application handles it. PySpark installs a handler for Ctrl-C that ends
    everything, even if the application has one: that one is restored.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not handled:
        yield
        return
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    for number in handled:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handled.items():
            if handler is not signal.default_int_handler or signal.getsignal(number) is note:
                signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# The rest uses internals of PySpark: there is no public access to its Java process.


def _has_context() -> bool:
    return SparkContext._active_spark_context is not None  # noqa: SLF001


def _is_stopped(session: SparkSession) -> bool:
    context = getattr(session, "_sc", None)  # None for a Spark Connect session
    return context is not None and context._jsc is None  # noqa: SLF001


def _responds(session: SparkSession) -> bool:
    """Request a value that only the server side knows."""
    context = getattr(session, "_sc", None)
    return bool(session.version) if context is None else not context._jsc.sc().isStopped()  # noqa: SLF001


def _end_java() -> None:
    gateway = SparkContext._gateway  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    with suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr] # Java exits when its standard input is closed
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


_DEFAULT_PYTHON: Final = "python3"
"""The Python that Spark takes from the PATH if PYSPARK_PYTHON was not set when its session was created."""

_PROBE: Final = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pairbus') is None)"
_PROBE_TIMEOUT_S: Final = 30.0


class WorkerPythonError(RuntimeError):
    """Spark's workers run a Python that cannot import pairbus."""


class WorkerContext(Protocol):
    """The part of ``SparkContext`` that concerns workers."""

    master: str | None
    pythonExec: str  # noqa: N815 (Spark's name)
    _python_includes: list[str] | None


def prepare_workers(context: WorkerContext) -> None:
    """Make local workers run this Python, unless the session has another one set. Raise ``WorkerPythonError``.

    A script run as ``venv/bin/python script.py`` has the packages of its environment, but the ``python3`` of the PATH
    is another one. Workers of a cluster keep theirs, which is checked as far as this machine can.
    """
    if context.pythonExec == _DEFAULT_PYTHON and is_local(context.master or ""):
        context.pythonExec = sys.executable
        return
    executable = shutil.which(context.pythonExec)
    if executable in (None, sys.executable) or context._python_includes or _has_pairbus(str(executable)):  # noqa: SLF001
        return
    raise WorkerPythonError(
        f"Spark runs its workers with {executable}, which cannot import pairbus; set the environment variable"
        f" PYSPARK_PYTHON to a Python that has it, such as {sys.executable}, before the session is created"
    )


def _has_pairbus(executable: str) -> bool:
    try:
        return subprocess.run([executable, "-c", _PROBE], timeout=_PROBE_TIMEOUT_S, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return True  # unknown; let the workers report it
