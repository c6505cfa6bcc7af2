"""The clients: sending and retries of requests.

`AsyncClient` sends on the event loop it is called from, with connections of that loop. `Client` is the same on a loop
in its own thread: this makes a timeout apply to the whole request, also for a response that trickles. The verbs are in
`protocol`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import socket
import threading
import urllib.request
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx

from ._thread import LoopThread
from .protocol import (
    Answer,
    Busy,
    DormouseError,
    Flow,
    Invalid,
    Limited,
    ListedJob,
    NetworkError,
    NotFound,
    Page,
    ProtocolError,
    QueueInfo,
    Request,
    Requests,
    RequestTimeout,
    Seconds,
    State,
)
from .version import VERSION

P = ParamSpec("P")
T = TypeVar("T")

TransportFactory = Callable[[], httpx.AsyncBaseTransport]

LONGEST_RETRY_FOR = 540
"""The server remembers an idempotency key for ten minutes."""
_IDLE_CONNECTION = 30
"""Seconds that a connection is kept which nobody uses."""


def backoff(failures: int) -> float:
    """Return the pause after this number of consecutive failures, random so that clients do not retry together."""
    longest = min(5.0, 0.1 * 2.0 ** min(failures - 1, 10))
    return random.uniform(longest / 2, longest)


def _awaited(
    verb: Callable[Concatenate[Requests, P], Request[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(verb(self.requests, *args, **kwargs))

    return call


def _awaited_flow(
    verb: Callable[Concatenate[Requests, P], Flow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        flow = verb(self.requests, *args, **kwargs)
        try:
            request = next(flow)
            while True:
                try:
                    result = await self.call(request)
                except DormouseError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(result)
        except StopIteration as end:
            return cast(T, end.value)

    return call


def _blocking(
    verb: Callable[Concatenate[Requests, P], Request[T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(verb)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(verb(self.requests, *args, **kwargs))

    return call


def _blocking_flow(
    verb: Callable[Concatenate[Requests, P], Flow[T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(verb)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        flow = verb(self.requests, *args, **kwargs)
        try:
            request = next(flow)
            while True:
                try:
                    result = self.call(request)
                except DormouseError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(result)
        except StopIteration as end:
            return cast(T, end.value)

    return call


class AsyncClient:
    """Client of one namespace of a server, for coroutines. Safe to share between threads and event loops."""

    def __init__(
        self,
        url: str,
        namespace: str,
        token: str,
        *,
        timeout: Seconds = 10,
        retry_for: Seconds = 30,
        transport: TransportFactory | None = None,
    ) -> None:
        """
        :param url: address of the server; it may have a path before `/api`.
        :param timeout: of one request, until the end of its response.
        :param retry_for: of a request with all retries, at most 540 seconds; 0 disables them.
        :param transport: creates the transport of one event loop, for custom TLS or a test double.
        """
        self.url = _checked_url(url)
        self.requests = Requests(namespace)
        self.namespace = namespace
        self.timeout = _positive("timeout", timeout)
        self.retry_for = _as_seconds(retry_for)
        if not 0 <= self.retry_for <= LONGEST_RETRY_FOR:
            raise Invalid(f"retry_for is 0 to {LONGEST_RETRY_FOR} seconds")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise Invalid("the token has characters that no token has")
        self._headers = {"user-agent": f"dormouse-python/{VERSION}"}
        if token:
            self._headers["x-token"] = token
        self._make_transport = transport or functools.partial(_http_transport, self.url)
        self._own_connections = transport is None
        self._lock = threading.Lock()
        self._transports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncBaseTransport] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Configure a client by `DORMOUSE_URL`, `DORMOUSE_NAMESPACE` and `DORMOUSE_TOKEN`, with options of the
        constructor."""
        return cls(**{**_environment(), **options})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, namespace={self.namespace!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        with self._lock:
            transport = self._transports.pop(asyncio.get_running_loop(), None)
        if transport is not None:
            await transport.aclose()

    publish = _awaited(Requests.publish)
    publish_json = _awaited(Requests.publish_json)
    publish_many = _awaited_flow(Requests.publish_many)
    cancel = _awaited(Requests.cancel)
    cancel_key = _awaited(Requests.cancel_key)
    promote = _awaited(Requests.promote)
    promote_key = _awaited(Requests.promote_key)
    get = _awaited(Requests.get)
    get_key = _awaited(Requests.get_key)
    peek = _awaited(Requests.peek)
    size = _awaited(Requests.size)
    consume = _awaited(Requests.consume)
    touch = _awaited(Requests.touch)
    release = _awaited(Requests.release)
    bury = _awaited(Requests.bury)
    ack = _awaited(Requests.ack)
    ack_many = _awaited_flow(Requests.ack_many)
    pause = _awaited(Requests.pause)
    resume = _awaited(Requests.resume)
    destroy = _awaited(Requests.destroy)
    dead = _awaited(Requests.dead)
    respawn = _awaited_flow(Requests.respawn)
    respawn_oldest = _awaited(Requests.respawn_oldest)
    delete_dead = _awaited(Requests.delete_dead)

    def queues(self) -> AsyncIterator[QueueInfo]:
        """List the namespace's queues, reading pages as needed."""
        return self._pages(self.requests.queues_page)

    def jobs(self, queue: str, state: State = "ready", *, data: bool = False) -> AsyncIterator[ListedJob]:
        """List a queue's jobs in one state, in order of delivery. `data` includes bodies."""
        return self._pages(lambda cursor: self.requests.jobs_page(queue, state, data=data, cursor=cursor))

    async def _pages(self, page_at: Callable[[str | None], Request[Page[T]]]) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            page = await self.call(page_at(cursor))
            for item in page.items:
                yield item
            if (cursor := page.cursor) is None:
                return

    async def call(self, request: Request[T]) -> T:
        """Send a request, and retry it if that is harmless and useful."""
        clock = asyncio.get_running_loop().time
        began = clock()
        perhaps_done = False
        failures = 0
        timeout = self.timeout
        while True:
            try:
                return await self.send(request, timeout + request.waits)
            except DormouseError as error:
                if isinstance(error, NotFound) and request.gone_is_done and perhaps_done:
                    return cast(T, None)
                if not (nothing_done(error) or (request.repeat and error.in_doubt())):
                    raise
                perhaps_done = perhaps_done or error.unanswered()
                failures += 1
                pause = max(backoff(failures), error.retry_after or 0)
                # As planned before the pause: a busy machine may prolong it until no time is left.
                left = self.retry_for - (clock() - began) - pause
                if left <= 0:
                    raise
                timeout = min(self.timeout, left)
            await asyncio.sleep(pause)

    def line(self) -> Line | None:
        """Return a connection for the polls of one worker; None with a custom transport."""
        return Line(_http_transport(self.url)) if self._own_connections else None

    async def send(
        self,
        request: Request[T],
        timeout: float,
        on_head: Callable[[], object] | None = None,
        line: Line | None = None,
    ) -> T:
        """Send a request once. `on_head` is called when the head of the response has arrived."""
        try:
            async with asyncio.timeout(timeout):
                transport = self._transport() if line is None else line.transport
                response = await transport.handle_async_request(
                    httpx.Request(
                        request.method,
                        f"{self.url}/api/{request.path}",
                        headers={**self._headers, **request.headers},
                        content=request.content or None,
                        extensions=None if line is None else {"trace": line.trace},
                    )
                )
                if on_head is not None:
                    on_head()
                try:
                    body = await response.aread()
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.TimeoutException) as error:
            raise RequestTimeout(f"no answer within {timeout:g} s") from error
        except httpx.DecodingError as error:
            raise ProtocolError(f"the answer cannot be read: {error}") from error
        except (httpx.TransportError, OSError) as error:
            broken = NetworkError(str(error) or type(error).__name__)
            broken.unsent = isinstance(error, httpx.ConnectError)
            raise broken from error
        return request.result(Answer(response.status_code, response.headers, body))

    def _transport(self) -> httpx.AsyncBaseTransport:
        """Return the transport of the running loop: connections belong to one loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            transport = self._transports.get(loop)
            if transport is None:
                transport = self._transports[loop] = self._make_transport()
            return transport


class Line:
    """A connection used only by polls, so that the end of a poll may close it."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self.transport = transport
        self._stream: Any = None
        """The TCP connection, also where TLS goes over it."""

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Trace callback of httpcore."""
        if event == "connection.connect_tcp.started":
            self._stream = None
        elif event == "connection.connect_tcp.complete":
            self._stream = info["return_value"]

    def hang_up(self) -> bool:
        """Close the write side of the connection, if possible. The server takes that for a disconnect: it replies that
        there is no job, or has sent one already. Closing the whole connection would lose a job in transit."""
        connection = self._stream and self._stream.get_extra_info("socket")
        if not connection:
            return False
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True


class Client:
    """Blocking client of one namespace of a server. Safe to share between threads, and over a fork."""

    def __init__(
        self,
        url: str,
        namespace: str,
        token: str,
        *,
        timeout: Seconds = 10,
        retry_for: Seconds = 30,
        transport: TransportFactory | None = None,
    ) -> None:
        """Same parameters as `AsyncClient`."""
        self.asynchronous = AsyncClient(
            url, namespace, token, timeout=timeout, retry_for=retry_for, transport=transport
        )
        """The same client for coroutines."""
        self.requests = self.asynchronous.requests
        self.thread = LoopThread("dormouse-client")

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Configure a client by `DORMOUSE_URL`, `DORMOUSE_NAMESPACE` and `DORMOUSE_TOKEN`, with options of the
        constructor."""
        return cls(**{**_environment(), **options})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.asynchronous.url!r}, namespace={self.asynchronous.namespace!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and end the client's thread."""
        self.thread.run(self.asynchronous.aclose())
        self.thread.close()

    publish = _blocking(Requests.publish)
    publish_json = _blocking(Requests.publish_json)
    publish_many = _blocking_flow(Requests.publish_many)
    cancel = _blocking(Requests.cancel)
    cancel_key = _blocking(Requests.cancel_key)
    promote = _blocking(Requests.promote)
    promote_key = _blocking(Requests.promote_key)
    get = _blocking(Requests.get)
    get_key = _blocking(Requests.get_key)
    peek = _blocking(Requests.peek)
    size = _blocking(Requests.size)
    consume = _blocking(Requests.consume)
    touch = _blocking(Requests.touch)
    release = _blocking(Requests.release)
    bury = _blocking(Requests.bury)
    ack = _blocking(Requests.ack)
    ack_many = _blocking_flow(Requests.ack_many)
    pause = _blocking(Requests.pause)
    resume = _blocking(Requests.resume)
    destroy = _blocking(Requests.destroy)
    dead = _blocking(Requests.dead)
    respawn = _blocking_flow(Requests.respawn)
    respawn_oldest = _blocking(Requests.respawn_oldest)
    delete_dead = _blocking(Requests.delete_dead)

    def queues(self) -> Iterator[QueueInfo]:
        """List the namespace's queues, reading pages as needed."""
        return self._pages(self.requests.queues_page)

    def jobs(self, queue: str, state: State = "ready", *, data: bool = False) -> Iterator[ListedJob]:
        """List a queue's jobs in one state, in order of delivery. `data` includes bodies."""
        return self._pages(lambda cursor: self.requests.jobs_page(queue, state, data=data, cursor=cursor))

    def _pages(self, page_at: Callable[[str | None], Request[Page[T]]]) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = self.call(page_at(cursor))
            yield from page.items
            if (cursor := page.cursor) is None:
                return

    def call(self, request: Request[T]) -> T:
        """Send a request like `AsyncClient.call`, and wait for it."""
        return self.thread.run(self.asynchronous.call(request))


def nothing_done(error: DormouseError) -> bool:
    """Whether the server reported that it has done nothing: then any request can be retried."""
    return isinstance(error, (Busy, Limited)) or error.status == 503


def _as_seconds(duration: Seconds) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _positive(name: str, duration: Seconds) -> float:
    value = _as_seconds(duration)
    if not 0 < value < float("inf"):
        raise Invalid(f"{name} is more than 0 seconds")
    return value


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url.rstrip("/"))
    except (httpx.InvalidURL, TypeError) as error:
        raise Invalid("the URL cannot be read") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Invalid("the URL begins with http:// or https:// and a host")
    if parsed.userinfo or parsed.query or parsed.fragment:
        # The message omits the URL, which may contain a password.
        raise Invalid("the URL has no user, query or fragment")
    return str(parsed)


def _http_transport(url: str) -> httpx.AsyncBaseTransport:
    parsed = httpx.URL(url)
    proxy = None if urllib.request.proxy_bypass(parsed.host) else urllib.request.getproxies().get(parsed.scheme)
    return httpx.AsyncHTTPTransport(
        # Reading the certificates of authorities takes long, and plain HTTP needs none.
        verify=parsed.scheme == "https" or proxy is not None,
        proxy=proxy,
        limits=httpx.Limits(keepalive_expiry=_IDLE_CONNECTION),
    )


def _environment() -> dict[str, str]:
    given = {"url": os.environ.get("DORMOUSE_URL") or "http://127.0.0.1:7777"}
    given["token"] = os.environ.get("DORMOUSE_TOKEN", "")
    if not (namespace := os.environ.get("DORMOUSE_NAMESPACE")):
        raise Invalid("DORMOUSE_NAMESPACE is not set")
    given["namespace"] = namespace
    return given
