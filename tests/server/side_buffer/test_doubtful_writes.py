"""B3, E1: the store knows whether a failed commit is in it; a slow load and a slow side buffer do not hold sends up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pairbus.store.memory import MemoryCommit
from pairbus.wire import ACCEPTED, Delivery, Rejected
from tests.server.amqp.wire_client import DEADLINE_S, text_message
from tests.server.side_buffer.stage import FAILED, BufferedStage, TroubledStore, play
from tests.waiting import eventually_async

OVERDUE_S = 0.2


def condition_of(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return str(state.error.condition)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [FAILED, SystemExit()], ids=["the disk reports an error", "the thread ends"])
@pytest.mark.parametrize("has_buffer", [True, False])
def test_b3_message_of_a_durable_commit_is_confirmed_once_although(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, has_buffer: bool
) -> None:
    ends: list[BaseException] = []
    write = TroubledStore.write

    def write_and_end(store: TroubledStore, commit: MemoryCommit) -> None:
        write(store, commit)
        if ends:
            raise ends.pop()

    monkeypatch.setattr(TroubledStore, "write", write_and_end)

    async def scene(stage: BufferedStage) -> None:
        if not has_buffer:
            await stage.buffer.close()
            stage.host.side_buffer = None
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        ends.append(end)
        delivery = peer.begin_send(link, text_message("one"))
        await peer.until(lambda: not ends)
        if isinstance(end, SystemExit):
            await eventually_async(lambda: stage.host.committer.has_lost_thread)
            stage.host.committer.restart_thread()
        assert await peer.outcome(delivery) == ACCEPTED
        await stage.host.durable()
        assert stage.numbers() == ["before", "one"]
        if not has_buffer:
            stage.open_buffer(tmp_path / "other")  # the stage closes one
        assert stage.buffer.counts.taken == 0

    play(scene, tmp_path / "side")


def test_b3_sends_are_answered_while_the_namespace_takes_long_to_load(tmp_path: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        host = stage.host
        host.commit_overdue_s = OVERDUE_S
        peer = await stage.peer()
        link = await peer.sender()
        receiver = await peer.receiver(credit=1)
        assert await peer.send(link, "before") == ACCEPTED
        (received,) = await peer.receive(receiver, 1)
        stage.store.reads.clear()
        stage.store.fail_next_run(FAILED)
        inside = peer.begin_send(link, text_message("inside"))
        await peer.until(lambda: host.committer.is_loading)
        receiver.settle(received, ACCEPTED)
        later = peer.begin_send(link, text_message("later"))
        assert await peer.outcome(inside) == ACCEPTED  # from the side buffer
        assert condition_of(await peer.outcome(later)) == "com.microsoft:server-busy"
        assert host.is_stalled
        stage.store.reads.set()
        await eventually_async(lambda: not host.is_stalled)
        await stage.merged()
        await host.durable()
        assert stage.numbers() == ["before", "inside"]
        assert await peer.send(link, "after") == ACCEPTED

    play(scene, tmp_path / "side")


def test_b3_sends_are_busy_while_the_side_buffer_does_not_answer(tmp_path: Path) -> None:
    gate = threading.Event()

    async def scene(stage: BufferedStage) -> None:
        host, buffer = stage.host, stage.buffer
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        stage.store.trouble = FAILED
        assert await peer.send(link, "buffered") == ACCEPTED
        buffer._archive._thread.submit(gate.wait, DEADLINE_S)
        buffer.writer.overdue_s = OVERDUE_S
        sends = [peer.begin_send(link, text_message(f"{number}", message_id=f"{number}")) for number in range(3)]
        assert [condition_of(await peer.outcome(each)) for each in sends] == ["com.microsoft:server-busy"] * 3
        buffer.writer.overdue_s = DEADLINE_S
        assert buffer.is_stalled
        assert not buffer.writer.takes_sends()
        retry = peer.begin_send(link, text_message("0", message_id="0"))
        assert condition_of(await peer.outcome(retry)) == "com.microsoft:server-busy"
        gate.set()
        await eventually_async(lambda: not buffer.is_stalled)
        for number in range(3):  # as clients do: what was stored in the end is not stored again
            again: Delivery = peer.begin_send(link, text_message(f"{number}", message_id=f"{number}"))
            assert await peer.outcome(again) == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        await host.durable()
        assert sorted(stage.numbers()) == ["0", "1", "2", "before", "buffered"]

    try:
        play(scene, tmp_path / "side")
    finally:
        gate.set()
