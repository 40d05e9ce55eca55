"""Programs that fork, or exit without closing; each runs in a separate process, with a connection string."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread

from pairbus.blocking import (
    BrokeredMessage,
    ClosedError,
    MessagingFactory,
    NamespaceManager,
    Token,
    TokenProvider,
)

QUEUE = "orders"
SESSIONS = "tables"


def send(factory: MessagingFactory, body: bytes) -> None:
    factory.create_message_sender(QUEUE).send(BrokeredMessage(body))


def refusal_of(use: Callable[[], object]) -> str:
    try:
        use()
    except ClosedError as error:
        return str(error)
    raise AssertionError("it was not refused")


def in_a_child(work: Callable[[], None]) -> None:
    """Fork; the child does the work, and ends as programs do. The parent waits for it."""
    child = os.fork()
    if not child:
        work()
        raise SystemExit
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child has ended with {status}"


def fork(connection: str) -> None:
    """Check that objects used before a fork raise in the child and work in the parent."""
    with MessagingFactory.from_connection_string(connection) as used:
        unused = MessagingFactory.from_connection_string(connection)
        sender = used.create_message_sender(QUEUE)
        receiver = used.create_message_receiver(QUEUE, prefetch_count=10)
        sender.send(BrokeredMessage(b"parent, before"))
        assert len(receiver.receive(1, timedelta(minutes=1))) == 1

        def work() -> None:
            for use in (lambda: sender.send(BrokeredMessage(b"no")), receiver.receive, lambda: send(used, b"no")):
                assert "fork" in refusal_of(use)
            used.close()
            gc.collect()
            send(unused, b"child, with what was not used before")
            with MessagingFactory.from_connection_string(connection) as own:
                send(own, b"child")
                in_a_child(grandchild)

        def grandchild() -> None:
            send(MessagingFactory.from_connection_string(connection), b"grandchild")

        in_a_child(work)
        sender.send(BrokeredMessage(b"parent, after"))
        send(unused, b"parent, with what was used by the child only")


def fork_while_threads_send(connection: str) -> None:
    """Forks that fall into the calls of other threads."""
    with MessagingFactory.from_connection_string(connection) as factory:
        is_over = Event()
        sender = factory.create_message_sender(QUEUE)
        sender.send(BrokeredMessage(b"first"))  # no fork while the C library resolves a name, which takes locks

        def send_on() -> None:
            while not is_over.is_set():
                sender.send(BrokeredMessage(b"thread"))

        threads = [Thread(target=send_on) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(10):
            child = os.fork()
            if not child:
                own = MessagingFactory.from_connection_string(connection)
                send(own, f"child {number}".encode())
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        is_over.set()
        for thread in threads:
            thread.join()


def leave_everything_open(connection: str) -> None:
    """Ends while things are open, locks are renewed, and a thread waits for messages."""
    factory = MessagingFactory.from_connection_string(connection)
    NamespaceManager.from_connection_string(connection).get_queues()
    client = factory.create_queue_client(QUEUE, prefetch_count=10, max_auto_lock_renewal=timedelta(hours=1))
    client.send([BrokeredMessage(b"one"), BrokeredMessage(b"two")])
    tables = factory.create_queue_client(SESSIONS)
    tables.send(BrokeredMessage(b"one", session_id="7"))
    assert tables.accept_message_session("7").get_state() is None
    has_one = Event()

    def iterate() -> None:
        for _ in client:
            has_one.set()

    def send_on() -> None:
        while True:
            send(factory, b"on and on")

    for work in (iterate, send_on, send_on, send_on):
        Thread(target=work, daemon=True).start()
    assert has_one.wait(60)
    print("done")


def end_while_the_loop_is_blocked(connection: str) -> None:
    """Ends while the loop's thread does not come back from a token provider."""
    is_there = Event()

    class Endless(TokenProvider):
        async def get_token(self, audience: str) -> Token:  # noqa: ARG002
            is_there.set()
            Event().wait()
            raise AssertionError

    endpoint = MessagingFactory.from_connection_string(connection).endpoint
    factory = MessagingFactory.create(endpoint, Endless())
    Thread(target=lambda: send(factory, b"never"), daemon=True).start()
    assert is_there.wait(60)
    print("done")


def use_it_at_the_end(connection: str) -> None:
    """Check that exit handlers of the program run before the end of the loop."""
    factory = MessagingFactory.from_connection_string(connection)
    sender = factory.create_message_sender(QUEUE)

    sender.send(BrokeredMessage(b"hello"))  # to connect then would be too late

    def at_the_end() -> None:
        sender.send(BrokeredMessage(b"goodbye"))
        factory.close()
        print("done")

    atexit.register(at_the_end)


def use_it_after_the_end(connection: str) -> None:
    """Afterwards it refuses, and can be closed."""
    factory = MessagingFactory.from_connection_string(connection)
    sender = factory.create_message_sender(QUEUE)

    def after_the_end() -> None:
        assert "ending" in refusal_of(lambda: sender.send(BrokeredMessage(b"goodbye")))
        factory.close()
        print("done")

    # What was registered before the package was imported comes after what the package has registered.
    BEFORE.append(after_the_end)


BEFORE: list[Callable[[], None]] = []


def interrupt_the_end(connection: str) -> None:
    """Ctrl-C out of a wait, and out of the program, with nothing said but that."""
    factory = MessagingFactory.from_connection_string(connection)
    receiver = factory.create_message_receiver(QUEUE)
    main = threading.main_thread().ident
    assert main is not None
    Thread(target=lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with factory:
        for _ in receiver:
            pass
