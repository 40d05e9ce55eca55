"""Builds pairbus; with PAIRBUS_COMPILE=1 the hot modules are compiled with mypyc, from the same sources."""

import importlib.util
import os

from setuptools import setup

# One group, in which calls from one module to another cost least. docs/adr/0002-compiled-from-the-same-source.md says
# what compiled code must not do.
COMPILED = [
    "src/pairbus/broker/catalogue.py",
    "src/pairbus/broker/context.py",
    "src/pairbus/broker/duplicates.py",
    "src/pairbus/broker/entity.py",
    "src/pairbus/broker/housekeeping.py",
    "src/pairbus/broker/ports.py",
    "src/pairbus/broker/queue.py",
    "src/pairbus/broker/repair.py",
    "src/pairbus/broker/restoration.py",
    "src/pairbus/broker/router.py",
    "src/pairbus/broker/rules.py",
    "src/pairbus/broker/session.py",
    "src/pairbus/broker/settlement.py",
    "src/pairbus/broker/sql/evaluation.py",
    "src/pairbus/broker/sql/filter.py",
    "src/pairbus/broker/sql/operators.py",
    "src/pairbus/broker/sql/parser.py",
    "src/pairbus/broker/sql/syntax.py",
    "src/pairbus/broker/transaction.py",
    "src/pairbus/broker/validation.py",
    "src/pairbus/callbacks.py",
    "src/pairbus/client/amqp/connection.py",
    "src/pairbus/client/amqp/link.py",
    "src/pairbus/client/amqp/receiving_link.py",
    "src/pairbus/client/amqp/sending_link.py",
    "src/pairbus/client/encoding.py",
    "src/pairbus/client/entity_link.py",
    "src/pairbus/dialect/annotations.py",
    "src/pairbus/dialect/delivered.py",
    "src/pairbus/dialect/management.py",
    "src/pairbus/dialect/paths.py",
    "src/pairbus/dialect/sent.py",
    "src/pairbus/dialect/transfer.py",
    "src/pairbus/ledger/events.py",
    "src/pairbus/ledger/ledger.py",
    "src/pairbus/ledger/write_queue.py",
    "src/pairbus/pairing/route.py",
    "src/pairbus/pairing/syphon/channel.py",
    "src/pairbus/pairing/syphon/message.py",
    "src/pairbus/pairing/syphon/order.py",
    "src/pairbus/server/access.py",
    "src/pairbus/server/amqp/attachment.py",
    "src/pairbus/server/amqp/connection.py",
    "src/pairbus/server/amqp/consumer.py",
    "src/pairbus/server/amqp/management/node.py",
    "src/pairbus/server/amqp/management/operations.py",
    "src/pairbus/server/amqp/node.py",
    "src/pairbus/server/amqp/producer.py",
    "src/pairbus/server/amqp/requests.py",
    "src/pairbus/server/amqp/services.py",
    "src/pairbus/server/clock.py",
    "src/pairbus/server/counters.py",
    "src/pairbus/server/dispatcher.py",
    "src/pairbus/server/entity_traffic.py",
    "src/pairbus/server/errors.py",
    "src/pairbus/server/event_recorder.py",
    "src/pairbus/server/fault_injection.py",
    "src/pairbus/server/host.py",
    "src/pairbus/server/messages.py",
    "src/pairbus/server/metering.py",
    "src/pairbus/server/outbox.py",
    "src/pairbus/server/supervision/operation_log.py",
    "src/pairbus/server/throttle/shares.py",
    "src/pairbus/server/throttle/throttle.py",
    "src/pairbus/server/turns.py",
    "src/pairbus/server/unanswered.py",
    "src/pairbus/store/group_committer.py",
    "src/pairbus/store/keys.py",
    "src/pairbus/store/page_guard.py",
    "src/pairbus/store/page_nodes.py",
    "src/pairbus/store/pages.py",
    "src/pairbus/store/records.py",
    "src/pairbus/store/recovery.py",
    "src/pairbus/store/write_batch.py",
    "src/pairbus/wire/connection.py",
    "src/pairbus/wire/decoder.py",
    "src/pairbus/wire/encoder.py",
    "src/pairbus/wire/frames.py",
    "src/pairbus/wire/hotpath.py",
    "src/pairbus/wire/link.py",
    "src/pairbus/wire/message.py",
    "src/pairbus/wire/session.py",
    "src/pairbus/wire/trace.py",
]

if os.environ.get("PAIRBUS_COMPILE") != "1":
    setup()
elif importlib.util.find_spec("mypyc") is None:
    setup(setup_requires=["mypy>=2.1,<3"])  # pip installs it for the build, and asks again
else:
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(["--strict", *COMPILED], opt_level="3", multi_file=True))
