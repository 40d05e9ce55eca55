"""A Spark session that starts on any machine, keeps quiet, and leaves nothing behind."""

from __future__ import annotations

import os
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
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pairbus.spark.java import java_home, packaged_java_home

_LOOPBACK: Final = "127.0.0.1"
_GOODBYE_S: Final = 10.0

_TIME: Final = {"spark.sql.session.timeZone": "UTC"}

_LAUNCHED: Final = {
    **_TIME,
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
"""For little work on this machine, or work that Java only passes on to those with whom it shares the processors: what
its best compiler and its parallel collector take is never earned back."""

# The second logger is the one that Spark's shell asks how much to say, and says so aloud if that is not what all say.
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
"""How many need each session that was started for them."""

_starting = threading.Lock()
"""The environment is everybody's: one session is started at a time."""


class SparkStartError(RuntimeError):
    """Spark cannot be started as it was asked for."""


def spark_session(
    master: str = "local[*]", *, app_name: str = "pairbus", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that is running, as it is; else a new one. Inside ``spark-submit`` the master is the one given there.

    ``config`` goes before what is set here. It can be read in the list of processes: no place for keys. A cluster keeps
    what it is configured with in all that concerns addresses, directories, logs and its user interface.

    Raises ``JavaNotFoundError`` if there is no Java to start it with, and ``SparkStartError`` if it does not start.
    """
    return _obtain(master, {"spark.app.name": app_name, **(config or {})})[0]


@contextmanager
def ensured_session(
    master: str = "local[*]", *, app_name: str = "pairbus", config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for as long as it is needed: by all who have it from here. One that was there before goes on."""
    session = _lease(master, {"spark.app.name": app_name, **(config or {})})
    try:
        yield session
    finally:
        if _is_last(session):
            stop_session(session)


def stop_session(session: SparkSession) -> None:
    """Stop a session and the Java process behind it, whether that still answers or not.

    PySpark leaves that process until this one ends, with all its memory. One that ``spark-submit`` began is not ended.
    """
    with _starting:
        with warnings.catch_warnings(), suppress(Py4JError, OSError):
            warnings.simplefilter("ignore", RuntimeWarning)  # Java may be gone, which is what is wanted
            session.stop()
        _end_java()


def end_java_quietly() -> bool:
    """End the Java process, and keep it from logging what that interrupts; returns whether there was one.

    Whoever waits for it, in another thread, gets an error.
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
    """What a session is started with; ``scratch`` is a directory of its own."""
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
    """What has to be in the environment while a session is started; ``None`` for what must not be."""
    # Only where everything runs on this machine is it certain that all of it can have this Python.
    workers = python if is_local(master) else environ.get("PYSPARK_PYTHON", python)
    return {
        "JAVA_HOME": None if java is None else str(java),
        "PYSPARK_DRIVER_PYTHON": python,
        "PYSPARK_PYTHON": workers,
        **({"SPARK_LOCAL_IP": _LOOPBACK} if is_local(master) else {}),
    }


def is_local(master: str) -> bool:
    """Whether everything runs on this machine."""
    return master.startswith("local")


def _obtain(master: str, config: Mapping[str, str]) -> tuple[SparkSession, bool]:
    """Give a session, and whether it is a new one."""
    with _starting:
        running = _running()
        if running is not None:
            return running, False
        if master.startswith("sc://"):
            return _build({"spark.remote": master, **_TIME, **config}), True
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started everything already
            return _build({**_TIME, **config}), True
        return _launched(master, config), True


def _lease(master: str, config: Mapping[str, str]) -> SparkSession:
    session, is_new = _obtain(master, config)
    with _starting:
        if is_new or session in _leases:
            _leases[session] = _leases.get(session, 0) + 1
    return session


def _is_last(session: SparkSession) -> bool:
    """Whether nobody needs a session any more that was started for those who do."""
    with _starting:
        if session not in _leases:
            return False
        _leases[session] -= 1
        if _leases[session]:
            return False
        del _leases[session]
        return True


def is_alive(session: SparkSession) -> bool:
    """Whether a session still answers: it may have been stopped, and Java may have died."""
    try:
        return not _is_stopped(session) and _answers(session)
    except Exception:  # noqa: BLE001 (it depends on how it has died)
        return False


def _running() -> SparkSession | None:
    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return SparkSession.builder.getOrCreate() if _has_context() else None
    except (Py4JError, OSError):  # it was running, but its Java does not answer any more
        _end_java()
        return None
    return None if _is_stopped(session) else session


def _launched(master: str, config: Mapping[str, str]) -> SparkSession:
    java = java_home(os.environ, packaged_java_home())
    _end_java()  # one that a stopped session has left knows nothing of this environment
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
        with _signals_kept():
            return _build(settings)
    except (Py4JError, PySparkRuntimeError) as error:
        reason = _reason(error)  # it is Java that knows
        _end_java()
        raise SparkStartError(f"Spark did not start with the master {settings['spark.master']!r}: {reason}") from None
    except BaseException:
        _end_java()
        raise


def _reason(error: Exception) -> str:
    """What happened, without the lines that say where in Java."""
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
def _signals_kept() -> Iterator[None]:
    """Ctrl-C waits until Spark is there: nobody knows a Java yet that has just been started, and it would be left.

    So does SIGTERM where somebody has said what it should do. PySpark then has Ctrl-C end everything, also where
    somebody has said what else it should do: that is put back.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not ours:
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    for number in ours:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in ours.items():
            if handler is not signal.default_int_handler or signal.getsignal(number) is note:
                signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# What follows is not part of PySpark's interface: there is no other way to its Java process.


def _has_context() -> bool:
    return SparkContext._active_spark_context is not None  # noqa: SLF001


def _is_stopped(session: SparkSession) -> bool:
    context = getattr(session, "_sc", None)  # a session of Spark Connect has none
    return context is not None and context._jsc is None  # noqa: SLF001


def _answers(session: SparkSession) -> bool:
    """Asks for something that is known there alone."""
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
        process.stdin.close()  # type: ignore[union-attr] # Java ends when nobody can write there any more
    try:
        process.wait(_GOODBYE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
