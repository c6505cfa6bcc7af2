"""One job of a worker: its handler, its touches, its loss and its result.

Everything except the handler runs on the worker's own loop, so nothing here needs a lock against other threads. Touches
and the result of a job take turns (`Hold.turn`): a touch replaces the receipt, so the two must never cross.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import queue as queues
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self, TypeVar

from .client import AsyncClient, backoff, nothing_done
from .protocol import (
    MAX_ACKS,
    DormouseError,
    Invalid,
    Job,
    Lost,
    NotFound,
    Permanent,
    Request,
    Seconds,
    current_traceparent,
    seconds,
    told_attempt,
)

T = TypeVar("T")

log = logging.getLogger("dormouse_client")

LONGEST_TOUCH = 10
"""Seconds that a touch waits for its answer; less where a third of `ttr` is less."""
LAST_REPEAT = 0.1
"""Seconds that a job is held at least when something is repeated for it."""
LINES = 8
"""Requests for held jobs that a worker has in flight. A thousand touches that come due together would otherwise take a
thousand connections, and be late all of them: httpx's pool takes time that grows with the square of their number."""


class RetryAfter(Exception):
    """Raised by a handler: it failed, and the job is retried after `delay` instead of the usual back-off."""

    def __init__(self, delay: Seconds, text: str = "") -> None:
        super().__init__(text)
        self.delay = seconds("delay", delay)


class Snooze(Exception):
    """Raised by a handler: postpone the job by `delay`; its try is restored."""

    def __init__(self, delay: Seconds) -> None:
        super().__init__(f"not before {delay} s")
        self.delay = seconds("delay", delay)


class Cause(StrEnum):
    """Why a handler was cancelled."""

    LOST = "lost"
    """The job is not ours any more."""
    DRAIN = "drain"
    """The worker stops."""
    TIME_LIMIT = "time_limit"


class Outcome(StrEnum):
    """Result of a job."""

    ACKED = "acked"
    RELEASED = "released"
    """A try was spent; with none left this was its death."""
    BURIED = "buried"
    SNOOZED = "snoozed"
    RETURNED = "returned"
    """Given back by the drain."""
    LOST = "lost"


class Hooks:
    """Events of a worker. Override the methods you need; they run on the worker's own loop and must not block."""

    def poll(self, jobs: int, seconds: float, error: DormouseError | None) -> None:
        """A consume has ended, or failed."""

    def start(self, job: Job) -> None:
        """A handler begins."""

    def finish(self, job: Job, outcome: Outcome, seconds: float, elapsed: float) -> None:
        """Result of a job, duration of its handler, and time since its publish."""

    def touch(self, job: Job, error: DormouseError | None) -> None:
        """A touch has succeeded, or failed."""

    def away(self, error: DormouseError) -> None:
        """The server becomes unavailable: once per outage."""

    def back(self, seconds: float) -> None:
        """It is available again, after this number of seconds."""

    def drain(self, running: int) -> None:
        """The worker stops, with this number of running handlers."""


Backoff = Sequence[Seconds] | Callable[[int, BaseException], Seconds]
"""Delays after the first, second … failure, of which the last repeats; or a function of attempt and error."""


@dataclass
class Crew:
    """State shared by all jobs of a running worker."""

    client: AsyncClient
    ttr: int
    backoff: Backoff
    time_limit: float | None
    grace: float
    hooks: Hooks
    acks: Acks
    outage: Outage
    handler_loop: asyncio.AbstractEventLoop
    handle: Callable[[Job], Coroutine[Any, Any, None]]
    """Runs middleware and handler; on `handler_loop`."""
    lines: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LINES))


def tell(hook: Callable[..., None], *args: Any) -> None:
    """Call a hook. Its exceptions do not stop the worker."""
    try:
        hook(*args)
    except Exception:
        log.exception("a hook failed: %s", getattr(hook, "__name__", hook))


class Outage:
    """Logs the begin and the end of an outage once."""

    def __init__(self, hooks: Hooks, clock: Callable[[], float]) -> None:
        self._hooks = hooks
        self._clock = clock
        self._since: float | None = None
        self._seen_by = ""

    def failed(self, seen_by: str, error: DormouseError) -> None:
        if self._since is None:
            self._since, self._seen_by = self._clock(), seen_by
            log.warning("the server is away: %s", error)
            tell(self._hooks.away, error)

    def worked(self, seen_by: str) -> None:
        """A success ends the outage if it is a poll's, or of the kind whose failure began it."""
        if self._since is not None and seen_by in ("poll", self._seen_by):
            away, self._since = self._clock() - self._since, None
            log.info("the server is back after %.1f s", away)
            tell(self._hooks.back, away)


class Acks:
    """Collects the acks of a queue for a moment: up to 100 share one request, a single one has its own route."""

    def __init__(self, client: AsyncClient, window: float) -> None:
        self._client = client
        self._window = window
        self._waiting: dict[str, list[tuple[Job, asyncio.Future[None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ack(self, job: Job) -> None:
        """Raise `Lost` if the job is no longer ours."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(job.queue, [])
        waiting.append((job, done))
        if len(waiting) == MAX_ACKS:
            self._flush(job.queue, waiting)
        elif len(waiting) == 1:
            loop.call_later(self._window, self._flush, job.queue, waiting)
        await done

    def hurry(self) -> None:
        """Stop waiting for further acks."""
        self._window = 0
        for queue, waiting in list(self._waiting.items()):
            self._flush(queue, waiting)

    def _flush(self, queue: str, batch: list[tuple[Job, asyncio.Future[None]]]) -> None:
        if self._waiting.get(queue) is batch:
            del self._waiting[queue]
            task = asyncio.get_running_loop().create_task(self._send(queue, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, queue: str, batch: list[tuple[Job, asyncio.Future[None]]]) -> None:
        client, requests = self._client, self._client.requests
        # A job whose ttr has ended while it waited is lost: nothing more is sent for it.
        batch = [(job, done) for job, done in batch if not done.done()]
        if not batch:
            return
        try:
            stale: set[str] = set()
            if len(batch) == 1:
                await client.send(requests.ack(batch[0][0]), client.timeout)
            else:
                acked = await client.send(requests.ack_batch(queue, [job for job, _ in batch]), client.timeout)
                stale = set(acked.stale)
        except DormouseError as error:
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        for job, done in batch:
            if not done.done():
                if job.job_id in stale:
                    done.set_exception(Lost("the job is not yours any more", status=409))
                else:
                    done.set_result(None)


@dataclass(frozen=True)
class Verdict:
    """The result to send for a job."""

    outcome: Outcome
    delay: float = 0
    spend: bool = True
    text: str | None = None
    """Of the reason, which begins with the number of the attempt."""
    reason: str | None = None
    """The reason as it is, of a handler that gives the job back itself."""
    error: BaseException | None = None
    """What the back-off is asked with, where it says the delay."""


ACK = Verdict(Outcome.ACKED)
GIVE_BACK = Verdict(Outcome.RETURNED, spend=False)


class _NotReturned(Exception):
    """Replaces a handler's error if it has not returned and is no longer waited for."""


class Hold:
    """A job from its delivery until its result is sent."""

    def __init__(self, crew: Crew, job: Job, head: float, on_return: Callable[[Hold], None]) -> None:
        self.crew = crew
        self.job = job
        self.cause: Cause | None = None
        self.cancelled = threading.Event()
        self.settled: Outcome | None = None
        self.returned = False
        self.loop = asyncio.get_running_loop()
        self._on_return = on_return
        self._began = self.loop.time()
        self._worked: float | None = None
        """How long the handler took."""
        self._published = head - job.elapsed_ms / 1000
        self._expires = head + crew.ttr
        """By our own clock: until then nobody else has the job."""
        self.turn = asyncio.Lock()
        self._doubt = False
        """A touch was perhaps done whose answer did not come: then the receipt that we have is old."""
        self._over: asyncio.Future[BaseException | None] = self.loop.create_future()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._touching: asyncio.Task[None] | None = None
        self._touch_failures = 0
        self._attempt: int | None = None
        self._task: asyncio.Task[BaseException | None] | None = None

    # Life of a job

    async def run(self) -> None:
        """Run the handler and send the result."""
        self._arm_expiry()
        self._arm_touch()
        if self.crew.time_limit is not None:
            self._arm("limit", self.crew.time_limit, self._reach_limit)
        tell(self.crew.hooks.start, self.job)
        self.crew.handler_loop.call_soon_threadsafe(self._begin)
        error = await self._over
        self._disarm("touch", "expiry")
        async with self.turn:
            if self.settled is None:
                await self._settle(self._judge(error))
        # A touch in flight has set them again.
        self._disarm("touch", "expiry")
        self._finished()

    async def give_back(self) -> None:
        """Release a job whose handler has not begun, with its try."""
        async with self.turn:
            await self._settle(GIVE_BACK)

    def is_over(self) -> bool:
        """Whether `ttr` has passed by the local clock."""
        return self.loop.time() >= self._expires

    def cancel(self, cause: Cause) -> None:
        """Cancel the handler."""
        if self.returned or (self.cause is not None and cause is not Cause.LOST):
            return
        self.cause = cause
        self.cancelled.set()
        if isinstance(self.job, AsyncHeldJob):
            self.crew.handler_loop.call_soon_threadsafe(self._cancel_task)

    def give_up(self) -> None:
        """Return the job although the handler has not returned."""
        if not self._over.done():
            self._over.set_result(_NotReturned())

    def _finished(self) -> None:
        outcome = self.settled or Outcome.LOST
        now = self.loop.time()
        log.debug("job %s of %s: %s", self.job.job_id, self.job.queue, outcome)
        worked = now - self._began if self._worked is None else self._worked
        tell(self.crew.hooks.finish, self.job, outcome, worked, now - self._published)

    # The handler, on its own loop

    def _begin(self) -> None:
        self._task = self.crew.handler_loop.create_task(self._handle())
        self._task.add_done_callback(self._ended)

    async def _handle(self) -> BaseException | None:
        current_traceparent.set(self.job.traceparent)
        try:
            await self.crew.handle(self.job)
        except BaseException as error:  # SystemExit too would end the loop of all handlers.
            return error
        return None

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel(self.cause)

    def _ended(self, task: asyncio.Task[BaseException | None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.result()
        call_if_open(self.loop, self._has_returned, error)

    # Back on the worker's loop

    def _has_returned(self, error: BaseException | None) -> None:
        self.returned = True
        self._worked = self.loop.time() - self._began
        self._disarm("limit", "late")
        self._on_return(self)
        if not self._over.done():
            self._over.set_result(error)

    def _reach_limit(self) -> None:
        self.cancel(Cause.TIME_LIMIT)
        if self.cause is Cause.TIME_LIMIT:
            self._arm("limit", self.crew.grace, self._pass_limit)

    def _pass_limit(self) -> None:
        if not self._over.done():
            self._over.set_result(TimeoutError("time limit"))
        self._say_late()

    def _say_late(self) -> None:
        after = self.loop.time() - self._began
        log.error("the handler of job %s of %s has not ended after %.0f s", self.job.job_id, self.job.queue, after)
        self._arm("late", 60, self._say_late)

    def _lose(self, why: object) -> None:
        if self.settled is None:
            self.settled = Outcome.LOST
            self._disarm("touch", "expiry")
            log.warning("job %s of %s is lost: %s", self.job.job_id, self.job.queue, why)
            self.cancel(Cause.LOST)

    # Timers

    def _arm(self, name: str, delay: float, do: Callable[..., None], *args: object) -> None:
        self._disarm(name)
        self._timers[name] = self.loop.call_later(delay, do, *args)

    def _disarm(self, *names: str) -> None:
        for name in names:
            if timer := self._timers.pop(name, None):
                timer.cancel()

    def _arm_expiry(self) -> None:
        self._arm("expiry", self._expires - self.loop.time(), self._lose, "its ttr is over")

    def _arm_touch(self, delay: float | None = None) -> None:
        self._arm("touch", spread(self.crew.ttr / 3) if delay is None else delay, self._begin_touch)

    # Touches

    def _begin_touch(self) -> None:
        self._touching = self.loop.create_task(self._touch_turn())

    async def _touch_turn(self) -> None:
        async with self.turn:
            if self._over.done() or self.settled is not None:
                return
            try:
                await self._touch(self.crew.ttr)
            except (Lost, NotFound) as error:
                self._lose(error)
            except DormouseError as error:
                self._touch_failures += 1
                if (pause := self._pause_in_time(self._touch_failures, error)) is not None:
                    self._arm_touch(pause)

    async def _touch(self, ttr: float) -> datetime:
        client = self.crew.client
        while True:
            try:
                async with self.crew.lines:
                    sent = self.loop.time()
                    timeout = min(self.crew.ttr / 3, LONGEST_TOUCH, self._time_left())
                    until = await client.send(client.requests.touch(self.job, ttr=ttr), timeout)
            except Lost:
                if self._doubt and await self._find_receipt():
                    continue
                raise
            except DormouseError as error:
                self._doubt = self._doubt or error.unanswered()
                if error.retryable:
                    self.crew.outage.failed("touch", error)
                tell(self.crew.hooks.touch, self.job, error)
                raise
            self._doubt = False
            self._touch_failures = 0
            self._expires = sent + ttr
            if self.settled is None:
                self._arm_expiry()
                self._arm_touch(spread(ttr / 3))
            self.crew.outage.worked("touch")
            tell(self.crew.hooks.touch, self.job, None)
            return until

    async def _find_receipt(self) -> bool:
        """Whether a touch with a lost reply was executed: then its receipt is ours."""
        try:
            receipt = await self._insist(self.crew.client.requests.valid_receipt(self.job))
        except (Lost, NotFound):
            return False
        if receipt is None or receipt == self.job.receipt or self.is_over():
            return False
        self.job.receipt = receipt
        return True

    # The result

    def _judge(self, error: BaseException | None) -> Verdict:
        """Return the result that a handler's end means."""
        if error is None:
            return ACK
        if self.cause is Cause.DRAIN or isinstance(error, _NotReturned):
            return GIVE_BACK
        if self.cause is Cause.TIME_LIMIT:
            return Verdict(Outcome.RELEASED, text="time limit", error=TimeoutError("time limit"))
        if isinstance(error, Snooze):
            return Verdict(Outcome.SNOOZED, delay=error.delay, spend=False)
        if isinstance(error, Permanent):
            return Verdict(Outcome.BURIED, text=str(error))
        if isinstance(error, RetryAfter):
            return Verdict(Outcome.RELEASED, delay=error.delay, text=str(error))
        where = (self.job.job_id, self.job.queue)
        if isinstance(error, Exception):
            log.warning("the handler of job %s of %s failed", *where, exc_info=error)
            return Verdict(Outcome.RELEASED, text=error_text(error), error=error)
        log.error("the handler of job %s of %s was torn down", *where, exc_info=error)
        return Verdict(Outcome.RELEASED, text=f"panic: {error_text(error)}", error=error)

    async def _settle(self, verdict: Verdict) -> None:
        """Send the result, retrying until `ttr` is over. Then, or if a reply says so, the job is lost."""
        perhaps_done = False

        def failed(error: DormouseError) -> None:
            nonlocal perhaps_done
            perhaps_done = perhaps_done or error.unanswered()

        while True:
            try:
                request = await self._request(verdict)
                if request is None:
                    await self._insist_on(self._send_ack, failed)
                else:
                    await self._insist(request, failed)
            except (Lost, NotFound) as error:
                # After a try was restored, the receipt that the server shows may be another worker's.
                ours = not perhaps_done or verdict.spend
                if isinstance(error, Lost) and error.status and self._doubt and ours and await self._find_receipt():
                    continue
                if perhaps_done and error.status and verdict is not ACK:
                    break
                self._lose(error)
                return
            break
        if self.settled is None:
            self.settled = verdict.outcome

    async def _request(self, verdict: Verdict) -> Request[Any] | None:
        """Return the request; None for an ack, which is sent with others."""
        requests = self.crew.client.requests
        if verdict.outcome is Outcome.ACKED:
            return None
        reason = verdict.reason
        delay = verdict.delay
        if verdict.text is not None:
            attempt = await self.attempt()
            reason = f"attempt {attempt}: {verdict.text}"
            if verdict.error is not None:
                delay = self._backoff(attempt, verdict.error)
        if verdict.outcome is Outcome.BURIED:
            return requests.bury(self.job, reason=reason)
        return requests.release(self.job, delay=delay, spend=verdict.spend, reason=reason)

    def _backoff(self, attempt: int, error: BaseException) -> float:
        delays = self.crew.backoff
        if not callable(delays):
            return spread(as_seconds(delays[min(attempt, len(delays)) - 1]))
        try:
            return seconds("delay", delays(attempt, error))
        except Exception:
            log.exception("the back-off of job %s of %s failed", self.job.job_id, self.job.queue)
            return spread(5)

    async def attempt(self) -> int:
        """Return the number of this attempt, from 1: earlier failures left theirs in the job's reason."""
        if self._attempt is None:
            details = await self._insist(self.crew.client.requests.get(self.job.queue, self.job.job_id))
            self._attempt = told_attempt(details.reason) + 1
        return self._attempt

    async def _send_ack(self, timeout: float) -> None:
        # A request for several jobs has its own timeout.
        async with asyncio.timeout_at(self._expires):
            await self.crew.acks.ack(self.job)

    async def _insist(self, request: Request[T], failed: Callable[[DormouseError], None] | None = None) -> T:
        async def send(timeout: float) -> T:
            async with self.crew.lines:
                return await self.crew.client.send(request, min(timeout, self._time_left()))

        return await self._insist_on(send, failed)

    def _time_left(self) -> float:
        """Return the remaining time of the delivery; `Lost` if there is none, since nothing is sent then."""
        left = self._expires - self.loop.time()
        if left <= 0:
            raise Lost("its ttr is over")
        return left

    def _pause_in_time(self, failures: int, error: DormouseError) -> float | None:
        """Return the pause before the next retry; None if there is no time for one. If the job would expire before the
        time that the server asks for, half of the remaining time: that server may be back long before."""
        left = self._expires - self.loop.time()
        pause = max(backoff(failures), error.retry_after or 0)
        return None if left <= LAST_REPEAT else pause if pause < left else left / 2

    async def _insist_on(
        self, send: Callable[[float], Awaitable[T]], failed: Callable[[DormouseError], None] | None = None
    ) -> T:
        """Send until there is a reply, or `ttr` is over."""
        failures = 0
        while (left := self._expires - self.loop.time()) > 0:
            try:
                result = await send(min(self.crew.client.timeout, left))
            except (Lost, NotFound):
                raise
            except TimeoutError:
                break
            except DormouseError as error:
                failures += 1
                if error.retryable:
                    self.crew.outage.failed("result", error)
                if failed is not None:
                    failed(error)
                if (pause := self._pause_in_time(failures, error)) is None:
                    break
                await asyncio.sleep(pause)
            else:
                self.crew.outage.worked("result")
                return result
        raise Lost("its ttr is over")

    # Manual calls, from within the handler

    async def attempt_by_hand(self) -> int:
        if self.settled is Outcome.LOST:
            raise Lost("the job is not yours any more")
        return await self.attempt()

    async def touch_by_hand(self, ttr: Seconds | None) -> datetime:
        async with self.turn:
            self._check_ours()
            failures = 0
            while True:
                try:
                    return await self._touch(self.crew.ttr if ttr is None else seconds("ttr", ttr))
                except (Lost, NotFound) as error:
                    self._lose(error)
                    raise
                except DormouseError as error:
                    failures += 1
                    pause = max(backoff(failures), error.retry_after or 0)
                    if not nothing_done(error) or self.loop.time() + pause >= self._expires:
                        raise
                await asyncio.sleep(pause)

    async def settle_by_hand(self, verdict: Verdict) -> None:
        async with self.turn:
            self._check_ours()
            await self._settle(verdict)
            if self.settled is Outcome.LOST:
                raise Lost("the job is not yours any more")
            self._disarm("touch", "expiry")

    def _check_ours(self) -> None:
        if self.settled is Outcome.LOST:
            raise Lost("the job is not yours any more")
        if self.settled is not None:
            raise Invalid(f"the job was {self.settled} already")


class _HeldBase(Job):
    __slots__ = ("_hold",)
    _hold: Hold

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(**{name.name: getattr(job, name.name) for name in dataclasses.fields(job)})

    def bind(self, hold: Hold) -> None:
        self._hold = hold

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end."""
        return self._hold.cancelled.is_set()

    @property
    def cause(self) -> Cause | None:
        """Why it should end."""
        return self._hold.cause


class HeldJob(_HeldBase):
    """A job in a handler that is a plain function, in its own thread. Its calls to the server block."""

    __slots__ = ()

    def wait(self, duration: Seconds) -> bool:
        """Sleep, but at most until the handler should end. Return whether it should."""
        return self._hold.cancelled.wait(as_seconds(duration))

    def _ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._hold.loop).result()

    def attempt(self) -> int:
        """Return the number of this attempt, from 1. Asks the server."""
        return self._ask(self._hold.attempt_by_hand())

    def touch(self, ttr: Seconds | None = None) -> datetime:
        """Extend the delivery to `ttr` from now. The worker touches by itself: this is for a longer `ttr`."""
        return self._ask(self._hold.touch_by_hand(ttr))

    def ack(self) -> None:
        """Ack the job: the handler's result no longer matters."""
        self._ask(self._hold.settle_by_hand(ACK))

    def release(self, *, delay: Seconds = 0, spend: bool = True, reason: str | None = None) -> None:
        """Return the job to its queue; `spend=False` restores the try."""
        self._ask(self._hold.settle_by_hand(_release(delay, spend, reason)))

    def bury(self, reason: str = "") -> None:
        """Move the job to the dead letter."""
        self._ask(self._hold.settle_by_hand(Verdict(Outcome.BURIED, reason=reason)))


class AsyncHeldJob(_HeldBase):
    """A job in a handler that is a coroutine function. It is cancelled (`CancelledError`) when it should end."""

    __slots__ = ()

    async def _ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # If the handler is cancelled, its call continues to its end: it may be in flight.
        asked = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._hold.loop))
        asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        return await asyncio.shield(asked)

    async def attempt(self) -> int:
        """Return the number of this attempt, from 1. Asks the server."""
        return await self._ask(self._hold.attempt_by_hand())

    async def touch(self, ttr: Seconds | None = None) -> datetime:
        """Extend the delivery to `ttr` from now. The worker touches by itself: this is for a longer `ttr`."""
        return await self._ask(self._hold.touch_by_hand(ttr))

    async def ack(self) -> None:
        """Ack the job: the handler's result no longer matters."""
        await self._ask(self._hold.settle_by_hand(ACK))

    async def release(self, *, delay: Seconds = 0, spend: bool = True, reason: str | None = None) -> None:
        """Return the job to its queue; `spend=False` restores the try."""
        await self._ask(self._hold.settle_by_hand(_release(delay, spend, reason)))

    async def bury(self, reason: str = "") -> None:
        """Move the job to the dead letter."""
        await self._ask(self._hold.settle_by_hand(Verdict(Outcome.BURIED, reason=reason)))


def _release(delay: Seconds, spend: bool, reason: str | None) -> Verdict:
    return Verdict(Outcome.RELEASED, delay=seconds("delay", delay), spend=spend, reason=reason)


class Threads:
    """Threads for blocking handlers. They are daemons: a handler that never returns keeps no process alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._all = 0
        self._work: queues.SimpleQueue[Callable[[], None] | None] = queues.SimpleQueue()

    async def call(self, handler: Callable[[Any], object], job: Job) -> None:
        """Run the handler in a thread, with the context of the caller."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()
        context = contextvars.copy_context()

        def finish(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                context.run(handler, job)
            except BaseException as raised:
                error = raised
            call_if_open(loop, finish, error)

        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._all += 1
                threading.Thread(target=self._serve, name=f"dormouse-handler-{self._all}", daemon=True).start()
        self._work.put(work)
        if error := await done:
            raise error

    def _serve(self) -> None:
        while work := self._work.get():
            work()
            del work
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        for _ in range(self._all):
            self._work.put(None)


def error_text(error: BaseException) -> str:
    """Return the error as Python shows it, without the type if that is uninformative."""
    name = type(error).__name__
    if type(error) in (Exception, BaseException):
        return str(error) or name
    return f"{name}: {error}" if str(error) else name


def call_if_open(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call from another thread. If the loop was closed meanwhile, no caller waits."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def as_seconds(duration: Seconds) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def spread(delay: float) -> float:
    """Vary by 10 %, so that simultaneous events do not recur together."""
    return delay * random.uniform(0.9, 1.1)
