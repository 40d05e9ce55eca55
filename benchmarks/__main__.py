"""Run every benchmark: ``make bench``."""

from benchmarks import (
    broker,
    broker_growth,
    client,
    growth,
    hostile,
    ledgers,
    metering,
    pairing,
    server,
    server_scale,
    syphon,
    transfer,
)

if __name__ == "__main__":
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
