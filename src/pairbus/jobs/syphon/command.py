"""A syphon as a command: it runs until a signal stops it, and ends with a code."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.jobs.ending import DONE, FAILED, WAITING, Ending
from pairbus.jobs.lines import Fact, Line, Teller, told_logs
from pairbus.jobs.syphon.order import SyphonOrder
from pairbus.jobs.syphon.remains import Remains
from pairbus.jobs.syphon.standalone import Engine, Standalone

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MOST_TEXT: Final = 1_000


def run_syphon(order: SyphonOrder, engine: Engine, teller: Teller) -> Ending:
    """Do what was ordered. The first signal has it finish what is under way, the second one ends the process."""
    with told_logs(teller):
        try:
            remains = asyncio.run(_run(order, engine, teller))
        except MessagingError as error:
            return Ending(code=FAILED, reason=_one_line(str(error)))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told in one line, and the command is over)
            return Ending(code=FAILED, reason=_first_line(error))
    return _ending(remains, teller)


async def _run(order: SyphonOrder, engine: Engine, teller: Teller) -> Remains:
    return await Standalone(order, engine, teller).run(_stop_on_signals(teller))


def _stop_on_signals(teller: Teller) -> asyncio.Event:
    """An event that the first signal sets; then the signals do what they always do.

    The next one ends the process where it stands, so the terminal is put in order before.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        teller.rest()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        teller.tell(Line(event="stopping", text="stopping: what is under way is finished"))

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    return stopped


def _ending(remains: Remains, teller: Teller) -> Ending:
    if not remains:
        return Ending(code=DONE)
    for path, count in remains.counts.items():
        cause = remains.cause_of(path)
        facts: dict[str, Fact] = {"destination": path, "messages": count, "cause": cause}
        text = f"{count:,} messages for '{path}' wait: {cause}"
        teller.tell(Line(event="waiting", text=text, facts=facts, is_warning=True))
    return Ending(code=WAITING, reason=remains.summary)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first_line(error: Exception) -> str:
    """What Spark says of an error goes on for pages."""
    return _one_line(str(error).strip().partition("\n")[0])[:_MOST_TEXT] or type(error).__name__
