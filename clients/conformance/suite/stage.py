"""What a scenario is given: a namespace of its own, a proxy, a program, and words to say what it expects."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

from .program import Event, Gone, Program, Refused
from .proxy import Exchange, Proxy, never
from .server import Direct, Server
from .signal import Late

#: What every error of the protocol has.
ERROR_FIELDS = {
    "type", "status", "message", "retryable", "retry_after", "request_id", "job_id", "index", "published",
}  # fmt: skip
#: How long a scenario waits for what should come at once. Machines that build beside the suite are slow.
SOON = 8.0
#: By how much something may come later than it should, where that is measured.
SLACK = 1.2


class Broken(Exception):
    """A promise is not kept."""


def check(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


def equal(got: object, want: object, what: str) -> None:
    if got != want:
        raise Broken(f"{what}: {want!r} was expected, {got!r} came")


def within(got: float, low: float, high: float, what: str) -> None:
    if not low <= got <= high:
        raise Broken(f"{what}: {low:.3f} to {high:.3f} was expected, {got:.3f} came")


def do(*steps: dict[str, Any]) -> bytes:
    """The body of a job whose handler does these steps."""
    return json.dumps({"do": list(steps)}).encode()


def data(raw: bytes | str) -> str:
    return base64.b64encode(raw.encode() if isinstance(raw, str) else raw).decode()


def body(job: dict[str, Any]) -> bytes:
    return base64.b64decode(job["data"])


class Client:
    """A client in the program. Each op of the protocol is a method."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name

    def __getattr__(self, op: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        def call(**fields: Any) -> Awaitable[dict[str, Any]]:
            given = {key.rstrip("_"): value for key, value in fields.items()}
            if isinstance(given.get("data"), bytes):
                given["data"] = data(given["data"])
            return self.stage.program.call(op, client=self.name, **given)

        return call

    async def refused(self, op: str, type_: str | None = None, /, **fields: Any) -> dict[str, Any]:
        """The error that this request must get."""
        try:
            result = await getattr(self, op)(**fields)
        except Refused as refused:
            error = refused.error
        else:
            raise Broken(f"{op} should be refused ({type_}), and answered {str(result)[:300]}")
        missing = ERROR_FIELDS - error.keys()
        check(not missing, f"an error without {missing}: {error}")
        if type_ is not None:
            equal(error["type"], type_, f"the type of the error of {op} ({error['message']!r})")
        return error


class Worker:
    """A worker in the program."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.stopped = False

    async def start(self) -> None:
        await self.stage.program.call("start", worker=self.name)

    async def stop(self) -> bool:
        """Whether it has ended clean."""
        self.stopped = True
        result = await self.stage.program.call("stop", worker=self.name)
        return bool(result["clean"])

    def seen(self, event: str, **fields: Any) -> list[Event]:
        return self.stage.program.seen(event, worker=self.name, **fields)

    async def event(self, event: str, count: int = 1, within: float = SOON, **fields: Any) -> Event:
        """The event, or the last of `count`."""
        await self.stage.until(lambda: len(self.seen(event, **fields)) >= count, f"{count} × {event} {fields}", within)
        return self.seen(event, **fields)[count - 1]

    async def started(self, job_id: str, count: int = 1, within: float = SOON) -> Event:
        found: list[Event] = []

        def look() -> bool:
            found[:] = [event for event in self.seen("start") if event["job"]["job_id"] == job_id]
            return len(found) >= count

        await self.stage.until(look, f"the start number {count} of the job {job_id}", within)
        return found[count - 1]

    async def ended(self, job_id: str, count: int = 1, within: float = SOON) -> Event:
        return await self.event("end", count, within, job_id=job_id)

    async def finished(self, job_id: str, count: int = 1, within: float = SOON) -> Event:
        """The hook `finish` of the job."""
        found: list[Event] = []

        def look() -> bool:
            found[:] = [e for e in self.seen("hook", name="finish") if e.get("job_id") == job_id]
            return len(found) >= count

        await self.stage.until(look, f"hook finish number {count} of the job {job_id}", within)
        return found[count - 1]


class Stage:
    """One scenario with one program."""

    def __init__(self, server: Server, program: Program, namespace: str, token: str, prefix: str) -> None:
        self.server = server
        self.program = program
        self.namespace = namespace
        self.token = token
        self.direct = Direct(server, namespace, token)
        self.proxy = Proxy(server.api, namespace=namespace)
        self.workers: list[Worker] = []
        self._prefix = prefix
        self._count = 0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def name(self, kind: str) -> str:
        """A name that no other scenario of this program uses."""
        self._count += 1
        return f"{self._prefix}.{kind}{self._count}"

    async def client(self, **options: Any) -> Client:
        name = self.name("client")
        given = {"url": self.proxy.url, "namespace": self.namespace, "token": self.token} | options
        await self.program.call("client", client=name, **given)
        return Client(self, name)

    async def worker(
        self, client: Client | None = None, queues: Any = "q", *, start: bool = True, **options: Any
    ) -> Worker:
        """A worker of one queue called `q`, one slot and a short end, where `options` do not say another. None is the
        library's default."""
        client = client or await self.client()
        given: dict[str, Any] = {
            "queues": [queues] if isinstance(queues, str) else queues, "concurrency": 1, "drain": 0.2, "grace": 0.3,
        }  # fmt: skip
        given = {key: value for key, value in (given | options).items() if value is not None}
        worker = Worker(self, self.name("worker"))
        await self.program.call("worker", worker=worker.name, client=client.name, **given)
        self.workers.append(worker)
        if start:
            await worker.start()
        return worker

    def gate(self, name: str) -> str:
        """The gate of this scenario: those of a program are shared."""
        return f"{self._prefix}.{name}"

    async def open(self, name: str) -> None:
        await self.program.call("open", gate=self.gate(name))

    def first_poll_alone(self) -> None:
        """Polls but the first get nothing, so that a job that is lost is not handed out again."""
        self.proxy.rule("consume", never, times=None, when=lambda _: len(self.proxy.seen("consume")) > 1)

    async def until(self, look: Callable[[], Any], what: str, within: float = SOON, *, alive: bool = True) -> Any:
        """What `look` says of events and requests, once it says something; `alive`: raises `Gone` if the program ends."""
        both = [asyncio.create_task(self.proxy.signal.until(look, within))]
        if alive:
            both.append(asyncio.create_task(self.program.until(look, within)))
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except Late:
            raise Broken(f"{what}: has not come within {within:.1f} s") from None
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def request(
        self, verbs: str, count: int = 1, within: float = SOON, job_id: str | None = None, done: bool = False
    ) -> Exchange:
        """The request of these verbs that comes as number `count`; `done`: once it is answered or broken off."""

        def look() -> Exchange | None:
            found = self.requests(verbs, job_id)
            if len(found) < count or (done and found[count - 1].open):
                return None
            return found[count - 1]

        exchange: Exchange = await self.until(look, f"request number {count} of {verbs}", within)
        return exchange

    def requests(self, verbs: str, job_id: str | None = None) -> list[Exchange]:
        return [e for e in self.proxy.seen(verbs) if job_id is None or e.job_id == job_id]

    async def eventually(self, look: Callable[[], Awaitable[Any]], what: str, within: float = SOON) -> Any:
        """What the server says, once it is something. It is asked again and again: it tells of nothing by itself."""
        end = self.now() + within
        while not (value := await look()):
            if self.now() > end:
                raise Broken(f"{what}: not so within {within:.1f} s")
            await asyncio.sleep(0.05)
        return value

    async def gone(self, queue: str, job_id: str, within: float = SOON) -> None:
        """The server has forgotten the job."""

        async def look() -> bool:
            return await self.direct.job(queue, job_id) is None

        await self.eventually(look, f"the job {job_id} is acked", within)

    async def state(self, queue: str, job_id: str, state: str, within: float = SOON) -> dict[str, Any]:
        """The job, once it is in this state."""
        last: list[Any] = [None]

        async def look() -> Any:
            last[0] = await self.direct.job(queue, job_id)
            return last[0] if last[0] and last[0]["state"] == state else None

        try:
            job: dict[str, Any] = await self.eventually(look, f"the job is {state}", within)
        except Broken as broken:
            raise Broken(f"{broken}; the job is {last[0]}") from None
        return job

    async def close(self) -> None:
        """Stops what is left of the scenario."""
        left = [worker.stop() for worker in self.workers if not worker.stopped]
        if left and not self.program.ended:
            tasks = [asyncio.create_task(stop) for stop in left]
            await asyncio.wait(tasks, timeout=3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        else:
            for stop in left:
                stop.close()
        await self.proxy.close()


__all__ = ["Broken", "Client", "Gone", "Stage", "Worker", "body", "check", "data", "do", "equal", "within"]
