"""What breaks are made of: changes of an op, a line, a request or an answer on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from suite import wire
from suite.proxy import Exchange, answers, streamed
from suite.wire import Answer, Ended, Request

if TYPE_CHECKING:
    from .main import Liar, Line

Break = Callable[["Liar"], None]
BREAKS: dict[str, Break] = {}


def lie(break_: Break) -> Break:
    BREAKS[break_.__name__] = break_
    return break_


# Building blocks of most faults.


def op(liar: Liar, names: str, change: Callable[[Line], Any]) -> None:
    """Changes requests of the suite's."""
    wanted = names.split()
    liar.ops.append(lambda given: change(given) if given["op"] in wanted else None)


def option(liar: Liar, **values: Any) -> None:
    """Workers have another option than they were given."""
    op(liar, "worker", lambda given: given.update(values))


def without(*names: str) -> Callable[[Line], None]:
    def change(given: Line) -> None:
        for name in names:
            given.pop(name, None)

    return change


def request(
    liar: Liar, verbs: str, change: Callable[[Request], Any], when: Callable[[Exchange], bool] | None = None
) -> None:
    """Changes requests to the server."""

    async def act(exchange: Exchange) -> None:
        change(exchange.request)
        await streamed(exchange)

    liar.rules.append((verbs, act, None, when))


def query(liar: Liar, verbs: str, **values: Any) -> None:
    """Sets parameters; None takes one away."""

    def change(given: Request) -> None:
        given.target = target(given, **values)

    request(liar, verbs, change)


def target(given: Request, **values: Any) -> str:
    left = {key: value for key, value in (given.query | values).items() if value is not None}
    path = given.target.split("?")[0]
    return f"{path}?{urlencode(left)}" if left else path


def answer(liar: Liar, verbs: str, change: Callable[[Answer], Any]) -> None:
    """Changes answers of the server."""

    async def act(exchange: Exchange) -> None:
        given = await exchange.forward()
        change(given)
        await exchange.send(given)

    liar.rules.append((verbs, act, None))


def instead(
    liar: Liar, verbs: str, status: int, body: Any = b"", when: Callable[[Exchange], bool] | None = None
) -> None:
    """The server never hears of it."""
    liar.rules.append((verbs, answers(status, body), None, when))


def line(liar: Liar, change: Callable[[Line], Any]) -> None:
    liar.lines.append(change)


def event(liar: Liar, kind: str, change: Callable[[Line], Any], /, **fields: Any) -> None:
    def of(given: Line) -> Any:
        if given.get("event") == kind and all(given.get(key) == value for key, value in fields.items()):
            return change(given)
        return None

    line(liar, of)


def result(liar: Liar, ops: str, change: Callable[[Line], Any]) -> None:
    """Changes answers to the suite."""
    wanted = ops.split()

    def of(given: Line) -> None:
        if "id" in given and "result" in given and liar.asked[given["id"]]["op"] in wanted:
            change(given["result"])

    line(liar, of)


def error(liar: Liar, change: Callable[[Line], Any]) -> None:
    line(liar, lambda given: change(given["error"]) if isinstance(given.get("error"), dict) and "id" in given else None)


def held(liar: Liar, seconds: float, verbs: str, when: Callable[[Exchange], bool] | None = None) -> None:
    """Requests come late."""

    async def act(exchange: Exchange) -> None:
        await exchange.pause(seconds)
        await streamed(exchange)

    liar.rules.append((verbs, act, None, when))


def cut_after(liar: Liar, verbs: str, seconds: float) -> None:
    """Answers that take long are not waited for."""

    async def act(exchange: Exchange) -> None:
        try:
            given = await asyncio.wait_for(exchange.forward(), seconds)
        except TimeoutError:
            exchange.reset()
        await exchange.send(given)

    liar.rules.append((verbs, act, None))


def also(liar: Liar, verbs: str, other: Callable[[Exchange], list[Request]]) -> None:
    """Sends further requests beside."""

    async def act(exchange: Exchange) -> None:
        for request in other(exchange):
            await wire.ask(exchange.proxy.upstream, request)
        await streamed(exchange)

    liar.rules.append((verbs, act, None))


def copy(exchange: Exchange, method: str, target: str) -> Request:
    return Request(method, target, [("X-Token", exchange.request.header("X-Token") or "")])


def repeated(liar: Liar, verbs: str, times: int) -> None:
    """Repeats what has failed at once."""

    async def act(exchange: Exchange) -> None:
        for left in reversed(range(times + 1)):
            try:
                given = await exchange.forward()
            except (Ended, OSError):
                if exchange.incoming.buffer or not left:
                    raise
                exchange.proxy.forget(exchange)
                continue
            if given.status < 400 or not left:
                break
        await exchange.send(given)

    liar.rules.append((verbs, act, None))


def receipts(liar: Liar) -> dict[str, str]:
    """The first receipt of each job that was handed out, as polls bring them."""

    def note(given: Answer) -> None:
        if given.status == 200:
            jobs = given.json()
            for job in jobs if isinstance(jobs, list) else [jobs]:
                liar.receipts.setdefault(job["job_id"], job.get("receipt"))

    answer(liar, "consume", note)
    return liar.receipts


RESULTS = "ack release bury"
PUBLISHES = "publish publish_many"
