"""The loop's thread: many callers, errors, interruptions, and calls from where one would wait for oneself."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta

import pytest

from pairbus.blocking import (
    BrokeredMessage,
    EntityNotFoundError,
    MessageReceiver,
    MessagingFactory,
    ReceiveMode,
    Token,
    TokenProvider,
    UnauthorizedError,
)
from pairbus.blocking.loop import LoopThread, loop_of_this_process
from pairbus.testing import RunningNamespace, running_namespace

THREADS = 50
SOON = timedelta(seconds=30)
QUEUE = "orders"
COLOUR: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
def loop() -> LoopThread:
    return loop_of_this_process()


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=[QUEUE]) as running:
        yield running


@pytest.fixture
def factory(namespace: RunningNamespace) -> Iterator[MessagingFactory]:
    with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
        yield factory
        with factory.create_message_receiver(QUEUE, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            while receiver.receive(1_000, timedelta()):
                pass


async def answer() -> int:
    return 42


# Threads


def test_process_has_one_loop(loop: LoopThread) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        assert {*pool.map(lambda _: loop_of_this_process(), range(THREADS))} == {loop}


def test_calls_of_many_threads_run_concurrently(loop: LoopThread) -> None:
    everybody = asyncio.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        places = pool.map(lambda _: loop.call(everybody.wait), range(THREADS), timeout=60)
    assert sorted(places) == [*range(THREADS)]


def test_threads_share_objects(factory: MessagingFactory) -> None:
    client = factory.create_queue_client(QUEUE, prefetch_count=100)
    sent = [f"{number}".encode() for number in range(THREADS * 10)]

    def receive_one(_: int) -> bytes:
        (message,) = client.receive(1, SOON)
        client.complete(message)
        body: bytes = message.body
        return body

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda body: client.send(BrokeredMessage(body)), sent))
        assert sorted(pool.map(receive_one, range(len(sent)))) == sorted(sent)
    assert client.peek(1, 0) == []


def test_operation_sees_context_of_caller(loop: LoopThread) -> None:
    async def colour() -> str:
        return COLOUR.get()

    token = COLOUR.set("red")
    try:
        assert loop.call(colour) == "red"
    finally:
        COLOUR.reset(token)
    assert loop.call(colour) == "none"


# Errors


def test_traceback_shows_caller_and_origin(factory: MessagingFactory) -> None:
    def the_caller() -> None:
        factory.create_message_sender("nowhere").send(BrokeredMessage(b"one"))

    with pytest.raises(EntityNotFoundError) as caught:
        the_caller()
    frames = traceback.extract_tb(caught.value.__traceback__)
    names = [frame.name for frame in frames]
    assert names.index("the_caller") < names.index("send") < names.index("call")
    assert any(frame.filename.endswith("client/sender.py") for frame in frames[names.index("call") :])


def test_error_leaves_no_reference_cycle(loop: LoopThread) -> None:
    class Thing:
        pass

    async def failing(thing: Thing) -> None:
        raise ValueError(thing)

    thing = Thing()
    seen = weakref.ref(thing)
    gc.disable()
    try:
        with suppress(ValueError):
            loop.call(failing, thing)
        del thing
        loop.call(answer)  # the loop has turned, and forgotten the task
        assert seen() is None
    finally:
        gc.enable()


def test_system_exit_does_not_end_loop_for_others(loop: LoopThread) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def leave_later() -> asyncio.Task[None]:
        task = asyncio.create_task(leave())
        task.add_done_callback(lambda task: task.exception())
        return task

    with pytest.raises(SystemExit):
        loop.call(leave)
    task = loop.call(leave_later)
    assert loop.call(answer) == 42
    assert task.done()


def test_objects_with_connections_cannot_be_pickled(factory: MessagingFactory) -> None:
    for thing in (factory, factory.create_message_sender(QUEUE)):
        with pytest.raises(TypeError, match="create it where it is used"):
            pickle.dumps(thing)


# Where one would wait for oneself


def test_blocking_call_on_loop_is_rejected(loop: LoopThread) -> None:
    async def nested() -> int:
        return loop.call(answer)

    with pytest.raises(RuntimeError, match="asyncio client"):
        loop.call(nested)
    assert loop.call(answer) == 42


def test_blocking_call_in_token_provider_is_rejected(factory: MessagingFactory) -> None:
    class Nested(TokenProvider):
        async def get_token(self, audience: str) -> Token:  # noqa: ARG002
            factory.create_message_sender(QUEUE).send(BrokeredMessage(b"one"))
            raise AssertionError

    with (
        MessagingFactory.create(factory.endpoint, Nested()) as nested,
        pytest.raises(UnauthorizedError, match="asyncio client"),
    ):
        nested.create_message_sender(QUEUE).send(BrokeredMessage(b"two"))


def test_calls_inside_a_running_loop_block_it_and_succeed(factory: MessagingFactory) -> None:
    async def main() -> object:
        with factory.create_queue_client(QUEUE) as client:
            client.send(BrokeredMessage(b"one"))
            (message,) = client.receive(1, SOON)
            client.complete(message)
            return message.body

    assert asyncio.run(main()) == b"one"


# Interruptions


def interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Interrupt the main thread as Ctrl-C does, regardless of the signal handler of the test runner."""
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield interrupt_main_thread
    signal.signal(signal.SIGINT, before)


def test_interrupted_call_is_cancelled(loop: LoopThread, interrupt: Callable[[], None]) -> None:
    is_cancelled = threading.Event()

    async def wait_for_ever() -> None:
        interrupt()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        loop.call(wait_for_ever)
    assert is_cancelled.wait(60)
    assert loop.call(answer) == 42


def _begin(begins: threading.Event, wait: Callable[[], None]) -> None:
    begins.set()
    wait()


def receive_for_ever(receiver: MessageReceiver) -> None:
    receiver.receive(1, timedelta(days=1))


def iterate_for_ever(receiver: MessageReceiver) -> None:
    for message in receiver:
        raise AssertionError(message)


@pytest.mark.parametrize("prefetch", [0, 10])
@pytest.mark.parametrize("wait", [receive_for_ever, iterate_for_ever])
def test_interrupted_receiver_receives_later_messages(
    factory: MessagingFactory,
    interrupt: Callable[[], None],
    wait: Callable[[MessageReceiver], None],
    prefetch: int,
) -> None:
    sender = factory.create_message_sender(QUEUE)
    receiver = factory.create_message_receiver(QUEUE, prefetch_count=prefetch)
    for number in range(20):
        begins = threading.Event()

        def interrupt_soon(begins: threading.Event = begins) -> None:
            assert begins.wait(60)
            interrupt()

        thread = threading.Thread(target=interrupt_soon)
        thread.start()
        with pytest.raises(KeyboardInterrupt):  # at any moment of the wait
            _begin(begins, lambda: wait(receiver))
        thread.join()
        sender.send(BrokeredMessage(f"{number}".encode()))
        (message,) = receiver.receive(1, SOON)
        assert message.body == f"{number}".encode()
        receiver.complete(message)


def test_send_interrupted_while_connecting_succeeds_next_time(
    namespace: RunningNamespace, factory: MessagingFactory, interrupt: Callable[[], None]
) -> None:
    provider = TokenProvider.from_key("RootManageSharedAccessKey", namespace.key)

    class Interrupting(TokenProvider):
        async def get_token(self, audience: str) -> Token:
            audiences.append(audience)
            if len(audiences) == 1:
                interrupt()
                await asyncio.Event().wait()
            return await provider.get_token(audience)

    audiences: list[str] = []
    with MessagingFactory.create(factory.endpoint, Interrupting()) as interrupted:
        sender = interrupted.create_message_sender(QUEUE)
        with pytest.raises(KeyboardInterrupt):
            sender.send(BrokeredMessage(b"one"))
        interrupted.close()
    with MessagingFactory.create(factory.endpoint, Interrupting()) as again:
        again.create_message_sender(QUEUE).send(BrokeredMessage(b"two"))
    assert [message.body for message in factory.create_message_receiver(QUEUE).peek(10)] == [b"two"]
