"""An in-process server for tests: `Double`.

It keeps its jobs in memory, and only the test moves its clock. It replies to the library like a server, with the same
texts. A test creates a client of it, publishes, lets a worker `run_until_idle`, moves the clock by `advance`, and
checks the results.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, unquote

import httpx

from .client import AsyncClient, Client
from .protocol import MAX_ACKS, MAX_BATCH_JOBS, MAX_COUNT, MAX_REASON, Seconds, State

_MAX_JOB = 1 << 20
_DAY = 86400.0
_LONGEST = 4_294_967_295
_REMEMBERED = 600
"""Seconds that an idempotency key is remembered."""
_SECONDS = re.compile(r"\d+(\.\d{1,3})?")
_KEY = re.compile(r"[!-~]{1,255}")
_TOKEN = "double"


class _Refused(Exception):
    def __init__(self, status: int, error: str, **more: Any) -> None:
        super().__init__(error)
        self.status = status
        self.said = {"error": error, **more}


@dataclass(eq=False)
class _Stored:
    """A job of the double."""

    job_id: str
    queue: str
    body: bytes
    published: float
    ttl: float
    tries: int
    key: str | None
    attributes: dict[str, str]
    due: float
    state: State = "delayed"
    receipt: str | None = None
    reason: str | None = None

    def gone_at(self) -> float:
        return float("inf") if self.ttl == 0 or self.state == "dead" else self.published + self.ttl


@dataclass
class _Queue:
    ready: list[_Stored] = field(default_factory=list)
    dead: list[_Stored] = field(default_factory=list)
    paused_until: float | None = None
    """Infinity without an end; None when it is not paused."""


@dataclass
class _Asked:
    """A parsed request."""

    method: str
    queues: list[str]
    rest: list[str]
    query: dict[str, str]
    headers: httpx.Headers
    body: bytes

    @property
    def queue(self) -> str:
        return self.queues[0]

    def number(
        self, name: str, default: float, decimals: bool = True, least: float = 0, most: float = _LONGEST
    ) -> float:
        text = self.query.get(name)
        if text is None:
            return default
        fine = _SECONDS.fullmatch(text) if decimals else text.isascii() and text.isdigit()
        if not fine or not least <= float(text) <= most:
            raise _Refused(400, f"invalid {name}")
        return float(text)


class Double:
    """An in-memory server for one namespace. Safe to share between threads."""

    def __init__(self, namespace: str = "double", start: datetime | None = None) -> None:
        """:param start: initial time of its clock; now by default."""
        self.namespace = namespace
        self._start = start or datetime.now(UTC)
        self._clock = 0.0
        self._lock = threading.RLock()
        self._jobs: dict[str, _Stored] = {}
        self._queues: dict[str, _Queue] = {}
        self._ids = itertools.count(1)
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._answered: dict[tuple[str, str], tuple[float, object, httpx.Response]] = {}
        self._turns: dict[tuple[str, ...], dict[str, int]] = {}

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return the transport of its clients."""
        return _Transport(self._handle)

    def client(self, **options: Any) -> Client:
        """Return a client of it, with options of `Client`."""
        return Client("http://double", self.namespace, _TOKEN, transport=self.transport, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        return AsyncClient("http://double", self.namespace, _TOKEN, transport=self.transport, **options)

    @property
    def now(self) -> datetime:
        """The time of its clock."""
        return self._at(self._clock)

    def advance(self, duration: Seconds) -> None:
        """Move the clock: delays end, jobs that were not acked in time are redelivered, and jobs expire."""
        with self._lock:
            self._clock += duration.total_seconds() if isinstance(duration, timedelta) else duration
            self._move()
            self._wake()

    # Requests

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        end: float | None = None
        try:
            while True:
                event.clear()
                with self._lock:
                    answer = self._answer(request, body)
                    timeout = float(answer.extensions.get("timeout", 0))
                    if not timeout:
                        return answer
                    self._waiting.add(waiter)
                end = end or waiter[0].time() + timeout
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        await event.wait()
                        continue
                return answer
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for loop, event in list(self._waiting):
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    def _answer(self, request: httpx.Request, body: bytes) -> httpx.Response:
        try:
            path = request.url.raw_path.decode().partition("?")[0].removeprefix("/api/")
            namespace, *parts = (unquote(part) for part in path.split("/"))
            query: dict[str, str] = {}
            for name, value in parse_qsl(request.url.query.decode(), keep_blank_values=True):
                query.setdefault(name, value)
            queues = parts[0].split(",") if parts else []
            asked = _Asked(request.method, queues, parts[1:], query, request.headers, body)
            if request.headers.get("x-token") != _TOKEN or namespace != self.namespace:
                raise _Refused(401, "invalid token")
            self._move()
            return self._remembered(asked, self._route(asked))
        except _Refused as refused:
            return httpx.Response(refused.status, json=refused.said)

    def _remembered(self, asked: _Asked, do: Callable[[_Asked], httpx.Response]) -> httpx.Response:
        key = asked.headers.get("idempotency-key")
        if key is None:
            answer = do(asked)
        else:
            attributes = sorted((n, v) for n, v in asked.headers.items() if n.startswith("job-attr-"))
            same = (asked.method, asked.rest, asked.query, attributes, asked.body)
            remembered = self._answered.get((asked.queue, key))
            if remembered is not None and self._clock - remembered[0] < _REMEMBERED:
                _, before, answer = remembered
                if before != same:
                    raise _Refused(422, "the idempotency key was used for another request")
                headers = {**answer.headers, "idempotency-replayed": "true"}
                return httpx.Response(answer.status_code, content=answer.content, headers=headers)
            answer = do(asked)
            self._answered[asked.queue, key] = (self._clock, same, answer)
        if asked.method != "GET":
            self._wake()
        return answer

    def _route(self, asked: _Asked) -> Callable[[_Asked], httpx.Response]:
        match (asked.method, *asked.rest):
            case ("GET",) if not asked.queues:
                return self._list_queues
            case ("GET",):
                return self._consume
            case ("DELETE",):
                return self._destroy
            case ("POST", "jobs"):
                return self._publish
            case ("POST", "jobs", "batch"):
                return self._publish_batch
            case ("GET", "jobs"):
                return self._list_jobs
            case ("GET", "peek"):
                return self._peek
            case ("GET", "size"):
                return self._size
            case ("POST", "ack"):
                return self._ack_many
            case ("POST", "pause"):
                return self._pause
            case ("POST", "resume"):
                return self._resume
            case ("GET", "key", _):
                return self._show
            case ("DELETE", "key", _):
                return self._cancel_key
            case ("POST", "job" | "key", _, "promote"):
                return self._promote
            case ("GET", "job", _):
                return self._show
            case ("DELETE", "job", _):
                return self._ack
            case ("POST", "job", _, "touch"):
                return self._touch
            case ("POST", "job", _, "release"):
                return self._release
            case ("POST", "job", _, "bury"):
                return self._bury
            case ("GET", "deadletter"):
                return self._dead
            case ("PUT", "deadletter"):
                return self._respawn_oldest
            case ("DELETE", "deadletter"):
                return self._delete_dead
            case ("POST", "deadletter", "respawn"):
                return self._respawn
        raise _Refused(404, "api not found")

    # Producers

    def _publish(self, asked: _Asked) -> httpx.Response:
        attributes: dict[str, str] = {}
        if asked.headers.get("enable-job-version", "").lower() == "yes":
            prefix = "job-attr-"
            attributes = {n.removeprefix(prefix): v for n, v in asked.headers.items() if n.startswith(prefix)}
        job = self._new_job(asked.queue, asked.query, asked.body, attributes)
        on_conflict = asked.query.get("on_conflict", "keep")
        self._check_key(job, on_conflict)
        return httpx.Response(201, json={"msg": "published", **self._place(job, on_conflict)})

    def _publish_batch(self, asked: _Asked) -> httpx.Response:
        said = self._list_in(asked.body)
        if not said or len(said) > MAX_BATCH_JOBS:
            raise _Refused(400, "too many jobs" if said else "no jobs")
        jobs: list[tuple[_Stored, str]] = []
        keys: set[str] = set()
        for index, one in enumerate(said):
            try:
                body = base64.b64decode(one["data"], validate=True) if "data" in one else one["text"].encode()
                query = {name: str(value) for name, value in one.items()}
                job = self._new_job(asked.queue, query, body, one.get("attributes", {}))
                on_conflict = one.get("on_conflict", "keep")
                if job.key is not None and job.key in keys:
                    raise _Refused(400, "two jobs with one key")
                keys.update([job.key] if job.key is not None else [])
                self._check_key(job, on_conflict)
            except _Refused as refused:
                refused.said["index"] = index
                raise
            jobs.append((job, on_conflict))
        placed = [self._place(job, on_conflict) for job, on_conflict in jobs]
        return httpx.Response(201, json={"msg": "published", "jobs": placed})

    def _new_job(self, queue: str, query: dict[str, str], body: bytes, attributes: dict[str, str]) -> _Stored:
        asked = _Asked("POST", [queue], [], query, httpx.Headers(), body)
        times = [name for name in ("delay", "at", "at_ms") if name in query]
        if len(times) > 1:
            raise _Refused(400, "only one of delay, at and at_ms can be given")
        delay = asked.number("delay", 0)
        if "at" in query:
            delay = max(self._instant(query["at"]) - self._clock, 0)
        elif "at_ms" in query:
            at = asked.number("at_ms", 0, decimals=False, most=float("inf")) / 1000
            delay = max(at - self._start.timestamp() - self._clock, 0)
        if delay > _LONGEST:
            raise _Refused(400, "at is too far away")
        ttl = asked.number("ttl", delay + _DAY)
        if ttl and ttl < delay:
            raise _Refused(400, "ttl is shorter than delay")
        if ttl and ttl == delay:
            raise _Refused(400, "ttl equals delay: the job would expire when it is due")
        tries = int(asked.number("tries", 1, decimals=False, most=65535))
        if not tries:
            raise _Refused(400, "tries shouldn't be zero")
        key = query.get("key")
        if key is not None and not _KEY.fullmatch(key):
            raise _Refused(400, "invalid key")
        if query.get("on_conflict", "keep") not in ("keep", "replace", "fail"):
            raise _Refused(400, "invalid on_conflict")
        if len(attributes) > 16:
            raise _Refused(400, "too many attributes, cannot exceed 16")
        if len(body) > _MAX_JOB:
            raise _Refused(413, "job too large")
        named = {name.lower(): value for name, value in attributes.items()}
        return _Stored("", queue, body, self._clock, ttl, tries, key, named, self._clock + delay)

    def _instant(self, text: str) -> float:
        with contextlib.suppress(ValueError):
            at = datetime.fromisoformat(text)
            if at.tzinfo is not None:
                return (at - self._start).total_seconds()
        if _SECONDS.fullmatch(text):
            return float(text) - self._start.timestamp()
        raise _Refused(400, "invalid at")

    def _with_key(self, queue: str, key: str | None) -> _Stored | None:
        taken = (job for job in self._jobs.values() if job.queue == queue and job.key == key and key is not None)
        return next(taken, None)

    def _check_key(self, job: _Stored, on_conflict: str) -> None:
        other = self._with_key(job.queue, job.key)
        if other is not None and on_conflict == "fail":
            raise _Refused(409, "the key is taken", job_id=other.job_id)

    def _place(self, job: _Stored, on_conflict: str) -> dict[str, Any]:
        other = self._with_key(job.queue, job.key)
        said: dict[str, Any] = {}
        if other is not None:
            if on_conflict == "keep":
                return {"job_id": other.job_id, "due_at": self._text(other.due), "duplicate": True}
            if other.state == "running":
                other.key = None
            else:
                self._forget(other)
                said["replaced"] = other.job_id
        job.job_id = f"{next(self._ids):026d}"
        self._jobs[job.job_id] = job
        self._queue(job.queue)
        self._move()
        return {"job_id": job.job_id, "due_at": self._text(job.due), **said}

    def _cancel_key(self, asked: _Asked) -> httpx.Response:
        job = self._with_key(asked.queue, asked.rest[1])
        if job is None:
            raise _Refused(404, "no job has this key")
        self._forget(job)
        return httpx.Response(204)

    def _promote(self, asked: _Asked) -> httpx.Response:
        job = self._found(asked)
        if job.state != "delayed":
            return httpx.Response(409, json={"error": "the job is not delayed", "state": job.state})
        job.due = self._clock
        self._move()
        return httpx.Response(200, json={"msg": "ready"})

    # Workers

    def _consume(self, asked: _Asked) -> httpx.Response:
        ttr = asked.number("ttr", 120, decimals=False, least=1)
        count = int(asked.number("count", 1, decimals=False, least=1, most=MAX_COUNT))
        timeout = asked.number("timeout", 0, decimals=False)
        names = list(dict.fromkeys(asked.queues))
        weights = self._weights(asked, names)
        jobs: list[_Stored] = []
        while len(jobs) < count:
            ready = [name for name in names if self._takeable(name)]
            if not ready:
                break
            name = ready[0] if weights is None else self._turn(tuple(asked.queues), ready, weights)
            job = self._queue(name).ready.pop(0)
            job.state, job.tries, job.due = "running", job.tries - 1, self._clock + ttr
            job.receipt = f"{next(self._ids)}-{job.tries}"
            jobs.append(job)
        if not jobs:
            return httpx.Response(404, json={"msg": "no job available"}, extensions={"timeout": timeout})
        said = [{"msg": "new job", **self._shown(job), "receipt": job.receipt} for job in jobs]
        return httpx.Response(200, json=said if count > 1 else said[0])

    def _weights(self, asked: _Asked, names: list[str]) -> dict[str, int] | None:
        if "weights" not in asked.query:
            return None
        given = asked.query["weights"].split(",")
        if len(given) != len(asked.queues) or not all(one.isdigit() and 1 <= int(one) <= 1000 for one in given):
            raise _Refused(400, "invalid weights")
        return dict(zip(names, map(int, given), strict=False))

    def _turn(self, names: tuple[str, ...], ready: list[str], weights: dict[str, int]) -> str:
        """Smooth weighted round robin over the queues that have jobs."""
        turns = self._turns.setdefault(names, dict.fromkeys(weights, 0))
        for name in ready:
            turns[name] += weights[name]
        chosen = max(ready, key=lambda name: turns[name])
        turns[chosen] -= sum(weights[name] for name in ready)
        return chosen

    def _takeable(self, name: str) -> bool:
        queue = self._queues.get(name)
        return queue is not None and bool(queue.ready) and queue.paused_until is None

    def _held(self, asked: _Asked) -> _Stored:
        job = self._found(asked)
        receipt = asked.query.get("receipt")
        if not receipt:
            raise _Refused(400, "invalid receipt")
        if job.state != "running" or job.receipt != receipt:
            raise _Refused(409, "the job is not yours any more")
        return job

    def _reason(self, asked: _Asked) -> str | None:
        if len(asked.body) > MAX_REASON:
            raise _Refused(413, "reason too large")
        return asked.body.decode() or None

    def _touch(self, asked: _Asked) -> httpx.Response:
        job = self._held(asked)
        job.due = self._clock + asked.number("ttr", 120, least=0.001)
        job.receipt = f"{next(self._ids)}-{job.tries}"
        return httpx.Response(200, json={"msg": "touched", "receipt": job.receipt, "until": self._text(job.due)})

    def _release(self, asked: _Asked) -> httpx.Response:
        job = self._held(asked)
        delay = asked.number("delay", 0)
        spend = asked.number("spend", 1, decimals=False, most=1)
        job.reason = self._reason(asked) or job.reason
        job.tries += 0 if spend else 1
        if not job.tries or job.gone_at() <= self._clock + delay:
            self._die(job)
            return httpx.Response(200, json={"msg": "dead"})
        job.receipt, job.due = None, self._clock + delay
        if delay:
            job.state = "delayed"
        else:
            job.state = "ready"
            self._queue(job.queue).ready.insert(0, job)
        said = {"msg": "released", "remain_tries": job.tries, "due_at": self._text(job.due)}
        return httpx.Response(200, json=said)

    def _bury(self, asked: _Asked) -> httpx.Response:
        job = self._held(asked)
        job.reason = self._reason(asked) or job.reason
        self._die(job)
        return httpx.Response(200, json={"msg": "dead"})

    def _ack(self, asked: _Asked) -> httpx.Response:
        job = self._jobs.get(asked.rest[1])
        if job is not None and job.queue == asked.queue:
            if asked.query.get("receipt"):
                self._held(asked)
            self._forget(job)
        return httpx.Response(204)

    def _ack_many(self, asked: _Asked) -> httpx.Response:
        said = json.loads(asked.body or b"{}").get("jobs") or []
        if not said or len(said) > MAX_ACKS:
            raise _Refused(400, "too many jobs" if said else "no jobs")
        stale = []
        for one in said:
            job_id, receipt = (one, None) if isinstance(one, str) else (one["id"], one["receipt"])
            job = self._jobs.get(job_id)
            if job is None or job.queue != asked.queue:
                continue
            if receipt is not None and (job.state != "running" or job.receipt != receipt):
                stale.append(job_id)
            else:
                self._forget(job)
        return httpx.Response(200, json={"acked": len(said) - len(stale), "stale": stale})

    # Reading

    def _show(self, asked: _Asked) -> httpx.Response:
        job = self._found(asked)
        said = self._shown(job)
        if asked.query.get("verbose") == "1":
            said |= {"state": job.state, "due_at": self._text(job.due), "key": job.key, "reason": job.reason}
            if "receipt" in asked.query:
                same_tries = asked.query["receipt"].rpartition("-")[2] == str(job.tries)
                said["receipt"] = job.receipt if job.state == "running" and same_tries else None
        return httpx.Response(200, json=said)

    def _peek(self, asked: _Asked) -> httpx.Response:
        ready = self._queue_or_none(asked.queue).ready
        if not ready:
            raise _Refused(404, "the queue is empty")
        return httpx.Response(200, json=self._shown(ready[0]))

    def _size(self, asked: _Asked) -> httpx.Response:
        size = len(self._queue_or_none(asked.queue).ready)
        return httpx.Response(200, json={"namespace": self.namespace, "queue": asked.queue, "size": size})

    def _list_queues(self, asked: _Asked) -> httpx.Response:
        def figures(name: str, queue: _Queue) -> dict[str, Any]:
            states = [job.state for job in self._jobs.values() if job.queue == name]
            said: dict[str, Any] = {state: states.count(state) for state in ("ready", "delayed", "running", "dead")}
            said["oldest_ready_age"] = self._clock - queue.ready[0].due if queue.ready else None
            said["paused"] = queue.paused_until is not None
            if queue.paused_until not in (None, float("inf")):
                said["paused_until"] = self._text(queue.paused_until)
            return {"queue": name, **said}

        def page(names: list[str]) -> dict[str, Any]:
            return {"namespace": self.namespace, "queues": [figures(name, self._queues[name]) for name in names]}

        return self._paged(asked, sorted(self._queues), 100, page)

    def _list_jobs(self, asked: _Asked) -> httpx.Response:
        state, queue = asked.query.get("state", "ready"), self._queue_or_none(asked.queue)
        if state not in ("ready", "delayed", "running", "dead"):
            raise _Refused(400, "invalid state")
        timed = (job for job in self._jobs.values() if job.queue == asked.queue and job.state == state)
        jobs = {"ready": queue.ready, "dead": queue.dead}.get(state) or sorted(timed, key=lambda job: job.due)

        def listed(job: _Stored) -> dict[str, Any]:
            said = {
                "job_id": job.job_id,
                "state": job.state,
                "due_at": self._text(job.due),
                "published_at": self._text(job.published),
                "remain_tries": job.tries,
                "ttl": self._left(job),
                "key": job.key,
                "reason": job.reason,
                "size": len(job.body),
            }
            if asked.query.get("data") == "1":
                said["data"] = base64.b64encode(job.body).decode()
                said |= {"attributes": job.attributes} if job.attributes else {}
            return said

        def page(jobs: list[_Stored]) -> dict[str, Any]:
            return {"jobs": [listed(job) for job in jobs], "scanned": len(jobs)}

        return self._paged(asked, jobs, 20, page)

    def _paged(
        self, asked: _Asked, items: list[Any], limit: int, page: Callable[[list[Any]], dict[str, Any]]
    ) -> httpx.Response:
        limit = int(asked.number("limit", limit, decimals=False, least=1, most=100))
        begin = int(asked.number("cursor", 0, decimals=False))
        cursor = str(begin + limit) if begin + limit < len(items) else None
        return httpx.Response(200, json={**page(items[begin : begin + limit]), "cursor": cursor})

    # Operators

    def _pause(self, asked: _Asked) -> httpx.Response:
        until = self._clock + asked.number("for", float("inf"))
        self._queue(asked.queue).paused_until = until
        return httpx.Response(
            200, json={"msg": "paused", "until": None if until == float("inf") else self._text(until)}
        )

    def _resume(self, asked: _Asked) -> httpx.Response:
        self._queue_or_none(asked.queue).paused_until = None
        return httpx.Response(200, json={"msg": "resumed"})

    def _destroy(self, asked: _Asked) -> httpx.Response:
        for job in list(self._queue_or_none(asked.queue).ready):
            self._forget(job)
        return httpx.Response(204)

    def _dead(self, asked: _Asked) -> httpx.Response:
        dead = self._queue_or_none(asked.queue).dead
        said = {"deadletter_head": dead[0].job_id if dead else "", "deadletter_size": len(dead)}
        return httpx.Response(200, json={**said, "namespace": self.namespace, "queue": asked.queue})

    def _respawn_oldest(self, asked: _Asked) -> httpx.Response:
        limit = int(asked.number("limit", 1, decimals=False, least=1))
        dead = self._queue_or_none(asked.queue).dead[:limit]
        self._revive(dead, 1, 0, asked.number("ttl", _DAY, decimals=False))
        return httpx.Response(200, json={"count": len(dead), "msg": "respawned"})

    def _respawn(self, asked: _Asked) -> httpx.Response:
        job_ids = json.loads(asked.body or b"{}").get("jobs") or []
        if not job_ids or len(job_ids) > MAX_ACKS:
            raise _Refused(400, "too many jobs" if job_ids else "no jobs")
        delay = asked.number("delay", 0)
        dead = {job.job_id: job for job in self._queue_or_none(asked.queue).dead}
        found = [dead[job_id] for job_id in job_ids if job_id in dead]
        tries = int(asked.number("tries", 1, decimals=False, least=1, most=65535))
        self._revive(found, tries, delay, asked.number("ttl", delay + _DAY))
        missing = [job_id for job_id in job_ids if job_id not in dead]
        return httpx.Response(200, json={"respawned": len(found), "missing": missing})

    def _revive(self, jobs: Iterable[_Stored], tries: int, delay: float, ttl: float) -> None:
        for job in jobs:
            self._queue(job.queue).dead.remove(job)
            job.state, job.tries, job.due = "delayed", tries, self._clock + delay
            job.published, job.ttl = self._clock, ttl
        self._move()

    def _delete_dead(self, asked: _Asked) -> httpx.Response:
        limit = int(asked.number("limit", 1, decimals=False, least=1))
        for job in self._queue_or_none(asked.queue).dead[:limit]:
            self._forget(job)
        return httpx.Response(204)

    # The store

    def _queue(self, name: str) -> _Queue:
        return self._queues.setdefault(name, _Queue())

    def _queue_or_none(self, name: str) -> _Queue:
        return self._queues.get(name, _Queue())

    def _found(self, asked: _Asked) -> _Stored:
        by_key = asked.rest[0] == "key"
        job = self._with_key(asked.queue, asked.rest[1]) if by_key else self._jobs.get(asked.rest[1])
        if job is None or job.queue != asked.queue:
            raise _Refused(404, "no job has this key" if by_key else "job not found")
        return job

    def _move(self) -> None:
        """Handle everything that is due, in order."""
        for queue in self._queues.values():
            if queue.paused_until is not None and queue.paused_until <= self._clock:
                queue.paused_until = None
        for job in sorted(self._timed(), key=lambda job: job.due):
            if job.state == "running" and not job.tries:
                self._die(job)
            else:
                job.state, job.receipt = "ready", None
                self._queue(job.queue).ready.append(job)
        for job in [job for job in self._jobs.values() if job.gone_at() <= self._clock]:
            self._forget(job)

    def _timed(self) -> Iterator[_Stored]:
        return (job for job in self._jobs.values() if job.state in ("delayed", "running") and job.due <= self._clock)

    def _die(self, job: _Stored) -> None:
        job.state, job.receipt, job.key, job.tries, job.due = "dead", None, None, 0, self._clock
        self._queue(job.queue).dead.append(job)

    def _forget(self, job: _Stored) -> None:
        del self._jobs[job.job_id]
        queue = self._queue(job.queue)
        for jobs in (queue.ready, queue.dead):
            if job in jobs:
                jobs.remove(job)

    def _left(self, job: _Stored) -> int:
        return max(round(job.gone_at() - self._clock), 1) if job.gone_at() != float("inf") else 0

    def _shown(self, job: _Stored) -> dict[str, Any]:
        return {
            "attributes": job.attributes or None,
            "data": base64.b64encode(job.body).decode(),
            "elapsed_ms": round((self._clock - job.published) * 1000),
            "job_id": job.job_id,
            "namespace": self.namespace,
            "queue": job.queue,
            "remain_tries": job.tries,
            "ttl": self._left(job),
        }

    def _list_in(self, body: bytes) -> list[Any]:
        try:
            said = json.loads(body)
        except ValueError:
            said = None
        if not isinstance(said, list):
            raise _Refused(400, "request body should be an array of objects")
        return said

    def _at(self, clock: float) -> datetime:
        return self._start + timedelta(seconds=clock)

    def _text(self, clock: float) -> str:
        return self._at(clock).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, handle: Callable[[httpx.Request], Any]) -> None:
        self._handle = handle

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer: httpx.Response = await self._handle(request)
        return answer
