"""Run the demo, one act after the other: ``python -m pairbus.cli.demo``."""

from __future__ import annotations

import logging
import sys

from pairbus.cli.demo.engines import Engines
from pairbus.cli.demo.outage import Outage
from pairbus.cli.demo.survivor import Survivor


def main() -> int:
    logging.getLogger("pairbus").addHandler(logging.NullHandler())  # the demo tells its own story
    print("1. Two AMQP engines talk to each other in memory\n")
    talked = Engines().run()
    print("\n2. A namespace server is killed again and again, and its client goes on\n")
    survived = Survivor().run()
    print("\n3. The primary of two paired namespaces is killed, and the application goes on sending\n")
    went_on = Outage().run()
    return 0 if talked and survived and went_on else 1


if __name__ == "__main__":
    sys.exit(main())
