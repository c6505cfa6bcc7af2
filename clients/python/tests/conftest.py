"""A loop on which no second passes, and a server whose requests a test sees and spoils."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from dormouse_client import AsyncClient, Hooks, Job, Outcome, Worker
from dormouse_client.testing import Double
from dormouse_client.worker import _Run

Fault = Callable[[httpx.Request, Callable[[], Awaitable[httpx.Response]]], Awaitable[httpx.Response]]


class _Jumping(selectors.DefaultSelector):
    """Where nothing is ready, time moves to the next timer."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        assert timeout is not None, "the test waits for what cannot come"
        self.skipped += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """All that a test waits for must be on this loop."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return 1000.0 + self._jumping.skipped

    def stand_still(self, seconds: float) -> None:
        """As on a machine that is busy: timers are late."""
        self._jumping.skipped += seconds


@pytest.fixture
def loop() -> Iterator[JumpingLoop]:
    loop = JumpingLoop()
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@dataclass
class Sent:
    at: float
    verb: str
    request: httpx.Request
    status: int | None = None


def verb_of(request: httpx.Request) -> str:
    """As the contract calls it."""
    parts = request.url.path.removeprefix("/api/").split("/")[2:]
    match request.method, *parts:
        case ("GET",):
            return "consume"
        case "DELETE", "job", _:
            return "ack"
        case "POST", "ack":
            return "ack_many"
        case "GET", "job", _:
            return "look" if "receipt" in request.url.params else "get"
        case "POST", "job", _, verb:
            return verb
        case "POST", "jobs":
            return "publish"
        case "POST", "jobs", "batch":
            return "publish_many"
    return " ".join((request.method, *parts))


class Server(httpx.AsyncBaseTransport):
    """A double whose clock is the loop's, with faults that a test asks for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.double = Double()
        self.sent: list[Sent] = []
        self._faults: list[tuple[str, Fault]] = []
        self._began = loop.time()

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient("http://double", "double", "double", transport=lambda: self, **options)

    def spoil(self, verb: str, fault: Fault, times: int = 1) -> None:
        """The next requests of this verb, or of any."""
        self._faults += [(verb, fault)] * times

    def seen(self, *verbs: str) -> list[Sent]:
        return [sent for sent in self.sent if sent.verb in verbs]

    def _advance(self) -> None:
        now = self.loop.time()
        self.double.advance(now - self._began)
        self._began = now

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sent = Sent(self.loop.time(), verb_of(request), request)
        self.sent.append(sent)
        inner = self.double.transport()

        async def go() -> httpx.Response:
            self._advance()
            asked = asyncio.ensure_future(inner.handle_async_request(request))
            try:
                while not asked.done():
                    await asyncio.wait([asked], timeout=0.2)
                    self._advance()
                return asked.result()
            finally:
                asked.cancel()

        for place, (verb, fault) in enumerate(self._faults):
            if verb in ("", sent.verb):
                del self._faults[place]
                answer = await fault(request, go)
                break
        else:
            answer = await go()
        sent.status = answer.status_code
        return answer


async def before(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """The connection breaks, and nothing was done."""
    raise httpx.ReadError("")


async def after(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """It is done, and the connection breaks."""
    await go()
    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")


async def never(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Nothing is done, and no answer comes."""
    await asyncio.sleep(1e6)
    raise AssertionError


async def never_after(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """It is done, and no answer comes."""
    await go()
    await asyncio.sleep(1e6)
    raise AssertionError


def slow(seconds: float) -> Fault:
    async def fault(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        answer = await go()
        await asyncio.sleep(seconds)
        return answer

    return fault


def answers(status: int, error: object = "no", **headers: str) -> Fault:
    async def fault(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(error, bytes):
            return httpx.Response(status, content=error, headers=named)
        return httpx.Response(status, json={"error": error}, headers=named)

    return fault


@pytest.fixture
def server(loop: JumpingLoop) -> Server:
    return Server(loop)


class Told(Hooks):
    """What the hooks were told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.outcomes: list[Outcome] = []
        self.finished: list[tuple[float, float, float]] = []
        self.events: list[str] = []

    def poll(self, jobs: int, seconds: float, error: Exception | None) -> None:
        self.events.append("poll failed" if error else "poll")

    def start(self, job: Job) -> None:
        self.events.append("start")

    def finish(self, job: Job, outcome: Outcome, seconds: float, elapsed: float) -> None:
        self.outcomes.append(outcome)
        self.finished.append((self.loop.time(), seconds, elapsed))
        self.events.append("finish")

    def touch(self, job: Job, error: Exception | None) -> None:
        self.events.append("touch failed" if error else "touch")

    def away(self, error: Exception) -> None:
        self.events.append("away")

    def back(self, seconds: float) -> None:
        self.events.append("back")

    def drain(self, running: int) -> None:
        self.events.append(f"drain {running}")


class Working:
    """A worker of the queue `q` on the test's own loop."""

    def __init__(self, server: Server, handler: Callable[..., Any], **options: Any) -> None:
        self.told = Told(server.loop)
        self.client = server.client()
        self.worker = Worker(self.client, hooks=self.told, **{"concurrency": 1, **options})
        self.worker.handler("q")(handler)
        self._loop = server.loop
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        run = _Run(self.worker, self.client, self._loop, self._loop, until_idle=False)
        self.worker._run = run
        self.task = asyncio.create_task(run.main())

    async def finished(self, count: int = 1) -> list[Outcome]:
        """Until so many jobs were settled."""
        if self.task is None:
            await self.start()
        async with asyncio.timeout(100_000):
            while len(self.told.outcomes) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.told.outcomes

    async def stop(self) -> None:
        self.worker.stop()
        assert self.task is not None
        await self.task


@pytest.fixture
def working(server: Server) -> Callable[..., Working]:
    def make(handler: Callable[..., Any], **options: Any) -> Working:
        return Working(server, handler, **options)

    return make
