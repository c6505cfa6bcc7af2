"""The worker with real threads, loops and signals."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from dormouse_client import (
    AsyncHeldJob,
    Cause,
    DormouseError,
    DrainError,
    HeldJob,
    Hooks,
    Job,
    Outcome,
    Snooze,
    Worker,
)
from dormouse_client._thread import LoopThread
from dormouse_client.testing import Double


class Outcomes(Hooks):
    def __init__(self) -> None:
        self.seen: list[tuple[bytes, str]] = []

    def finish(self, job: Job, outcome: Outcome, seconds: float, elapsed: float) -> None:
        self.seen.append((job.data, outcome.value))


def test_functions_get_a_thread_and_coroutines_a_loop() -> None:
    seen: dict[str, threading.Thread] = {}
    both = threading.Barrier(2, timeout=10)
    hooks = Outcomes()
    with Double().client() as client:
        worker = Worker(client, concurrency=3, hooks=hooks)

        @worker.handler("plain")
        def plain(job: HeldJob) -> None:
            both.wait()  # Two at a time.
            seen["plain"] = threading.current_thread()
            assert job.attempt() == 1
            job.touch(60)

        @worker.handler("coroutine")
        async def coroutine(job: AsyncHeldJob) -> None:
            await asyncio.sleep(0)
            seen["coroutine"] = threading.current_thread()

        for queue in ("plain", "plain", "coroutine"):
            client.publish(queue, queue)
        worker.run_until_idle()
    assert len({*seen.values(), threading.current_thread()}) == 3
    assert sorted(hooks.seen) == [(b"coroutine", "acked"), (b"plain", "acked"), (b"plain", "acked")]


def test_what_a_job_can_ask_from_a_thread() -> None:
    hooks = Outcomes()
    with Double().client() as client:
        worker = Worker(client, hooks=hooks)

        @worker.handler("q")
        def handler(job: HeldJob) -> None:
            match job.data:
                case b"ack":
                    job.ack()
                case b"release":
                    job.release(delay=5, reason="later")
                case b"bury":
                    job.bury("no use")
                case b"snooze":
                    raise Snooze(5)
                case b"exit":
                    sys.exit(3)

        for verb in ("ack", "release", "bury", "snooze", "exit"):
            client.publish("q", verb, tries=2)
        worker.run_until_idle()
        reasons = {job.data: job.reason for state in ("delayed", "dead") for job in client.jobs("q", state, data=True)}
    assert sorted(hooks.seen) == [
        (b"ack", "acked"), (b"bury", "buried"), (b"exit", "released"), (b"release", "released"), (b"snooze", "snoozed"),
    ]  # fmt: skip
    assert reasons == {
        b"release": "later", b"bury": "no use", b"snooze": None,
        b"exit": "attempt 1: panic: SystemExit: 3",
    }  # fmt: skip


def test_a_thread_learns_that_it_should_end() -> None:
    causes: list[Cause | None] = []
    started = threading.Event()
    hooks = Outcomes()
    with Double().client() as client:
        worker = Worker(client, drain=0.05, hooks=hooks)

        @worker.handler("q")
        def handler(job: HeldJob) -> None:
            assert not job.cancelled
            started.set()
            assert job.wait(60)
            assert job.cancelled
            causes.append(job.cause)
            raise RuntimeError("cut short")

        client.publish("q", "x", tries=3)
        running = threading.Thread(target=worker.run)
        running.start()
        assert started.wait(10)
        worker.stop()
        running.join(10)
        assert not running.is_alive()
        assert client.peek("q") is not None
    assert (causes, hooks.seen) == ([Cause.DRAIN], [(b"x", "returned")])


def test_a_thread_that_never_returns_does_not_hold_up_the_worker() -> None:
    release = threading.Event()
    started = threading.Event()
    with Double().client() as client:
        worker = Worker(client, drain=0, grace=0)

        @worker.handler("q")
        def handler(job: HeldJob) -> None:
            started.set()
            release.wait(60)

        client.publish("q", "x")

        def stop() -> None:
            started.wait(10)
            worker.stop()

        threading.Thread(target=stop).start()
        with pytest.raises(DrainError):
            worker.run()
        release.set()
        assert client.size("q") == 1


def test_run_async_works_on_the_callers_loop_and_drains_when_it_is_cancelled() -> None:
    hooks = Outcomes()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        started = asyncio.Event()
        async with Double().async_client() as client:
            worker = Worker(client, hooks=hooks)

            @worker.handler("q")
            async def handler(job: AsyncHeldJob) -> None:
                assert asyncio.get_running_loop() is loop
                started.set()
                await asyncio.sleep(0.1)
                await client.publish("done", job.data)

            await client.publish("q", "x")
            running = asyncio.create_task(worker.run_async())
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await client.size("done") == 1

    asyncio.run(main())
    assert hooks.seen == [(b"x", "acked")]


def test_a_worker_runs_once_at_a_time_and_again_after_its_end() -> None:
    with Double().client() as client:
        worker = Worker(client)
        began, refused = threading.Event(), threading.Event()

        @worker.handler("q")
        async def handler(job: AsyncHeldJob) -> None:
            began.set()
            await asyncio.to_thread(refused.wait, 10)

        client.publish("q", "x")
        running = threading.Thread(target=worker.run_until_idle)
        running.start()
        assert began.wait(10)
        with pytest.raises(RuntimeError, match="runs already"):
            worker.run()
        refused.set()
        running.join(10)
        client.publish("q", "y")
        worker.run_until_idle()
        assert client.size("q") == 0
        worker.stop()
        worker.run()  # Told to stop before: it ends at once.


def test_two_workers_share_a_client() -> None:
    hooks = Outcomes()
    with Double().client() as client:
        workers = [Worker(client, queues=[queue], hooks=hooks) for queue in ("a", "b")]
        for worker, queue in zip(workers, ("a", "b"), strict=True):

            @worker.handler(queue)
            def handler(job: HeldJob) -> None:
                """Nothing to do."""

            client.publish_many(queue, [queue] * 20)
        threads = [threading.Thread(target=worker.run_until_idle) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert len(hooks.seen) == 40


def test_the_loop_of_a_closed_thread_is_not_stopped_again() -> None:
    """A second stop, when the thread is garbage, would end the cleanup, and its error be shown."""
    held = [LoopThread("closed")]
    loop, thread = held[0].loop(), held[0]._thread
    assert thread is not None

    def close() -> None:
        held[0].close(wait=False)
        loop.call_soon(held.clear)  # In the same turn as the stop.

    loop.call_soon_threadsafe(close)
    thread.join(10)
    assert loop.is_closed()


SCRIPT = """
import sys, time
from dormouse_client import AsyncHeldJob, HeldJob, Hooks, Worker
from dormouse_client.testing import Double
class Told(Hooks):
    def drain(self, running):
        print("drains", flush=True)
double = Double()
client = double.client()
worker = Worker(client, drain={drain}, grace={grace}, hooks=Told())
@worker.handler("q")
{handler}
client.publish("q", "x", tries=2)
worker.run()
left = client.size("q")
client.close()
print("left", left)
"""
BLOCKING = """
def handler(job: HeldJob):
    print("started", flush=True)
    time.sleep({seconds})
"""
BLOCKED_LOOP = """
async def handler(job: AsyncHeldJob):
    print("started", flush=True)
    time.sleep({seconds})
"""


def process(handler: str, seconds: float, drain: float = 10, grace: float = 0) -> subprocess.Popen[str]:
    script = SCRIPT.format(handler=handler.strip().format(seconds=seconds), drain=drain, grace=grace)
    pipe: Any = subprocess.PIPE
    started = subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "started\n"
    return started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handler", [BLOCKING, BLOCKED_LOOP], ids=["thread", "loop"])
def test_a_signal_stops_in_order(handler: str, number: signal.Signals) -> None:
    running = process(handler, 0.5)
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert (out, running.returncode, err) == ("drains\nleft 0\n", 0, "")


def test_signals_are_handled_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    submit = LoopThread.submit

    def noting(thread: LoopThread, coroutine: Any) -> Any:
        handlers.append(signal.getsignal(signal.SIGTERM))
        return submit(thread, coroutine)

    before = signal.getsignal(signal.SIGTERM)
    with Double().client() as client:
        worker = Worker(client)

        @worker.handler("q")
        def handler(job: HeldJob) -> None:
            """Nothing to do."""

        worker.stop()
        monkeypatch.setattr(LoopThread, "submit", noting)
        worker.run()
        monkeypatch.undo()
    assert handlers
    assert handlers[0] != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("handler", [BLOCKING, BLOCKED_LOOP], ids=["thread", "loop"])
def test_a_second_signal_ends_the_drain_and_the_process(handler: str) -> None:
    running = process(handler, 600, drain=600, grace=600)
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    # A second signal before the first is handled would be the same one.
    assert running.stdout is not None
    assert running.stdout.readline() == "drains\n"
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "DrainError" in err
    assert time.monotonic() - began < 20


def test_a_handler_that_blocks_its_loop_does_not_stop_the_touches() -> None:
    """By the real clock: a loop that jumps cannot show it."""
    touched: list[float] = []

    class Touches(Hooks):
        def touch(self, job: Job, error: DormouseError | None) -> None:
            touched.append(time.monotonic())

    with Double().client() as client:
        worker = Worker(client, ttr=3, hooks=Touches())
        ended: list[float] = []

        @worker.handler("q")
        async def handler(job: AsyncHeldJob) -> None:
            end = time.monotonic() + 10
            while not touched and time.monotonic() < end:
                time.sleep(0.01)  # noqa: ASYNC251
            ended.append(time.monotonic())

        client.publish("q", "x")
        worker.run_until_idle()
    assert touched
    assert touched[0] < ended[0]


AT_EXIT = """
import atexit
from dormouse_client.testing import Double

double = Double()
atexit.register(lambda: print(client.publish("q", "last words").job_id is not None, flush=True))
client = double.client()
client.publish("q", "x")
"""


def test_what_runs_at_exit_may_publish() -> None:
    """Also what was registered before the client was made, which runs last."""
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


CLOSE_AT_EXIT = """
import atexit
import threading
from dormouse_client.testing import Double

client = Double().client()

def close():
    client.close()
    print([thread.name for thread in threading.enumerate() if "dormouse" in thread.name])

atexit.register(close)
client.publish("q", "x")
"""


def test_a_client_may_be_closed_at_exit() -> None:
    """Also after the functions that were registered later have run, those of `weakref` among them."""
    ended = subprocess.run(
        [sys.executable, "-c", CLOSE_AT_EXIT], capture_output=True, text=True, timeout=20, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")
