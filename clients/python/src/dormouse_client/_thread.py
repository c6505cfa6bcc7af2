"""An event loop in its own thread. It knows nothing of jobs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_left_behind: list[asyncio.AbstractEventLoop] = []
"""Loops that a fork, or a task that cannot be cancelled, has left. They are kept, since to close one is harmful: in the
child of a fork it would disturb its parent's, which waits on the same epoll."""


class LoopThread:
    """Starts at the first use, and again after a fork. It is a daemon: it keeps no process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._finalizer: weakref.finalize[..., LoopThread] | None = None
        """Stops the loop, at most once: a second stop would end its thread's cleanup."""

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is not None and self._pid != os.getpid():
                _left_behind.append(self._loop)
                self._loop = None
                if self._finalizer is not None:
                    self._finalizer.detach()
            if self._loop is None:
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
                # Not at the exit of the process: functions registered with `atexit` may still publish.
                self._finalizer = weakref.finalize(self, _stop, self._loop)
                self._finalizer.atexit = False
            return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. It is cancelled if the waiting thread is interrupted."""
        if self._thread is threading.current_thread():
            coroutine.close()
            raise RuntimeError("a blocking call from the client's own thread would wait for itself")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, wait: bool = True) -> None:
        """End the loop, and wait for its thread, except from that thread."""
        with self._lock:
            loop, thread, finalizer = self._loop, self._thread, self._finalizer
            self._loop = self._thread = self._finalizer = None
        if loop is not None and self._pid == os.getpid():
            # Detached and not called: at the exit of the process a call does nothing.
            if finalizer is not None and finalizer.detach():
                _stop(loop)
            if wait and thread is not None and thread is not threading.current_thread():
                thread.join(5)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        # Cancelled tasks get one turn to clean up; a task that continues regardless is abandoned.
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if not asyncio.all_tasks(loop):
            loop.close()
        else:
            _left_behind.append(loop)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
