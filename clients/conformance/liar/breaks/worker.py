"""Promises of a worker: what it asks for, and how it keeps jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from suite import wire
from suite.proxy import Exchange, answers, streamed
from suite.wire import Answer, Ended, Request

if TYPE_CHECKING:
    from ..main import Liar, Line

from ..tools import (
    also,
    answer,
    copy,
    cut_after,
    event,
    held,
    instead,
    lie,
    op,
    option,
    receipts,
    repeated,
    request,
    target,
)

# Worker


@lie
def other_defaults(liar: Liar) -> None:
    """Another concurrency and another ttr."""
    op(liar, "worker", lambda given: given.update({"concurrency": 5, "ttr": 60} | given))


@lie
def any_ttr(liar: Liar) -> None:
    """A ttr that cannot be held is taken."""
    op(liar, "worker", lambda given: given.update(ttr=max(3, int(given.get("ttr", 30)))))


@lie
def sorts_queues(liar: Liar) -> None:
    """Queues are served in the order of their names."""
    op(liar, "worker", lambda given: given.update(queues=sorted(given["queues"])))


@lie
def more_slots(liar: Liar) -> None:
    """One handler more than there are slots."""
    op(liar, "worker", lambda given: given.update(concurrency=given.get("concurrency", 10) + 1))


@lie
def fetches_ahead(liar: Liar) -> None:
    """More jobs are asked for than there are free slots."""

    def change(given: Request) -> None:
        given.target = target(given, count=int(given.query.get("count", "1")) + 5)

    request(liar, "consume", change)


@lie
def two_polls(liar: Liar) -> None:
    """Each queue has a poll of its own."""

    async def act(exchange: Exchange) -> None:
        other = copy(exchange, "GET", exchange.request.target)
        liar.later(wire.ask(exchange.proxy.upstream, other))
        await streamed(exchange)

    liar.rules.append(("consume", act, None))


@lie
def pauses_after_empty(liar: Liar) -> None:
    """There is a pause between polls."""
    held(liar, 0.7, "consume")


@lie
def polls_in_a_loop(liar: Liar) -> None:
    """A poll that failed is followed by the next at once."""
    repeated(liar, "consume", 2)


@lie
def short_poll(liar: Liar) -> None:
    """A poll has no more time than it asks the server to wait."""
    cut_after(liar, "consume", 3)


@lie
def never_gives_up(liar: Liar) -> None:
    """A worker goes on polling whatever the server says."""

    def change(given: Answer) -> None:
        if 400 <= given.status < 500 or (given.status == 200 and b'"receipt"' not in given.body):
            given.status, given.body = 404, b'{"msg":"no job available"}'

    answer(liar, "consume", change)


@lie
def other_backoff(liar: Liar) -> None:
    """Another back-off, always the same."""
    option(liar, backoff=[3])


@lie
def looks_at_each_job(liar: Liar) -> None:
    """Each job is looked at before it is acked."""

    def look(exchange: Exchange) -> list[Request]:
        if exchange.verb == "ack":
            return [copy(exchange, "GET", exchange.request.path + "?verbose=1")]
        base = exchange.request.path.removesuffix("/ack")
        return [copy(exchange, "GET", f"{base}/job/{job['id']}?verbose=1") for job in exchange.request.json()["jobs"]]

    also(liar, "ack ack_many", look)


# Holding

TOUCHED = {"msg": "touched", "until": "2099-01-01T00:00:00.000Z"}


def no_touch(liar: Liar, when: Callable[[Exchange], bool]) -> None:
    """The worker believes that it has touched."""

    async def act(exchange: Exchange) -> None:
        await answers(200, TOUCHED | {"receipt": exchange.query["receipt"]})(exchange)

    liar.rules.append(("touch", act, None, when))


@lie
def late_touches(liar: Liar) -> None:
    """Touches come when half of ttr has passed and more."""
    held(liar, 1.9, "touch")


@lie
def no_touches(liar: Liar) -> None:
    """Nothing is touched."""
    no_touch(liar, lambda _: True)


@lie
def no_touches_in_drain(liar: Liar) -> None:
    """Nothing is touched while the worker stops."""
    no_touch(liar, lambda _: liar.draining)


def cancelled(liar: Liar, cause: str | None = None) -> set[str]:
    found: set[str] = set()

    def note(given: Line) -> None:
        if cause is None or given["cause"] == cause:
            found.add(given["job_id"])

    event(liar, "cancelled", note)
    return found


@lie
def no_touches_when_cancelled(liar: Liar) -> None:
    """Touches end with the handler's cancellation."""
    found = cancelled(liar)
    no_touch(liar, lambda exchange: exchange.job_id in found)


@lie
def old_receipts(liar: Liar) -> None:
    """Results carry the receipt of the poll."""
    first = receipts(liar)

    def change(given: Request) -> None:
        if wire.verb(given) == "ack_many":
            jobs = [{**job, "receipt": first[job["id"]]} for job in given.json()["jobs"]]
            given.body = json.dumps({"jobs": jobs}).encode()
        else:
            given.target = target(given, receipt=first[wire.job_id(given) or ""])

    request(liar, "ack ack_many release bury", change)


@lie
def patient_touches(liar: Liar) -> None:
    """A touch without an answer is never given up."""

    async def act(exchange: Exchange) -> None:
        asked = asyncio.ensure_future(wire.ask(exchange.proxy.upstream, exchange.request))
        liar.later(asked)
        gone = asyncio.ensure_future(exchange.incoming.until_gone())
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not asked.done():
            raise Ended
        await exchange.send(asked.result())

    liar.rules.append(("touch", act, None))


@lie
def gives_up_touches(liar: Liar) -> None:
    """A touch that failed is not repeated."""
    failed: set[str | None] = set()

    async def act(exchange: Exchange) -> None:
        if exchange.job_id in failed:
            await answers(200, TOUCHED | {"receipt": exchange.query["receipt"]})(exchange)
            return
        given = await exchange.forward()
        if given.status != 200:
            failed.add(exchange.job_id)
        await exchange.send(given)

    liar.rules.append(("touch", act, None))


@lie
def ignores_lost(liar: Liar) -> None:
    """The handler learns nothing when its job is lost."""
    event(liar, "cancelled", lambda _: False, cause="lost")


@lie
def sends_after_lost(liar: Liar) -> None:
    """A job that is lost is acked."""
    known: dict[str, tuple[Exchange, str]] = {}

    async def act(exchange: Exchange) -> None:
        given = await exchange.forward()
        if given.status == 200:
            jobs = given.json()
            for job in jobs if isinstance(jobs, list) else [jobs]:
                known[job["job_id"]] = exchange, job["receipt"]
        await exchange.send(given)

    liar.rules.append(("consume", act, None))

    async def send(job: str) -> None:
        await asyncio.sleep(0.3)
        exchange, receipt = known[job]
        await wire.ask(
            exchange.proxy.upstream, copy(exchange, "DELETE", f"{exchange.request.path}/job/{job}?receipt={receipt}")
        )

    def lost(given: Line) -> None:
        if given.get("cause") == "lost" or given.get("outcome") == "lost":
            liar.later(send(given["job_id"]))

    event(liar, "cancelled", lost)
    event(liar, "hook", lost, name="finish")


@lie
def counts_from_the_end(liar: Liar) -> None:
    """The time of a job is counted from the end of the poll's answer."""
    answer(liar, "consume", lambda _: None)


@lie
def late_lost(liar: Liar) -> None:
    """A handler goes on for a while with a job that is lost."""

    async def late(given: Line) -> None:
        await asyncio.sleep(2.2)
        liar.say(given)

    def change(given: Line) -> bool:
        liar.later(late(given))
        return False

    event(liar, "cancelled", change, cause="lost")


@lie
def logs_twice(liar: Liar) -> None:
    """A job that is lost has two lines in the log."""
    event(liar, "cancelled", lambda given: liar.log(f"gone: {given['job_id']}"), cause="lost")


@lie
def never_looks(liar: Liar) -> None:
    """Nobody asks for the valid receipt."""
    instead(liar, "get", 404, {"error": "job not found"}, lambda exchange: "receipt" in exchange.query)


@lie
def release_409_lost(liar: Liar) -> None:
    """A repeated release that was done is taken for a loss."""
    event(liar, "hook", lambda given: given.update(outcome="lost"), name="finish")


@lie
def forgives_losses(liar: Liar) -> None:
    """A release that was refused is taken for one that was done."""
    event(liar, "hook", lambda given: given.update(outcome="released"), name="finish", outcome="lost")


@lie
def ack_once(liar: Liar) -> None:
    """An ack is sent once, whatever comes of it."""
    seen: set[str | None] = set()

    def again(exchange: Exchange) -> bool:
        known = exchange.job_id in seen
        seen.add(exchange.job_id)
        return known

    instead(liar, "ack", 204, b"", again)
