"""The worker: consumes jobs when handlers are free, and stops gracefully.

Polls, touches and results run on a loop in its own thread, so that a handler which blocks its thread or its event loop
stops none of them. A single job is handled in `holding`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

from ._thread import LoopThread
from .client import AsyncClient, Client, backoff
from .holding import (
    Acks,
    AsyncHeldJob,
    Backoff,
    Cause,
    Crew,
    HeldJob,
    Hold,
    Hooks,
    Outage,
    Threads,
    as_seconds,
    call_if_open,
    log,
    tell,
)
from .protocol import (
    MAX_COUNT,
    DormouseError,
    Forbidden,
    Invalid,
    Job,
    NotFound,
    Seconds,
    Unauthorized,
    Unavailable,
    Unsupported,
    seconds,
    whole_seconds,
)

Handler = Callable[[AsyncHeldJob], Awaitable[object]] | Callable[[HeldJob], object]
HandlerT = TypeVar("HandlerT", bound=Callable[[Any], object])
Next = Callable[[], Awaitable[None]]
Middleware = Callable[[Job, Next], Awaitable[None]]
"""`async def f(job, next)`: does what it likes around `await next()`, which raises what the handler raised."""

DEFAULT_BACKOFF: Sequence[Seconds] = (5, 30, 300, 1800, 7200)
_POLL_SLACK = 10
"""Seconds that a poll may take beyond its time-out."""
_LAST_WORD = 0.5
"""Seconds that the server may take to answer a poll of whose connection half was closed."""
_LAST_ANSWER = 5
"""Seconds that an answer may take to the end which had begun when the worker was told to stop."""


class DrainError(Exception):
    """Handlers had not returned when the worker's grace ended; `job_ids` are those of their jobs."""

    def __init__(self, job_ids: list[str]) -> None:
        super().__init__(f"{len(job_ids)} handlers had not returned when the worker stopped")
        self.job_ids = job_ids


class Worker:
    """Runs a handler for each job of its queues."""

    def __init__(
        self,
        client: Client | AsyncClient,
        *,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int = 10,
        ttr: Seconds = 30,
        poll: Seconds = 20,
        backoff: Backoff = DEFAULT_BACKOFF,
        time_limit: Seconds | None = None,
        drain: Seconds = 25,
        grace: Seconds = 5,
        ack_window: Seconds = 0.005,
        middleware: Sequence[Middleware] = (),
        hooks: Hooks | None = None,
    ) -> None:
        """
        :param queues: in order of precedence; or a weight for each. By default, the queues with handlers in the order
            of their registration.
        :param concurrency: maximum concurrent handlers, over all queues.
        :param ttr: duration of a delivery, extended by touches; whole seconds, at least 3. Handlers may take longer.
        :param poll: how long a consume waits; below the timeouts of balancers. Rounded up to seconds.
        :param backoff: delays after the first, second … failure, each varied by 10 %; or a function.
        :param time_limit: of a handler.
        :param drain: how long handlers may continue when the worker stops; then they are cancelled.
        :param grace: how long they may continue after that.
        :param ack_window: how long an ack may wait for others.
        :param middleware: the first is the outermost.
        """
        self._client = client
        self._handlers: dict[str, Handler] = {}
        self._queues = queues
        self.concurrency = concurrency
        self.ttr = whole_seconds("ttr", ttr)
        self.poll = whole_seconds("poll", poll)
        self.backoff = backoff
        self.time_limit = None if time_limit is None else seconds("time_limit", time_limit)
        self.drain = seconds("drain", drain)
        self.grace = seconds("grace", grace)
        self.ack_window = seconds("ack_window", ack_window)
        self.middleware = tuple(middleware)
        self.hooks = hooks or Hooks()
        if concurrency < 1:
            raise Invalid("concurrency is 1 at least")
        if self.ttr < 3 or self.ttr != as_seconds(ttr):
            raise Invalid("ttr is whole seconds, 3 at least")
        if self.poll < 1:
            raise Invalid("poll is longer than 0")
        if not callable(backoff) and (not backoff or any(as_seconds(delay) < 0 for delay in backoff)):
            raise Invalid("backoff is a list of delays, or a function")
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._stops = 0

    def handler(self, queue: str) -> Callable[[HandlerT], HandlerT]:
        """Register a handler: a coroutine function, or a function, which runs in a thread."""

        def register(handler: HandlerT) -> HandlerT:
            self._handlers[queue] = handler
            return handler

        return register

    def run(self, *, signals: bool = True) -> None:
        """Work until SIGTERM, SIGINT or `stop`.

        Coroutines run on a loop in its own thread. Raise `DrainError` if handlers did not return in time; a
        `DormouseError` after a permanent error of the server.
        """
        self._run_blocking(signals, until_idle=False)

    def run_until_idle(self) -> None:
        """Work until no job is ready: for tests, and for programs started by a timer."""
        self._run_blocking(False, until_idle=True)

    def _run_blocking(self, signals: bool, until_idle: bool) -> None:
        handlers = LoopThread("dormouse-handlers")
        done = False
        try:
            # Signals first: one may arrive as soon as the run begins.
            with self._signals(signals), self._started(handlers.loop(), until_idle) as future:
                try:
                    future.result()
                except BaseException:
                    if not future.done():
                        self.stop()
                        future.result()
                    raise
            done = True
        finally:
            # A handler that has not returned may block its loop forever.
            handlers.close(wait=done)

    async def run_async(self) -> None:
        """Work until `stop`, or until this is cancelled. Coroutines run on the caller's loop; signals are the caller's.

        Cancelling it is like `stop`: handlers get their time.
        """
        await self._run_async(until_idle=False)

    async def run_async_until_idle(self) -> None:
        """Like `run_until_idle`, on the caller's loop."""
        await self._run_async(until_idle=True)

    async def _run_async(self, until_idle: bool) -> None:
        with self._started(asyncio.get_running_loop(), until_idle) as future:
            ended = asyncio.wrap_future(future)
            cancelled: asyncio.CancelledError | None = None
            while not ended.done():
                try:
                    await asyncio.wait([ended])
                except asyncio.CancelledError as error:
                    cancelled = error
                    self.stop()
            if cancelled is not None:
                if failure := ended.exception():
                    log.error("the worker was cancelled, and ended with: %s", failure)
                raise cancelled
            ended.result()

    def stop(self) -> None:
        """Consume no more jobs, and let handlers end; a second call ends their time.

        Works from any thread or signal handler. A worker that is not running yet will end at once.
        """
        self._stops += 1
        run = self._run
        if run is not None:
            call_if_open(run.loop, run.look_for_stops)

    @contextlib.contextmanager
    def _started(
        self, handler_loop: asyncio.AbstractEventLoop, until_idle: bool
    ) -> Iterator[concurrent.futures.Future[None]]:
        with self._lock:
            if self._run is not None:
                raise RuntimeError("the worker runs already")
            thread = self._client.thread if isinstance(self._client, Client) else LoopThread("dormouse-worker")
            client = self._client.asynchronous if isinstance(self._client, Client) else self._client
            run = self._run = _Run(self, client, thread.loop(), handler_loop, until_idle)
        try:
            yield thread.submit(run.main())
        finally:
            run.threads.close()
            if not isinstance(self._client, Client):
                thread.run(client.aclose())
                thread.close()
            with self._lock:
                self._run = None
                self._stops = 0

    @contextlib.contextmanager
    def _signals(self, wanted: bool) -> Iterator[None]:
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return

        def told(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def stops(self) -> int:
        """How many times it was stopped."""
        return self._stops

    def lanes(self) -> tuple[list[str], list[int] | None]:
        """The queues that are polled, and their weights."""
        names = list(self._handlers if self._queues is None else self._queues)
        if not names:
            raise Invalid("the worker has no queues: register a handler")
        if missing := [name for name in names if name not in self._handlers]:
            raise Invalid(f"no handler for {', '.join(missing)}")
        return names, list(self._queues.values()) if isinstance(self._queues, Mapping) else None

    def handler_of(self, queue: str) -> Handler:
        return self._handlers[queue]


class _Run:
    """A worker from its start to its end. All of it runs on the worker's own loop."""

    def __init__(
        self,
        worker: Worker,
        client: AsyncClient,
        loop: asyncio.AbstractEventLoop,
        handler_loop: asyncio.AbstractEventLoop,
        until_idle: bool,
    ) -> None:
        self.loop = loop
        self.threads = Threads()
        self._worker = worker
        self._client = client
        self._until_idle = until_idle
        self._queues, self._weights = worker.lanes()
        self._async_handlers = {queue: is_async(worker.handler_of(queue)) for queue in self._queues}
        self._crew = Crew(
            client=client,
            ttr=worker.ttr,
            backoff=worker.backoff,
            time_limit=worker.time_limit,
            grace=worker.grace,
            hooks=worker.hooks,
            acks=Acks(client, worker.ack_window),
            outage=Outage(worker.hooks, loop.time),
            handler_loop=handler_loop,
            handle=self._handle,
        )
        self._working: set[Hold] = set()
        """Jobs whose handlers have not returned: they have the slots."""
        self._holds: set[asyncio.Task[None]] = set()
        """Jobs whose results were not sent."""
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._moved = asyncio.Event()
        """A handler has returned, or a result was sent."""
        self._line = client.line()
        self._request: asyncio.Task[list[Job]] | None = None
        self._head: float | None = None
        """When the head of the poll's answer came."""

    async def main(self) -> None:
        self.look_for_stops()
        try:
            await self._poll()
        finally:
            try:
                if self._line is not None:
                    await self._line.transport.aclose()
            finally:
                deaf = await self._drain()
        if deaf:
            raise DrainError([hold.job.job_id for hold in deaf])

    def look_for_stops(self) -> None:
        if self._worker.stops >= 2:
            self._hurry.set()
        if self._worker.stops and not self._stopping.is_set():
            self._stopping.set()
            self._crew.acks.hurry()
            # If the write side cannot be closed, data in the kernel's buffer is read first.
            parked = self._request is not None and self._head is None
            halved = parked and self._line is not None and self._line.hang_up()
            self.loop.call_later(_LAST_WORD if halved else 0.01, self._close_poll)

    def _close_poll(self) -> None:
        """Close the parked poll, so that the server gives its job to another worker. A reply that has begun is read."""
        if self._request is not None:
            if self._head is None:
                self._request.cancel()
            else:
                self.loop.call_later(_LAST_ANSWER, self._request.cancel)

    # Polls

    async def _poll(self) -> None:
        """Poll, one request at a time, for as many jobs as there are free slots."""
        failures = 0
        while not self._stopping.is_set():
            if len(self._working) >= self._worker.concurrency:
                await self._next_move()
                # Handlers that ended together free their slots together.
                await asyncio.sleep(0)
                continue
            self._moved.clear()
            began = self.loop.time()
            count = min(self._worker.concurrency - len(self._working), MAX_COUNT)
            try:
                jobs = await self._consume(count)
                took = self.loop.time() - began
                if not jobs and self._stopping.is_set():
                    return
                if not jobs and not self._until_idle and took < self._worker.poll / 2:
                    raise Unavailable("no jobs, and before its time: the server stops, or a proxy answered")
            except (Invalid, Unauthorized, Forbidden, NotFound, Unsupported) as error:
                tell(self._worker.hooks.poll, 0, self.loop.time() - began, error)
                raise
            except DormouseError as error:
                if self._stopping.is_set():
                    return
                failures += 1
                tell(self._worker.hooks.poll, 0, self.loop.time() - began, error)
                self._crew.outage.failed("poll", error)
                await self._pause(max(backoff(failures), error.retry_after or 0))
                continue
            except asyncio.CancelledError:
                if self._stopping.is_set():
                    return
                raise
            failures = 0
            self._crew.outage.worked("poll")
            tell(self._worker.hooks.poll, len(jobs), took, None)
            for job in jobs:
                self._take(job, began if self._head is None else self._head)
            if not jobs and self._until_idle:
                if not self._holds:
                    return
                await self._next_move()

    async def _consume(self, count: int) -> list[Job]:
        timeout = 0 if self._until_idle else self._worker.poll
        request = self._client.requests.consume(
            self._queues, weights=self._weights, count=count, ttr=self._worker.ttr, timeout=timeout
        )
        self._head = None
        send = self._client.send(request, timeout + _POLL_SLACK, self._see_head, self._line)
        self._request = asyncio.create_task(send)
        try:
            return await self._request
        finally:
            self._request = None

    def _see_head(self) -> None:
        self._head = self.loop.time()

    def _take(self, job: Job, head: float) -> None:
        held = (AsyncHeldJob if self._async_handlers.get(job.queue) else HeldJob).of(job)
        hold = Hold(self._crew, held, head, self._has_returned)
        held.bind(hold)
        if hold.is_over():
            log.warning("job %s of %s is lost: its answer took all of its ttr", job.job_id, job.queue)
            return
        if self._stopping.is_set() or job.queue not in self._async_handlers:
            task = asyncio.create_task(hold.give_back())
        else:
            self._working.add(hold)
            task = asyncio.create_task(hold.run())
        self._holds.add(task)
        task.add_done_callback(self._has_ended)

    def _has_returned(self, hold: Hold) -> None:
        self._working.discard(hold)
        self._moved.set()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._holds.discard(task)
        self._moved.set()
        if not task.cancelled() and (error := task.exception()):
            log.error("a fault of the worker itself", exc_info=error)

    async def _next_move(self) -> None:
        """Wait until a handler returns, a result is sent, or the worker is stopped."""
        await self._first_of(self._moved, self._stopping)
        self._moved.clear()

    async def _pause(self, duration: float) -> None:
        await self._first_of(self._stopping, timeout=duration)

    async def _first_of(self, *events: asyncio.Event, timeout: float | None = None) -> None:
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # Handlers

    async def _handle(self, job: Job) -> None:
        """Run the middleware, and within it the handler."""
        handler = self._worker.handler_of(job.queue)

        async def last() -> None:
            if self._async_handlers[job.queue]:
                await handler(job)  # type: ignore[arg-type, misc]
            else:
                await self.threads.call(handler, job)

        call: Next = last
        for middleware in reversed(self._worker.middleware):
            call = _around(middleware, job, call)
        await call()

    # Stopping

    async def _drain(self) -> list[Hold]:
        """Let handlers end, cancel them, give up. Return the handlers that have not returned."""
        self._stopping.set()
        tell(self._worker.hooks.drain, len(self._working))
        if self._working:
            await self._all_returned(self._worker.drain)
            for hold in self._working:
                hold.cancel(Cause.DRAIN)
            await self._all_returned(self._worker.grace)
        deaf = list(self._working)
        for hold in deaf:
            hold.give_up()
        while self._holds:
            await asyncio.wait(self._holds)
        return deaf

    async def _all_returned(self, within: float) -> None:
        end = self.loop.time() + within
        while self._working and not self._hurry.is_set() and (left := end - self.loop.time()) > 0:
            self._moved.clear()
            await self._first_of(self._moved, self._hurry, timeout=left)


def _around(middleware: Middleware, job: Job, call: Next) -> Next:
    async def around() -> None:
        await middleware(job, call)

    return around


def is_async(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(handler.__call__)
