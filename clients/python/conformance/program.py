"""The library, driven by lines of JSON: what the conformance suite talks to.

Each request has a thread, so requests run side by side; each worker has one too. Handlers are coroutines.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import dormouse_client as dormouse
from dormouse_client import AsyncHeldJob, Client, DormouseError, Hooks, Job, Message, Outcome, Worker

Json = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPTIONS = ("delay", "ttl", "tries", "key", "on_conflict", "attributes", "traceparent")
_WORKER_OPTIONS = (
    "queues",
    "concurrency",
    "ttr",
    "poll",
    "backoff",
    "time_limit",
    "drain",
    "grace",
    "ack_window",
)


class Gates:
    """What handlers wait for until it is opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._waiting: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    async def wait(self, gate: str) -> None:
        event = asyncio.Event()
        with self._lock:
            if gate in self._open:
                return
            self._waiting.setdefault(gate, []).append((asyncio.get_running_loop(), event))
        await event.wait()

    def open(self, gate: str) -> None:
        with self._lock:
            self._open.add(gate)
            waiting = self._waiting.pop(gate, [])
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)


class Out:
    """Standard output: one line at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def line(self, said: Json) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()

    def event(self, event: str, /, **fields: Any) -> None:
        self.line({"event": event, "at": time.time() * 1000, **fields})


class TellingHooks(Hooks):
    """Hooks as events."""

    def __init__(self, out: Out, worker: str) -> None:
        self._out = out
        self._worker = worker

    def _say(self, name: str, **fields: Any) -> None:
        self._out.event("hook", worker=self._worker, name=name, **fields)

    def poll(self, jobs: int, seconds: float, error: DormouseError | None) -> None:
        self._say("poll", jobs=jobs, seconds=seconds, error=error and str(error))

    def start(self, job: Job) -> None:
        self._say("start", job_id=job.job_id)

    def finish(self, job: Job, outcome: Outcome, seconds: float, elapsed: float) -> None:
        self._say("finish", job_id=job.job_id, outcome=outcome, seconds=seconds, elapsed=elapsed)

    def touch(self, job: Job, error: DormouseError | None) -> None:
        self._say("touch", job_id=job.job_id, error=error and str(error))

    def away(self, error: DormouseError) -> None:
        self._say("away", error=str(error))

    def back(self, seconds: float) -> None:
        self._say("back", seconds=seconds)

    def drain(self, running: int) -> None:
        self._say("drain", running=running)


class RunningWorker:
    """A worker whose handler does what the bodies of its jobs say."""

    def __init__(self, program: Program, name: str, client: Client, options: Json) -> None:
        self._program = program
        self._out = program.out
        self._name = name
        self._client = client
        self._running = 0
        self._thread: threading.Thread | None = None
        self.ended = threading.Event()
        self.clean = True
        self.worker = Worker(client, middleware=[self._around], hooks=TellingHooks(self._out, name), **options)
        for queue in options["queues"]:
            self.worker.handler(queue)(self._handle)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: Json | None = None
        try:
            self.worker.run(signals=False)
        except dormouse.DrainError as left:
            self.clean = False
            error = {**NO_ERROR, "type": "unclean", "message": str(left)}
        except DormouseError as refused:
            error = error_fields(refused)
        self._out.event("stopped", worker=self._name, clean=self.clean, error=error)
        self.ended.set()

    async def _around(self, job: Job, call: dormouse.Next) -> None:
        def say(phase: str, error: str | None = None) -> None:
            self._out.event("middleware", worker=self._name, job_id=job.job_id, phase=phase, error=error)

        say("before")
        try:
            await call()
        except BaseException as error:
            say("after", str(error) or type(error).__name__)
            raise
        say("after")

    async def _handle(self, job: AsyncHeldJob) -> None:
        self._running += 1
        self._out.event("start", worker=self._name, job=job_fields(job), running=self._running)
        result = "ok"
        try:
            await Steps(self._program, self._name, self._client, job).run()
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        except Exception:
            result = "error"
            raise
        except BaseException:
            result = "panic"
            raise
        finally:
            self._running -= 1
            self._out.event("end", worker=self._name, job_id=job.job_id, result=result)


class Steps:
    """What a job's body says, done in order."""

    def __init__(self, program: Program, worker: str, client: Client, job: AsyncHeldJob) -> None:
        self._program = program
        self._worker = worker
        self._client = client
        self._job = job
        self._swallow = False
        self._told: set[dormouse.Cause | None] = set()

    async def run(self) -> None:
        if self._job.data.startswith(b"json:"):
            self._job.json()
        try:
            said = json.loads(self._job.data)
        except ValueError:
            return
        if not isinstance(said, dict) or "do" not in said:
            return
        try:
            for step in said["do"]:
                await self._step(step)
        except asyncio.CancelledError:
            self._say_cancelled()
            if not self._swallow:
                raise

    def _say_cancelled(self) -> None:
        if self._job.cause not in self._told:
            self._told.add(self._job.cause)
            self._say("cancelled", cause=self._job.cause)

    def _say(self, event: str, **fields: Any) -> None:
        self._program.out.event(event, worker=self._worker, job_id=self._job.job_id, **fields)

    async def _step(self, step: Json) -> None:
        job = self._job
        match step:
            case {"sleep": _} | {"wait": _} if job.cancelled:  # An earlier step has gone on regardless.
                raise asyncio.CancelledError
            case {"sleep": seconds}:
                await asyncio.sleep(seconds)
            case {"wait": gate}:
                await self._program.gates.wait(gate)
            case {"ignore": seconds}:
                await self._sleep_regardless(seconds)
            case {"block": seconds}:
                time.sleep(seconds)  # noqa: ASYNC251
            case {"publish": {"queue": queue, "data": data}}:
                await self._client.asynchronous.publish(queue, base64.b64decode(data))
            case {"touch": seconds}:
                await job.touch(seconds)
            case {"ack": _}:
                await job.ack()
            case {"attempt": _}:
                self._say("attempt", attempt=await job.attempt())
            case {"swallow": _}:
                self._swallow = True
            case _ if not self._passed_over(step):
                self._end(step)

    def _passed_over(self, step: Json) -> bool:
        if "times" not in step:
            return False
        done = self._program.ends
        end = (self._job.job_id, json.dumps(step, sort_keys=True))
        done[end] += 1
        return done[end] > int(step["times"])

    def _end(self, step: Json) -> None:
        match step:
            case {"fail": text}:
                raise Exception(text)
            case {"permanent": text}:
                raise dormouse.Permanent(text)
            case {"retry": {"after": after, "text": text}}:
                raise dormouse.RetryAfter(after, text)
            case {"snooze": seconds}:
                raise dormouse.Snooze(seconds)
            case {"panic": text}:
                raise BaseException(text)
            case _:
                raise dormouse.Permanent(f"an unknown step: {json.dumps(step)}")

    async def _sleep_regardless(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                self._say_cancelled()


class Program:
    def __init__(self) -> None:
        self.out = Out()
        self.gates = Gates()
        self.ends: Counter[tuple[str, str]] = Counter()
        self._clients: dict[str, Client] = {}
        self._workers: dict[str, RunningWorker] = {}
        self._jobs: dict[str, Job] = {}
        self._stopping = threading.Event()

    def main(self) -> int:
        signal.signal(signal.SIGTERM, self._told)
        signal.signal(signal.SIGINT, self._told)
        self.out.line({"event": "ready", "language": "python", "version": dormouse.__version__, "lacks": []})
        threading.Thread(target=self._read, daemon=True).start()
        self._stopping.wait()
        started = [worker for worker in self._workers.values() if worker._thread is not None]
        for worker in started:
            worker.ended.wait()
        return 0 if all(worker.clean for worker in started) else 1

    def _told(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.worker.stop()
        self._stopping.set()

    def _read(self) -> None:
        for line in sys.stdin:
            if not line.strip():
                continue
            asked = json.loads(line)
            if asked.get("op") in ("client", "worker", "start", "open"):  # Later lines stand on them.
                self._answer(asked)
            else:
                threading.Thread(target=self._answer, args=(asked,), daemon=True).start()
        os._exit(0)

    def _answer(self, asked: Json) -> None:
        try:
            operation = getattr(self, f"op_{asked['op']}")
            self.out.line({"id": asked["id"], "result": operation(asked)})
        except DormouseError as error:
            self.out.line({"id": asked["id"], "error": error_fields(error)})
        except dormouse.SignatureError as error:
            self.out.line({"id": asked["id"], "error": {**NO_ERROR, "type": "signature", "message": str(error)}})
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.out.line({"id": asked["id"], "error": {**NO_ERROR, "type": "program", "message": message}})

    def _client(self, asked: Json) -> Client:
        return self._clients[asked["client"]]

    # Clients

    def op_client(self, asked: Json) -> Json:
        options = {name: asked[name] for name in ("timeout", "retry_for") if name in asked}
        self._clients[asked["client"]] = Client(asked["url"], asked["namespace"], asked["token"], **options)
        return {}

    def op_publish(self, asked: Json) -> Json:
        options = message_options(asked)
        if "idempotency_key" in asked:
            options["idempotency_key"] = asked["idempotency_key"]
        client = self._client(asked)
        if "json" in asked:
            return plain(client.publish_json(asked["queue"], asked["json"], **options))
        return plain(client.publish(asked["queue"], base64.b64decode(asked["data"]), **options))

    def op_publish_many(self, asked: Json) -> Json:
        messages: Iterator[Message] = map(message_of, asked["jobs"])
        published = self._client(asked).publish_many(asked["queue"], messages)
        return {"jobs": [plain(one) for one in published]}

    def op_consume(self, asked: Json) -> Json:
        options = {name: asked[name] for name in ("weights", "count", "ttr", "timeout") if name in asked}
        jobs = self._client(asked).consume(asked["queues"], **options)
        self._jobs.update({job.job_id: job for job in jobs})
        return {"jobs": [job_fields(job) for job in jobs]}

    def op_touch(self, asked: Json) -> Json:
        return {"until": milliseconds(self._client(asked).touch(self._job(asked), ttr=asked.get("ttr")))}

    def op_release(self, asked: Json) -> Json:
        options = {name: asked[name] for name in ("delay", "spend", "reason") if name in asked}
        released = self._client(asked).release(self._job(asked), **options)
        return {"dead": True} if released.dead else {"remain_tries": released.remain_tries}

    def op_bury(self, asked: Json) -> Json:
        self._client(asked).bury(self._job(asked), reason=asked.get("reason"))
        return {"dead": True}

    def op_ack(self, asked: Json) -> Json:
        self._client(asked).ack(self._job(asked))
        return {}

    def _job(self, asked: Json) -> Job:
        return self._jobs[asked["job_id"]]

    def op_ack_many(self, asked: Json) -> Json:
        jobs = [self._jobs.get(job_id, job_id) for job_id in asked["job_ids"]]
        return plain(self._client(asked).ack_many(asked["queue"], jobs))

    def op_cancel(self, asked: Json) -> Json:
        client = self._client(asked)
        if "key" in asked:
            client.cancel_key(asked["queue"], asked["key"])
        else:
            client.cancel(asked["queue"], asked["job_id"])
        return {}

    def op_promote(self, asked: Json) -> Json:
        client = self._client(asked)
        if "key" in asked:
            client.promote_key(asked["queue"], asked["key"])
        else:
            client.promote(asked["queue"], asked["job_id"])
        return {}

    def op_get(self, asked: Json) -> Json:
        client, queue = self._client(asked), asked["queue"]
        job = client.get_key(queue, asked["key"]) if "key" in asked else client.get(queue, asked["job_id"])
        where = {"state": job.state, "due_at": milliseconds(job.due_at), "key": job.key, "reason": job.reason}
        return {**job_fields(job), **where}

    def op_peek(self, asked: Json) -> Json:
        job = self._client(asked).peek(asked["queue"])
        return {"job": None if job is None else job_fields(job)}

    def op_size(self, asked: Json) -> Json:
        return {"size": self._client(asked).size(asked["queue"])}

    def op_dead(self, asked: Json) -> Json:
        return plain(self._client(asked).dead(asked["queue"]))

    def op_destroy(self, asked: Json) -> Json:
        self._client(asked).destroy(asked["queue"])
        return {}

    def op_pause(self, asked: Json) -> Json:
        return {"until": milliseconds(self._client(asked).pause(asked["queue"], asked.get("for")))}

    def op_resume(self, asked: Json) -> Json:
        self._client(asked).resume(asked["queue"])
        return {}

    def op_respawn(self, asked: Json) -> Json:
        client, queue = self._client(asked), asked["queue"]
        if "oldest" in asked:
            options = {name: asked[name] for name in ("ttl",) if name in asked}
            return {"respawned": client.respawn_oldest(queue, asked["oldest"], **options), "missing": []}
        options = {name: asked[name] for name in ("tries", "delay", "ttl") if name in asked}
        return plain(client.respawn(queue, asked["job_ids"], **options))

    def op_delete_dead(self, asked: Json) -> Json:
        self._client(asked).delete_dead(asked["queue"], asked["oldest"])
        return {}

    def op_list(self, asked: Json) -> Json:
        options = {name: asked[name] for name in ("state", "data") if name in asked}
        jobs = self._client(asked).jobs(asked["queue"], **options)
        return {"jobs": [plain(job) for job in itertools.islice(jobs, asked.get("take"))]}

    def op_queues(self, asked: Json) -> Json:
        queues = self._client(asked).queues()
        return {"queues": [plain(queue) for queue in itertools.islice(queues, asked.get("take"))]}

    # Workers

    def op_worker(self, asked: Json) -> Json:
        options = {name: asked[name] for name in _WORKER_OPTIONS if name in asked}
        self._workers[asked["worker"]] = RunningWorker(self, asked["worker"], self._client(asked), options)
        return {}

    def op_start(self, asked: Json) -> Json:
        self._workers[asked["worker"]].start()
        return {}

    def op_stop(self, asked: Json) -> Json:
        worker = self._workers[asked["worker"]]
        worker.worker.stop()
        worker.ended.wait()
        return {"clean": worker.clean}

    def op_open(self, asked: Json) -> Json:
        self.gates.open(asked["gate"])
        return {}

    # The rest

    def op_verify(self, asked: Json) -> Json:
        dormouse.verify(asked["secrets"], asked["headers"], base64.b64decode(asked["data"]), now=asked["now"] / 1000)
        return {}

    def op_double(self, asked: Json) -> Json:
        from dormouse_client.testing import Double

        double = Double()
        handled: list[Json] = []
        at_work: dict[str, Json] = {}

        class Listening(Hooks):
            def start(self, job: Job) -> None:
                at_work[job.job_id] = {"data": encoded(job.data), "outcome": None}
                handled.append(at_work[job.job_id])

            def finish(self, job: Job, outcome: Outcome, seconds: float, elapsed: float) -> None:
                at_work[job.job_id]["outcome"] = outcome

        with double.client() as client:
            worker = Worker(client, concurrency=1, backoff=[5], hooks=Listening())

            @worker.handler("q")
            async def handle(job: AsyncHeldJob) -> None:
                await Steps(self, "double", client, job).run()

            for job in asked["jobs"]:
                client.publish("q", base64.b64decode(job["data"]), **message_options(job))
            worker.run_until_idle()
            double.advance(asked["advance"])
            worker.run_until_idle()
            left = {state: list(client.jobs("q", state, data=True)) for state in ("ready", "delayed", "dead")}
        shown = {
            state: [{"data": encoded(job.data or b""), "reason": job.reason} for job in jobs]
            for state, jobs in left.items()
        }
        return {"handled": handled, **shown}


NO_ERROR: Json = {
    **dict.fromkeys(("type", "status", "message", "retry_after", "request_id", "job_id", "index", "published")),
    "retryable": False,
}


def error_fields(error: DormouseError) -> Json:
    return {
        "type": error.type,
        "status": error.status,
        "message": error.message,
        "retryable": error.retryable,
        "retry_after": error.retry_after,
        "request_id": error.request_id,
        "job_id": error.job_id,
        "index": error.index,
        "published": None if error.published is None else len(error.published),
    }


def message_options(given: Json) -> Json:
    options = {name: given[name] for name in _OPTIONS if name in given}
    match given.get("at"):
        case {"as": "time", "ms": ms, "offset": minutes}:
            there = timezone(timedelta(minutes=minutes))
            options["at"] = (_EPOCH + timedelta(milliseconds=ms)).astimezone(there)
        case {"as": "text", "value": text}:
            options["at"] = text
        case {"as": "number", "seconds": seconds}:
            options["at"] = seconds
    return options


def message_of(given: Json) -> Message:
    if "json" in given:
        return Message.of_json(given["json"], **message_options(given))
    return Message(base64.b64decode(given["data"]), **message_options(given))


def job_fields(job: Job) -> Json:
    return {
        "job_id": job.job_id,
        "queue": job.queue,
        "namespace": job.namespace,
        "data": encoded(job.data),
        "remain_tries": job.remain_tries,
        "ttl": job.ttl,
        "elapsed_ms": job.elapsed_ms,
        "attributes": job.attributes,
        "traceparent": job.traceparent,
    }


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def milliseconds(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - _EPOCH) // timedelta(milliseconds=1)


def plain(record: Any) -> Json:
    """An answer of the library as JSON."""
    convert: Callable[[Any], Any] = lambda value: (  # noqa: E731
        milliseconds(value) if isinstance(value, datetime) else encoded(value) if isinstance(value, bytes) else value
    )
    return {name: convert(value) for name, value in asdict(record).items()}


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    code = Program().main()
    # Handlers that have not returned must not keep the process alive.
    sys.stdout.flush()
    os._exit(code)
