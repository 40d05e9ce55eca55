"""Run every benchmark: ``make bench``.

The exit code is 1 if an overloaded server, or a job over ledgers, misses a goal.
"""

import os
import sys
import time
from typing import Final

from benchmarks import (
    broker,
    broker_growth,
    client,
    comparison,
    growth,
    hostile,
    ledgers,
    metering,
    overload,
    pairing,
    rules,
    server,
    server_scale,
    sessions,
    single_send,
    startup,
    syphon,
    transfer,
)

_QUIET_WITHIN_S: Final = 180.0
_PAUSE_S: Final = 5.0


def wait_until_quiet() -> None:
    """Wait, for a while, until the load average is low enough to judge the overloaded server."""
    deadline_s = time.monotonic() + _QUIET_WITHIN_S
    while os.getloadavg()[0] > overload.QUIET_LOAD * (os.cpu_count() or 1) and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    comparison.report()
    print()
    wait_until_quiet()
    missed = overload.report()
    print()
    transfer.compare()
    print()
    growth.report()
    print()
    broker.report()
    print()
    broker_growth.report()
    print()
    server.report()
    print()
    server_scale.report()
    print()
    single_send.report()
    print()
    sessions.report()
    print()
    rules.report()
    print()
    startup.report()
    print()
    client.report()
    print()
    pairing.report()
    print()
    pairing.report_compiled()
    print()
    syphon.report()
    print()
    metering.report()
    print()
    missed |= ledgers.report()
    print()
    hostile.report()
    sys.exit(missed)
