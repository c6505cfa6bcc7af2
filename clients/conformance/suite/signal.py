"""Waiting for something to become true, without asking for it in a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Late(Exception):
    """What was waited for has not come."""


class Signal:
    """Rung at each change. Whoever waits looks again then."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, look: Callable[[], T], within: float) -> T:
        """The first value of `look` that is true. Raises `Late`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while True:
            if value := look():
                return value
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            try:
                async with asyncio.timeout_at(end):
                    await future
            except TimeoutError:
                raise Late from None
            finally:
                self._waiting.discard(future)
