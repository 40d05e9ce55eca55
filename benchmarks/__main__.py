"""Run every benchmark: ``make bench``."""

from benchmarks import growth, transfer

if __name__ == "__main__":
    transfer.compare()
    print()
    growth.report()
