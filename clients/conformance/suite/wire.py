"""HTTP/1.1 as far as the suite needs it: messages are read whole, and one request is sent on a connection of its own.

Knows nothing of Dormouse.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

HEAD_END = b"\r\n\r\n"


class Ended(Exception):
    """The other side has closed the connection."""


@dataclass
class Answer:
    """An answer of HTTP."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)

    def to_bytes(self) -> bytes:
        """The bytes on the wire, with a `Content-Length` where the status allows a body."""
        skip = {"content-length", "transfer-encoding", "connection"}
        lines = [f"HTTP/1.1 {self.status} Status"]
        lines += [f"{key}: {value}" for key, value in self.headers if key.lower() not in skip]
        if self.status not in (204, 304):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join(lines).encode("latin-1") + HEAD_END + self.body


@dataclass
class Request:
    """A request of HTTP, with what the suite notes about it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def set_header(self, name: str, value: str | None) -> None:
        self.headers = [(key, old) for key, old in self.headers if key.lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    def json(self) -> Any:
        return json.loads(self.body)

    def to_bytes(self) -> bytes:
        skip = {"content-length", "transfer-encoding"}
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        lines += [f"{key}: {value}" for key, value in self.headers if key.lower() not in skip]
        if self.body or self.method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join(lines).encode("latin-1") + HEAD_END + self.body


class Incoming:
    """The bytes that come on a connection. A look for its end never loses a byte."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._task: asyncio.Task[bytes] | None = None
        self.buffer = bytearray()

    async def more(self) -> None:
        """Waits for further bytes. Raises `Ended`. May be cancelled."""
        if self._task is None:
            self._task = asyncio.create_task(self._reader.read(1 << 16))
        try:
            data = await asyncio.shield(self._task)
        except OSError:
            data = b""
        if not data:
            raise Ended
        self._task = None
        self.buffer += data

    async def until_gone(self) -> None:
        """Returns when the other side has closed."""
        try:
            while True:
                await self.more()
        except Ended:
            return

    async def until(self, mark: bytes) -> bytes:
        while (at := self.buffer.find(mark)) < 0:
            await self.more()
        return self.take(at + len(mark))

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            await self.more()
        return self.take(count)

    def take(self, count: int) -> bytes:
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    async def head(self) -> tuple[str, list[tuple[str, str]]]:
        first, *lines = (await self.until(HEAD_END))[:-4].decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        return first, [(key.strip(), value.strip()) for key, value in pairs]

    async def body(self, headers: list[tuple[str, str]]) -> bytes:
        """The body, however it is framed. One that ends with the connection is of no length here: nobody sends it."""
        by_name = {key.lower(): value for key, value in headers}
        if by_name.get("transfer-encoding", "").lower() == "chunked":
            whole = bytearray()
            while size := int((await self.until(b"\r\n")).split(b";")[0], 16):
                whole += await self.exactly(size)
                await self.exactly(2)
            await self.until(b"\r\n")
            return bytes(whole)
        return await self.exactly(int(by_name.get("content-length", "0")))

    async def request(self) -> Request:
        first, headers = await self.head()
        method, target, _ = first.split(" ")
        return Request(method, target, headers, await self.body(headers))

    async def answer(self) -> Answer:
        first, headers = await self.head()
        status = int(first.split(" ")[1])
        return Answer(status, headers, b"" if status in (204, 304) else await self.body(headers))


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with RST, as a machine does that has forgotten it."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def ask(address: tuple[str, int], request: Request) -> Answer:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        request.set_header("Host", f"{address[0]}:{address[1]}")
        request.set_header("Connection", "close")
        writer.write(request.to_bytes())
        return await Incoming(reader).answer()
    finally:
        writer.transport.abort()


#: What a request is about, by its method and what follows `/api/<namespace>/<queue>`.
VERBS = {
    ("GET", ""): "consume",
    ("PUT", ""): "old_publish",
    ("DELETE", ""): "destroy",
    ("PUT", "bulk"): "old_bulk",
    ("POST", "jobs"): "publish",
    ("GET", "jobs"): "list",
    ("POST", "jobs/batch"): "publish_many",
    ("POST", "ack"): "ack_many",
    ("GET", "job/*"): "get",
    ("DELETE", "job/*"): "ack",
    ("POST", "job/*/touch"): "touch",
    ("POST", "job/*/release"): "release",
    ("POST", "job/*/bury"): "bury",
    ("POST", "job/*/respawn"): "respawn",
    ("POST", "job/*/promote"): "promote",
    ("POST", "key/*/promote"): "promote",
    ("GET", "key/*"): "get_key",
    ("DELETE", "key/*"): "cancel_key",
    ("GET", "peek"): "peek",
    ("GET", "size"): "size",
    ("GET", "deadletter"): "dead",
    ("GET", "deadletter/size"): "dead_size",
    ("PUT", "deadletter"): "respawn_oldest",
    ("DELETE", "deadletter"): "delete_dead",
    ("POST", "deadletter/respawn"): "respawn",
    ("POST", "pause"): "pause",
    ("POST", "resume"): "resume",
}


def parts(request: Request) -> list[str]:
    """The segments after `/api/<namespace>`."""
    found = [unquote(part) for part in request.path.split("/")]
    start = found.index("api") + 2 if "api" in found else len(found)
    return found[start:]


def verb(request: Request) -> str:
    """The verb, in the words of the protocol. An ack without a receipt is a cancel."""
    queue, *rest = parts(request) or [""]
    if not queue:
        return "queues" if request.method == "GET" else "unknown"
    if len(rest) > 1 and rest[0] in ("job", "key"):
        rest[1] = "*"
    name = VERBS.get((request.method, "/".join(rest)), "unknown")
    return "cancel" if name == "ack" and "receipt" not in request.query else name


def job_id(request: Request) -> str | None:
    rest = parts(request)
    return rest[2] if len(rest) > 2 and rest[1] == "job" else None
