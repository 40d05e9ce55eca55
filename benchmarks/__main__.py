"""Run every benchmark: ``make bench``. The exit code is 1 if an overloaded server misses a goal."""

import sys

from benchmarks import (
    broker,
    broker_growth,
    client,
    growth,
    hostile,
    ledgers,
    metering,
    overload,
    pairing,
    server,
    server_scale,
    syphon,
    transfer,
)

if __name__ == "__main__":
    missed = overload.report()  # first: it is judged only if the machine was quiet before
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
    client.report()
    print()
    pairing.report()
    print()
    syphon.report()
    print()
    metering.report()
    print()
    ledgers.report()
    print()
    hostile.report()
    sys.exit(missed)
