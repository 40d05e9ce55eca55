"""Run every benchmark: ``make bench``."""

from benchmarks import broker, broker_growth, growth, transfer

if __name__ == "__main__":
    transfer.compare()
    print()
    growth.report()
    print()
    broker.report()
    print()
    broker_growth.report()
