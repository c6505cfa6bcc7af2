"""Promises about results, the end, and what stands around a handler."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
from typing import TYPE_CHECKING

from suite import wire
from suite.proxy import Exchange, answers, streamed
from suite.wire import Ended, Request

if TYPE_CHECKING:
    from ..main import Liar, Line

from ..tools import RESULTS, copy, event, held, instead, lie, line, op, option, query, request, result, target, without

# Results of jobs


@lie
def acks_without_receipt(liar: Liar) -> None:
    """An ack has no receipt."""
    query(liar, "ack", receipt=None)


@lie
def other_reason(liar: Liar) -> None:
    """The reason is the text alone."""

    def change(given: Request) -> None:
        given.body = re.sub(rb"^attempt \d+: ", b"", given.body)

    request(liar, "release bury", change)


@lie
def dies_of_panic(liar: Liar) -> None:
    """The program ends when a handler panics."""
    event(liar, "end", lambda _: os.kill(liar.child.pid, signal.SIGKILL), result="panic")


@lie
def hides_stack(liar: Liar) -> None:
    """Nothing is logged."""
    liar.silent = True


@lie
def other_delay(liar: Liar) -> None:
    """A job is released after another delay."""

    def change(given: Request) -> None:
        given.target = target(given, delay=float(given.query.get("delay", "0")) + 1.5)

    request(liar, "release", change)


@lie
def snooze_spends(liar: Liar) -> None:
    """A snooze spends a try."""
    query(liar, "release", spend=None)


@lie
def buries_nothing(liar: Liar) -> None:
    """A job that will never work is not buried."""
    instead(liar, "bury", 200, {"msg": "dead"})


@lie
def result_after_own(liar: Liar) -> None:
    """A result is sent although the handler has sent one."""

    async def act(exchange: Exchange) -> None:
        await streamed(exchange)
        liar.later(wire.ask(exchange.proxy.upstream, copy(exchange, "DELETE", exchange.request.target)))

    liar.rules.append(("ack", act, None))


@lie
def no_time_limit(liar: Liar) -> None:
    """Handlers have no time limit."""
    op(liar, "worker", without("time_limit"))


@lie
def slot_after_result(liar: Liar) -> None:
    """A slot is free when the result was sent."""

    async def act(exchange: Exchange) -> None:
        await exchange.pause(0.2)
        while any(other.open for other in exchange.proxy.seen("ack")):
            await exchange.pause(0.05)
        await streamed(exchange)

    liar.rules.append(("consume", act, None))


@lie
def other_attempt(liar: Liar) -> None:
    """The attempt is counted from 0."""
    event(liar, "attempt", lambda given: given.update(attempt=given["attempt"] - 1))


@lie
def long_reason(liar: Liar) -> None:
    """A reason is as long as the error."""

    def change(given: Request) -> None:
        given.body *= 2

    request(liar, "release bury", change)


# Acks


@lie
def one_by_one(liar: Liar) -> None:
    """Each ack is a request."""

    async def act(exchange: Exchange) -> None:
        jobs = exchange.request.json()["jobs"]
        base = exchange.request.path.removesuffix("/ack")
        for job in jobs:
            await wire.ask(
                exchange.proxy.upstream, copy(exchange, "DELETE", f"{base}/job/{job['id']}?receipt={job['receipt']}")
            )
        await answers(200, {"acked": len(jobs), "stale": []})(exchange)

    liar.rules.append(("ack_many", act, None))


@lie
def late_acks(liar: Liar) -> None:
    """Acks wait for longer than ack_window."""
    held(liar, 2, "ack ack_many")


@lie
def gives_up_results(liar: Liar) -> None:
    """A result that could not be sent is not sent again."""
    failed: set[str | None] = set()

    async def act(exchange: Exchange) -> None:
        if exchange.job_id in failed:
            await answers(204 if exchange.verb == "ack" else 200, b"" if exchange.verb == "ack" else {"msg": "dead"})(
                exchange
            )
            return
        try:
            given = await exchange.forward()
        except (Ended, OSError):
            failed.add(exchange.job_id)
            raise
        if given.status >= 500:
            failed.add(exchange.job_id)
        await exchange.send(given)

    liar.rules.append((RESULTS, act, None))


@lie
def gives_up_acks(liar: Liar) -> None:
    """An ack that could not be sent is taken for one that was, by whatever request it comes again."""
    failed: list[Exchange] = []

    async def act(exchange: Exchange) -> None:
        if failed:
            alone = exchange.verb == "ack"
            await answers(204 if alone else 200, b"" if alone else {"acked": 9, "stale": []})(exchange)
            return
        given = await exchange.forward()
        if given.status >= 500:
            failed.append(exchange)
        await exchange.send(given)

    liar.rules.append(("ack ack_many", act, None))


@lie
def one_at_a_time(liar: Liar) -> None:
    """A result waits for the one before."""
    busy = asyncio.Lock()

    async def act(exchange: Exchange) -> None:
        async with busy:
            await streamed(exchange)

    liar.rules.append((RESULTS, act, None))


# Stopping


@lie
def keeps_poll_parked(liar: Liar) -> None:
    """The parked poll is not closed."""

    async def act(exchange: Exchange) -> None:
        asked = asyncio.ensure_future(wire.ask(exchange.proxy.upstream, exchange.request))
        gone = asyncio.ensure_future(exchange.incoming.until_gone())
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not asked.done():
            await asyncio.wait({asked}, timeout=3)
            raise Ended
        await exchange.send(asked.result())

    liar.rules.append(("consume", act, None))

    liar.linger = 3


@lie
def polls_on(liar: Liar) -> None:
    """A worker that stops polls once more."""
    last: list[Exchange] = []

    async def act(exchange: Exchange) -> None:
        last[:] = [exchange]
        await streamed(exchange)

    liar.rules.append(("consume", act, None))

    async def poll() -> None:
        exchange = last[0]
        await wire.ask(exchange.proxy.upstream, copy(exchange, "GET", target(exchange.request, timeout=1)))

    async def on_signal(number: int) -> bool:
        await poll()
        return True

    async def later() -> None:
        await asyncio.sleep(0.8)
        await poll()

    liar.signals.append(on_signal)
    op(liar, "stop", lambda _: liar.later(later()))


@lie
def ignores_sigint(liar: Liar) -> None:
    """SIGINT does nothing."""

    async def heard(number: int) -> bool:
        return number != signal.SIGINT

    liar.signals.append(heard)


@lie
def keeps_late_jobs(liar: Liar) -> None:
    """Jobs that came late are kept until their ttr has ended."""
    instead(liar, "release", 200, {"msg": "released", "remain_tries": 3, "due_at": "2026-01-01T00:00:00.000Z"})


@lie
def cancels_at_once(liar: Liar) -> None:
    """Handlers are cancelled when the worker is told to stop."""
    option(liar, drain=0)


@lie
def kills_at_once(liar: Liar) -> None:
    """The program ends at the signal."""

    async def heard(number: int) -> bool:
        liar.child.kill()
        return False

    liar.signals.append(heard)
    liar.exit_code = 0


@lie
def forgives_in_drain(liar: Liar) -> None:
    """A handler that fails while the worker drains has not failed."""

    def change(given: Request) -> None:
        given.target, given.body = target(given, spend=0, delay=0), b""

    request(liar, "release", change, lambda _: liar.draining)


@lie
def spends_in_drain(liar: Liar) -> None:
    """What the drain gives back has spent a try."""
    query(liar, "release", spend=None)


@lie
def drops_acks_in_drain(liar: Liar) -> None:
    """A job that was done after drain is not acked."""
    instead(liar, "ack", 204, b"", lambda _: liar.draining)


@lie
def waits_for_ever(liar: Liar) -> None:
    """A deaf handler holds up the end."""
    option(liar, grace=30)


@lie
def clean_lie(liar: Liar) -> None:
    """The end is called clean though a handler had not returned."""
    result(liar, "stop", lambda given: given.update(clean=True))
    liar.exit_code = 0


@lie
def deaf_to_second(liar: Liar) -> None:
    """A second signal does nothing, nor does a second call."""
    seen: list[int] = []
    called: list[Line] = []

    async def heard(number: int) -> bool:
        seen.append(number)
        return len(seen) == 1

    async def again(given: Line) -> Line | None:
        called.append(given)
        if len(called) == 1:
            return None
        await asyncio.sleep(20)
        return {"result": {"clean": False}}

    liar.signals.append(heard)
    op(liar, "stop", again)


@lie
def outlives_input(liar: Liar) -> None:
    """The program goes on at the end of its input."""
    liar.outlives_input = True


# Around it


@lie
def no_middleware(liar: Liar) -> None:
    """Middleware is not called."""
    event(liar, "middleware", lambda _: False)


@lie
def no_hooks(liar: Liar) -> None:
    """Hooks `touch` and `drain` are not called."""
    event(liar, "hook", lambda _: False, name="touch")
    event(liar, "hook", lambda _: False, name="drain")


@lie
def away_each_poll(liar: Liar) -> None:
    """Hook `away` is called for each poll that fails."""

    def change(given: Line) -> None:
        if given["error"]:
            liar.say(given | {"name": "away"})

    event(liar, "hook", change, name="poll")


@lie
def logs_each_poll(liar: Liar) -> None:
    """Each poll that fails is logged."""
    event(liar, "hook", lambda given: liar.log("poll failed") if given["error"] else None, name="poll")


@lie
def logs_body(liar: Liar) -> None:
    """Jobs are logged with their bodies."""
    event(liar, "start", lambda given: liar.log(base64.b64decode(given["job"]["data"]).decode(errors="replace")))


# The protocol


@lie
def one_op_at_a_time(liar: Liar) -> None:
    """A request waits for the answer to the one before."""
    under_way: list[int] = []

    async def wait(given: Line) -> None:
        while under_way:
            await asyncio.sleep(0.02)
        under_way.append(given["id"])

    def answered(given: Line) -> None:
        if given.get("id") in under_way:
            under_way.remove(given["id"])

    liar.ops.append(wait)
    line(liar, answered)


@lie
def other_hello(liar: Liar) -> None:
    """The first line says another version."""
    event(liar, "ready", lambda given: given.update(version="9.9.9"))


@lie
def events_without_time(liar: Liar) -> None:
    """Events have no time."""
    line(liar, lambda given: given.pop("at", None) and None)


@lie
def dies_of_nonsense(liar: Liar) -> None:
    """The program ends at an op that it does not know."""
    op(liar, "no_such_op", lambda _: liar.child.kill())


# Signatures, the double


@lie
def refuses_all(liar: Liar) -> None:
    """No request of push is taken."""
    op(liar, "verify", lambda _: {"error": {"type": "signature", "message": "signature: no"}})


@lie
def takes_all(liar: Liar) -> None:
    """Every request of push is taken."""
    op(liar, "verify", lambda _: {"result": {}})


@lie
def double_lies(liar: Liar) -> None:
    """The double forgets the last job that it has handled."""
    result(liar, "double", lambda given: given.update(handled=given["handled"][:-1]))
