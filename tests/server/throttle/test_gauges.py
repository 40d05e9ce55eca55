"""B2: readings of a real process, a real store and a real loop."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

import pytest

from pairbus.server import NamespaceServer, Settings, SettingsError
from pairbus.server.throttle import gauges as gauges_module
from pairbus.server.throttle.gauges import Gauges, LoopLag
from pairbus.server.throttle.throttle import Throttle, ThrottleTimer
from pairbus.store import LmdbStore, StoreInUseError, apply
from pairbus.store.directory import DATA_FILE

DEADLINE_S = 120.0


def gauges(data: Path, store: LmdbStore | None = None) -> Gauges:
    used = 0 if store is None else store.used_bytes
    return Gauges(data=data, used_bytes=lambda: used, connection_count=lambda: 0, loop_lag=LoopLag())


def test_b2_memory_is_what_the_process_has_for_itself(tmp_path: Path) -> None:
    before = gauges(tmp_path).memory_bytes()
    assert before is not None
    held = b"x" * (64 << 20)
    after = gauges(tmp_path).memory_bytes()
    assert after is not None
    assert after - before > len(held) // 2


def test_b2_pages_of_a_file_are_not_the_memory_of_the_process(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / DATA_FILE)
    try:
        apply(store, {b"%d" % number: bytes(1 << 20) for number in range(64)})
        before = gauges(tmp_path).memory_bytes() or 0
        assert sum(len(value) for _, value in store.scan(b"0", b"a")) == 64 << 20
        assert (gauges(tmp_path).memory_bytes() or 0) - before < 48 << 20
    finally:
        store.close()


def test_b2_store_grows_with_what_is_in_it_and_shrinks_again(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / DATA_FILE)
    try:
        empty = store.used_bytes
        content: dict[bytes, bytes | None] = {b"%d" % number: bytes(100_000) for number in range(50)}
        apply(store, content)
        assert store.used_bytes - empty >= 5_000_000
        length = os.stat(tmp_path / DATA_FILE).st_size
        apply(store, dict.fromkeys(content))
        assert store.used_bytes - empty < 1_000_000
        assert os.stat(tmp_path / DATA_FILE).st_size == length
    finally:
        store.close()


def test_b2_disk_reading_includes_spare_space_of_the_file(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / DATA_FILE)
    try:
        apply(store, {b"key": b"value"})
        found = gauges(tmp_path, store)
        spare = os.stat(tmp_path / DATA_FILE).st_size - store.used_bytes
        assert spare > 0
        # Other processes write to this disk, too.
        assert found.disk_bytes() == pytest.approx(shutil.disk_usage(tmp_path).free + spare, abs=1 << 30)
        assert (found.disk_bytes() or 0) > 0
    finally:
        store.close()


def test_b2_reading_the_file_does_not_lock_the_store(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / DATA_FILE)
    try:
        gauges(tmp_path, store).disk_bytes()
        with pytest.raises(StoreInUseError):
            LmdbStore(tmp_path / DATA_FILE)
    finally:
        store.close()


def test_b2_unreadable_value_is_none(tmp_path: Path) -> None:
    assert gauges(tmp_path).disk_bytes() is None


def test_b2_threshold_without_a_system_reading_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges_module, "_STATM", tmp_path / "nowhere")
    asyncio.run(serve(Settings(data=tmp_path / "without", port=(0,))))
    with pytest.raises(SettingsError, match="throttle_memory_mb: this system has no reading of 'memory'"):
        asyncio.run(serve(Settings(data=tmp_path / "with", port=(0,), throttle_memory_mb=1)))


async def serve(settings: Settings) -> None:
    async with NamespaceServer(settings) as server:
        assert server.host.throttle.statuses[0].reading is not None


@pytest.mark.slow
def test_b2_blocked_loop_shows_delay_and_processor_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        throttle = Throttle(Settings(data=tmp_path, throttle_delay_ms=100, throttle_processor_percent=5.0))
        timer = ThrottleTimer(throttle, gauges(tmp_path), loop)
        timer.start()
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not {"delay", "processor"} <= denying(throttle):
                assert time.monotonic() < deadline, throttle.statuses
                work(0.4)
                await asyncio.sleep(0)
            while throttle.is_busy:
                assert time.monotonic() < deadline, throttle.statuses
                await asyncio.sleep(0.05)
        finally:
            timer.close()

    asyncio.run(scenario())


def denying(throttle: Throttle) -> set[str]:
    return {status.facet.name for status in throttle.statuses if status.is_denying}


def work(seconds: float) -> None:
    """Block the loop, and use the processor meanwhile."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
