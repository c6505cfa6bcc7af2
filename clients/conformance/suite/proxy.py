"""A proxy that stands between a program and the server. It notes each request, and does what a scenario tells it:
refuses, resets, delays, trickles, answers in the server's place, or never.

Knows of Dormouse only what `wire.verb` says.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from . import wire
from .signal import Signal
from .wire import Answer, Ended, Incoming, Request


@dataclass
class Exchange:
    """One request, and what became of it. Times are of the suite's monotonic clock."""

    request: Request
    verb: str
    connection: int
    at: float
    incoming: Incoming
    writer: asyncio.StreamWriter
    proxy: Proxy
    answer: Answer | None = None
    #: When the first byte of the answer was sent.
    answered_at: float | None = None
    #: When the program closed the connection before there was an answer, or when the proxy cut it.
    ended_at: float | None = None
    gone: bool = False
    upstream: wire.Incoming | None = None

    @property
    def query(self) -> dict[str, str]:
        return self.request.query

    @property
    def job_id(self) -> str | None:
        return wire.job_id(self.request)

    @property
    def open(self) -> bool:
        return self.answered_at is None and self.ended_at is None

    async def forward(self, request: Request | None = None) -> Answer:
        """Asks the server. If the program leaves meanwhile, the server sees it leave too."""
        asked = asyncio.create_task(self.proxy.ask(self, request or self.request))
        gone = asyncio.create_task(self.incoming.until_gone())
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            raise Ended
        finally:
            for task in (asked, gone):
                task.cancel()
            await asyncio.gather(asked, gone, return_exceptions=True)

    async def pause(self, seconds: float) -> None:
        """Waits, but not for longer than the program does."""
        try:
            await asyncio.wait_for(self.incoming.until_gone(), seconds)
        except TimeoutError:
            return
        raise Ended

    def began(self, answer: Answer) -> None:
        self.answer = answer
        self.answered_at = self.proxy.now()
        self.proxy.signal.ring()

    async def send(self, answer: Answer) -> None:
        self.began(answer)
        self.writer.write(answer.to_bytes())
        await self.writer.drain()

    def reset(self) -> None:
        wire.reset(self.writer)
        self.ended_at = self.proxy.now()
        raise Ended

    def __str__(self) -> str:
        answer = f"{self.answer.status} {self.answer.body[-160:]!r}" if self.answer else "no answer"
        body = f" {self.request.body[:160]!r}" if self.request.body else ""
        gone = ", the program left" if self.gone else ""
        return f"{self.at:.3f} #{self.connection} {self.request.method} {self.request.target}{body} -> {answer}{gone}"


Action = Callable[[Exchange], Awaitable[None]]


@dataclass
class Rule:
    """What is done instead of asking the server. `seen` counts how often it was."""

    verbs: frozenset[str]
    action: Action
    times: int | None
    when: Callable[[Exchange], bool] | None
    seen: list[Exchange] = field(default_factory=list)

    def holds(self, exchange: Exchange) -> bool:
        if self.times is not None and len(self.seen) >= self.times:
            return False
        if self.verbs and exchange.verb not in self.verbs:
            return False
        return self.when is None or self.when(exchange)


class Proxy:
    """Listens on a free port of this machine."""

    def __init__(self, upstream: tuple[str, int], prefix: str = "", keep: bool = False, namespace: str = "") -> None:
        self.upstream = upstream
        #: Requests for others are reset: somebody may still ask for a port that was a scenario's before.
        self.namespace = namespace
        self.prefix = prefix
        #: One connection to the server for each of the program's, closed when that is. Else one for each request.
        self.keep = keep
        self.exchanges: list[Exchange] = []
        self.rules: list[Rule] = []
        self.signal = Signal()
        self.connections: dict[int, asyncio.StreamWriter] = {}
        self.opened = 0
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self.port = 0
        self._kept: dict[int, tuple[Incoming, asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    async def listen(self) -> None:
        """Listens; again on the same port after `refuse`."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Connections are refused from now on, and those that are open are reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """Resets each open connection."""
        for writer in self.connections.values():
            wire.reset(writer)

    async def close(self) -> None:
        self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rule(
        self, verbs: str, action: Action, times: int | None = 1, when: Callable[[Exchange], bool] | None = None
    ) -> Rule:
        """Does `action` with the next `times` requests of these verbs (divided by blanks; none: all)."""
        rule = Rule(frozenset(verbs.split()), action, times, when)
        self.rules.append(rule)
        return rule

    def clear(self) -> None:
        self.rules.clear()

    def seen(self, verbs: str = "", **query: str) -> list[Exchange]:
        """The requests of these verbs, in the order in which they came."""
        wanted = frozenset(verbs.split())
        return [
            exchange
            for exchange in self.exchanges
            if (not wanted or exchange.verb in wanted)
            and all(exchange.query.get(key) == value for key, value in query.items())
        ]

    async def ask(self, exchange: Exchange, request: Request) -> Answer:
        if not self.keep:
            return await wire.ask(self.upstream, request)
        try:
            return await (await self.upstream_of(exchange, request)).answer()
        except BaseException:
            self.forget(exchange)
            raise

    async def upstream_of(self, exchange: Exchange, request: Request) -> Incoming:
        """Sends the request on the server's side of the program's connection."""
        if exchange.connection not in self._kept:
            reader, writer = await asyncio.open_connection(*self.upstream, limit=1 << 20)
            self._kept[exchange.connection] = Incoming(reader), writer
        incoming, writer = self._kept[exchange.connection]
        writer.write(request.to_bytes())
        return incoming

    def half_close(self, exchange: Exchange) -> None:
        """Tells the server that the program has no more to say."""
        if exchange.connection not in self._kept:
            raise Ended
        self._kept[exchange.connection][1].write_eof()

    def forget(self, exchange: Exchange) -> None:
        """Closes the server's side of the program's connection: the next request gets another."""
        if kept := self._kept.pop(exchange.connection, None):
            kept[1].transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs a connection in a task"
        self._tasks.add(task)
        number = next(self._numbers)
        self.connections[number] = writer
        self.opened += 1
        self.signal.ring()
        try:
            await self._exchanges(number, Incoming(reader), writer)
        except asyncio.CancelledError:
            return  # The scenario is over.
        finally:
            del self.connections[number]
            if kept := self._kept.pop(number, None):
                kept[1].transport.abort()
            if not writer.is_closing():
                writer.transport.abort()
            self.signal.ring()
            self._tasks.discard(task)

    async def _exchanges(self, number: int, incoming: Incoming, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request = await incoming.request()
            except Ended:
                return
            known = request.target.startswith(self.prefix + "/")
            request.target = request.target[len(self.prefix) :] if known else request.target
            if f"/api/{self.namespace}" not in request.target:
                wire.reset(writer)
                return
            exchange = Exchange(request, wire.verb(request), number, self.now(), incoming, writer, self)
            self.exchanges.append(exchange)
            self.signal.ring()
            rule = next((rule for rule in self.rules if rule.holds(exchange)), None)
            try:
                if not known:
                    await exchange.send(Answer(404, [], b"nothing is here but what has the path in front"))
                elif rule is None:
                    await (streamed if self.keep else forwarded)(exchange)
                else:
                    rule.seen.append(exchange)
                    await rule.action(exchange)
            except (Ended, OSError):
                exchange.gone = exchange.ended_at is None and exchange.answered_at is None
                if exchange.ended_at is None:
                    exchange.ended_at = self.now()
                if self.keep:
                    wire.reset(writer)
                self.signal.ring()
                return


async def forwarded(exchange: Exchange) -> None:
    """Asks the server, and hands on what it says."""
    await exchange.send(await exchange.forward())


async def streamed(exchange: Exchange) -> None:
    """The same, each byte as it comes."""

    async def relay() -> None:
        upstream = await exchange.proxy.upstream_of(exchange, exchange.request)
        raw = await upstream.until(wire.HEAD_END)
        exchange.answered_at = exchange.proxy.now()
        exchange.writer.write(raw)
        found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", raw)
        left = int(found[1]) if found and raw.split(b" ")[1] not in (b"204", b"304") else 0
        while left:
            if not upstream.buffer:
                await upstream.more()
            piece = upstream.take(min(left, len(upstream.buffer)))
            exchange.writer.write(piece)
            left -= len(piece)
        await exchange.writer.drain()

    relaying = asyncio.create_task(relay())
    gone = asyncio.create_task(exchange.incoming.until_gone())
    try:
        await asyncio.wait({relaying, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not relaying.done():
            # The connection is closed completely, or only on the client's side: the server may still send a last
            # reply.
            exchange.proxy.half_close(exchange)
            await asyncio.wait({relaying})
        try:
            relaying.result()
        except (Ended, OSError):
            # The part of the response that the program has seen is aborted too.
            exchange.answered_at = None
            raise
    finally:
        for task in (relaying, gone):
            task.cancel()
        await asyncio.gather(relaying, gone, return_exceptions=True)


def answers(status: int, body: object = b"", **headers: str) -> Action:
    """Answers in the server's place."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "text/plain" if isinstance(body, bytes) else "application/json; charset=utf-8"
    pairs = [("Content-Type", kind)] + [(key.replace("_", "-"), value) for key, value in headers.items()]

    async def act(exchange: Exchange) -> None:
        await exchange.send(Answer(status, list(pairs), raw))

    return act


async def reset_before(exchange: Exchange) -> None:
    """The server never sees the request."""
    exchange.reset()


async def reset_after(exchange: Exchange) -> None:
    """The server has done it, and nobody hears of it."""
    await exchange.forward()
    exchange.reset()


async def reset_within(exchange: Exchange) -> None:
    """The answer breaks off."""
    answer = await exchange.forward()
    raw = answer.to_bytes()
    cut = len(raw) - 2 if answer.status == 204 else len(raw) - max(1, len(answer.body) // 2)
    exchange.writer.write(raw[:cut])
    await exchange.writer.drain()
    # An RST right behind the bytes would make the peer discard them.
    await asyncio.sleep(0.05)
    exchange.reset()


async def dropped(exchange: Exchange) -> None:
    """The connection is closed in order, without an answer."""
    await exchange.forward()
    exchange.writer.close()
    exchange.ended_at = exchange.proxy.now()
    raise Ended


async def never(exchange: Exchange) -> None:
    """The server does not see it, and nothing is answered."""
    await exchange.incoming.until_gone()
    raise Ended


async def never_after(exchange: Exchange) -> None:
    """The server has done it, and nothing is answered."""
    await exchange.forward()
    await exchange.incoming.until_gone()
    raise Ended


def delayed(before: float = 0.0, after: float = 0.0) -> Action:
    """The request waits, or its answer."""

    async def act(exchange: Exchange) -> None:
        await exchange.pause(before)
        answer = await exchange.forward()
        await exchange.pause(after)
        await exchange.send(answer)

    return act


def trickled(pieces: int, pause: float) -> Action:
    """The head comes at once, then the body in so many pieces."""

    async def act(exchange: Exchange) -> None:
        answer = await exchange.forward()
        raw = answer.to_bytes()
        head = raw[: len(raw) - len(answer.body)]
        exchange.began(answer)
        exchange.writer.write(head)
        step = -(-len(answer.body) // pieces) or 1
        for start in range(0, len(answer.body), step):
            await asyncio.sleep(pause)
            exchange.writer.write(answer.body[start : start + step])
            await exchange.writer.drain()

    return act


def changed(change: Callable[[Answer], Answer | None]) -> Action:
    """The server's answer, changed on its way."""

    async def act(exchange: Exchange) -> None:
        answer = await exchange.forward()
        await exchange.send(change(answer) or answer)

    return act
