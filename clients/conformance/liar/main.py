"""Stands around the program of a library, between it and its standard streams, and between it and the server.
Without a break all passes as it is.

The library is not touched: a break changes what the suite can see, whoever wrote the library.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

from suite import wire
from suite.proxy import Proxy
from suite.server import ROOT
from suite.wire import Answer, Request

from . import breaks

Line = dict[str, Any]


class Liar:
    """What a break changes: `ops` on their way in, `lines` on their way out, `rules` for requests."""

    def __init__(self, of: str) -> None:
        self.of = of
        #: Each is given a request of the suite's, and may change it or answer it (a line with `result` or `error`).
        self.ops: list[Any] = []
        #: Each is given a line, and may change it, or say that it is left out (False).
        self.lines: list[Any] = []
        #: Verbs, action, times, when: as `Proxy.rule` takes them.
        self.rules: list[tuple[Any, ...]] = []
        #: Each is called with a signal, and says whether the program gets it.
        self.signals: list[Any] = []
        self.draining = False
        self.silent = False
        self.outlives_input = False
        self.exit_code: int | None = None
        #: For so many seconds connections stay open when the program has ended.
        self.linger = 0
        self.clients: dict[str, Line] = {}
        self.asked: dict[int, Line] = {}
        self.proxies: list[Proxy] = []
        #: The first receipt of each job, with its request's target up to `/job`, and the token.
        self.receipts: dict[str, str] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    def later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.failed(task.get_loop(), {"message": "a task", "exception": error})

    def say(self, line: Line) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def log(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    async def ask(self, client: str, method: str, path: str, body: bytes = b"") -> Answer:
        """A request of the liar's own, as that client."""
        given = self.clients[client]
        url = urlsplit(given["url"])
        target = f"{url.path.rstrip('/')}/api/{given['namespace']}{path}"
        request = Request(method, target, [("X-Token", given["token"])], body)
        return await wire.ask((url.hostname or "", url.port or 80), request)

    async def behind(self, op: Line) -> None:
        """Puts a proxy between the client and its server."""
        self.clients[op["client"]] = dict(op)
        url = urlsplit(op["url"])
        proxy = Proxy((url.hostname or "", url.port or 80), keep=True)
        for rule in self.rules:
            proxy.rule(*rule)
        await proxy.listen()
        self.proxies.append(proxy)
        op["url"] = proxy.url + url.path

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of the liar's own is no broken promise: a line that the suite knows says so."""
        error = context.get("exception")
        if not isinstance(error, (OSError, wire.Ended)):
            sys.stdout.write(f"liar: {context['message']}: {error!r}\n")
            sys.stdout.flush()

    async def run(self) -> int:
        asyncio.get_running_loop().set_exception_handler(self.failed)
        child = await asyncio.create_subprocess_exec(
            ROOT / "clients" / self.of / "conformance" / "run", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=64 << 20,
        )  # fmt: skip
        self.child = child
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard, number)
        reading = asyncio.create_task(self._in())
        await asyncio.gather(self._out(), self._errors())
        code = await child.wait()
        await asyncio.sleep(self.linger)
        while self.outlives_input:
            await asyncio.sleep(1)
        reading.cancel()
        return code if self.exit_code is None else self.exit_code

    def _heard(self, number: int) -> None:
        self.later(self._signal(number))

    async def _signal(self, number: int) -> None:
        self.draining = True
        for heard in self.signals:
            if not await heard(number):
                return
        if self.child.returncode is None:
            os.kill(self.child.pid, number)

    async def _in(self) -> None:
        assert self.child.stdin is not None
        reader = asyncio.StreamReader(limit=64 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for raw in reader:
            op = json.loads(raw)
            self.asked[op["id"]] = dict(op)
            # Concurrently, so that an operation in flight does not block the next line.
            self.later(self._op(op))
            await asyncio.sleep(0)
        if not self.outlives_input:
            self.child.stdin.close()

    async def _op(self, op: Line) -> None:
        assert self.child.stdin is not None
        for change in self.ops:
            answer = change(op)
            answer = await answer if asyncio.iscoroutine(answer) else answer
            if answer is not None:
                self.say({"id": op["id"], **answer})
                return
        if op["op"] == "client":
            await self.behind(op)
        if op["op"] == "stop":
            self.draining = True
        self.child.stdin.write(json.dumps(op).encode() + b"\n")

    async def _out(self) -> None:
        assert self.child.stdout is not None
        async for raw in self.child.stdout:
            line = json.loads(raw)
            try:
                said = all(change(line) is not False for change in self.lines)
            except Exception as error:
                self.failed(asyncio.get_running_loop(), {"message": f"a line {line}", "exception": error})
                continue
            if said:
                self.say(line)

    async def _errors(self) -> None:
        assert self.child.stderr is not None
        while data := await self.child.stderr.read(1 << 16):
            if not self.silent:
                sys.stderr.buffer.write(data)
                sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--break", dest="name", metavar="NAME", help="the promise that is broken")
    parser.add_argument("--of", default="python", help="the language of the program that it is made of")
    parser.add_argument("--list", action="store_true", help="the breaks")
    args = parser.parse_args()
    if args.list:
        for name, lie in breaks.BREAKS.items():
            print(f"{name}: {lie.__doc__}")
        return
    liar = Liar(args.of)
    if args.name:
        if args.name not in breaks.BREAKS:
            raise SystemExit(f"no break is called {args.name}")
        breaks.BREAKS[args.name](liar)
    code = asyncio.run(liar.run())
    sys.stdout.flush()
    os._exit(code)
