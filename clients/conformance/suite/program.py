"""A conformance program of one language: its process, its requests and its events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal as signals
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .signal import Late, Signal

Event = dict[str, Any]


class Refused(Exception):
    """The program has answered a request with an error."""

    def __init__(self, op: str, error: dict[str, Any]) -> None:
        super().__init__(f"{op}: {error}")
        self.error = error


class Gone(Exception):
    """The program has ended."""


class NotReady(Gone):
    """It has never begun."""


class Program:
    """Started by `start`, ended by `end`."""

    def __init__(self, command: list[str | Path]) -> None:
        self.command = command
        self.signal = Signal()
        self.events: list[Event] = []
        self.bad_lines: list[str] = []
        self.errors = bytearray()
        self.hello: Event = {}
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self.tokens: set[str] = set()
        self.stdout = bytearray()

    async def start(self, within: float = 60.0) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("DORMOUSE_")}
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            cwd="/",
            env=env,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            limit=64 << 20,
            start_new_session=True,
        )
        self._readers = [asyncio.create_task(self._read_lines()), asyncio.create_task(self._read_errors())]
        try:
            await self.signal.until(lambda: self.hello or self.ended or None, within)
        except Late:
            raise NotReady(f"the program did not say that it is ready within {within:.0f} s") from None
        if not self.hello:
            raise NotReady(f"the program ended before it was ready: {self.said()}")

    @property
    def ended(self) -> bool:
        return self._readers[0].done()

    def said(self) -> str:
        return self.errors[-2000:].decode(errors="replace")

    async def _read_lines(self) -> None:
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            self.stdout += raw
            try:
                line = json.loads(raw)
                assert isinstance(line, dict)
            except (ValueError, AssertionError):
                self.bad_lines.append(raw.decode(errors="replace"))
                continue
            if "event" in line:
                line["_at"] = asyncio.get_running_loop().time()
                if line["event"] == "ready":
                    self.hello = line
                else:
                    self.events.append(line)
            elif (future := self._waiting.pop(line.get("id", -1), None)) and not future.done():
                future.set_result(line)
            self.signal.ring()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Gone(f"the program has ended: {self.said()}"))
        # The caller of a cancelled request does not read its exception.
        for future in self._waiting.values():
            future.exception() if future.done() and not future.cancelled() else None
        asyncio.get_running_loop().call_soon(self.signal.ring)

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(1 << 16):
            self.errors += data
            del self.errors[: -(1 << 20)]
            self.signal.ring()

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Sends a request, waits for its answer. Raises `Refused`, `Gone`."""
        if self.ended:
            raise Gone(f"the program has ended: {self.said()}")
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"id": number, "op": op, **fields}).encode() + b"\n")
            await self.process.stdin.drain()
        except OSError as error:
            raise Gone(f"the program has ended: {self.said()}") from error
        line = await future
        if "error" in line:
            raise Refused(op, line["error"])
        if not isinstance(line.get("result"), dict):
            raise Refused(op, {"type": None, "message": f"no result in {line}"})
        result: dict[str, Any] = line["result"]
        return result

    def seen(self, event: str, **fields: Any) -> list[Event]:
        return [
            found
            for found in self.events
            if found["event"] == event and all(found.get(key) == value for key, value in fields.items())
        ]

    async def until(self, look: Callable[[], Any], within: float) -> Any:
        def or_gone() -> Any:
            value = look()
            if not value and self.ended:
                raise Gone(f"the program has ended: {self.said()}")
            return value

        return await self.signal.until(or_gone, within)

    def kill(self, signal: int = signals.SIGTERM) -> None:
        """A signal to the program alone; what a shell has started is the program's own affair."""
        os.kill(self.process.pid, signal)

    async def exit_code(self, within: float) -> int:
        try:
            return await asyncio.wait_for(self.process.wait(), within)
        except TimeoutError:
            raise Late(f"the program has not ended within {within:.0f} s") from None

    async def end(self) -> None:
        """Closes its input, and kills what does not end by that."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 5)
        # It was started as a group leader, so this reaches its descendants, and nothing else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signals.SIGKILL)
        await self.process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)
