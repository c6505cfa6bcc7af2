"""What a client repeats, how soon, and what never."""

import asyncio
import itertools
from functools import partial
from typing import Any

from ..proxy import Action, answers, dropped, never, never_after, reset_after, reset_before, reset_within
from ..registry import scenario
from ..stage import SLACK, Client, Stage, body, check, equal, within


@scenario(
    "Each publish carries an Idempotency-Key, the caller's or a random one, the same at each repeat.",
    "no_key key_each_repeat key_for_all",
)
async def idempotency(s: Stage) -> None:
    c = await s.client()
    keys: list[str | None] = []
    for op, fields in (("publish", {"data": b"x"}), ("publish_many", {"jobs": [{"data": ""}]})) * 2:
        s.proxy.rule(op, answers(502))
        s.proxy.rule(op, reset_after)
        before = len(s.proxy.exchanges)
        await getattr(c, op)(queue="q", **fields)
        sent = {exchange.request.header("Idempotency-Key") for exchange in s.proxy.exchanges[before:]}
        equal(len(s.proxy.exchanges) - before, 3, f"requests of {op}")
        check(len(sent) == 1 and None not in sent, f"the keys of one {op}: {sent}")
        keys += sent
    equal(len(set(keys)), 4, "keys of four publishes")
    s.proxy.rule("publish", reset_after)
    p = await c.publish(queue="q", data=b"x", idempotency_key="mine")
    equal([e.request.header("Idempotency-Key") for e in s.proxy.exchanges[-2:]], ["mine", "mine"], "the caller's key")
    equal(p["replayed"], True, "whether the answer is one that was given before")
    equal((await c.size(queue="q"))["size"], 5, "jobs in the queue")


async def prepared(s: Stage, c: Client) -> dict[str, dict[str, Any]]:
    """Every op that may be repeated, with what it needs."""
    ids = [await s.direct.put("held", str(i)) for i in range(3)]
    held = (await c.consume(queues=["held"], count=3, ttr=60))["jobs"]
    equal([job["job_id"] for job in held], ids, "jobs that the program holds")
    await s.direct.put("other", "x", key="k1", delay=60)
    await s.direct.put("other", "x", key="k2", delay=60)
    there = await s.direct.put("other", "x", delay=60)
    return {
        "publish": {"queue": "q", "data": b"x"},
        "publish_many": {"queue": "many", "jobs": [{"data": "AA=="}, {"data": "AQ=="}]},
        "ack": {"job_id": ids[0]},
        "ack_many": {"queue": "held", "job_ids": ids[1:]},
        "cancel": {"queue": "other", "job_id": there},
        "cancel_key": {"queue": "other", "key": "k1"},
        "get_key": {"queue": "other", "key": "k2"},
        "get": {"queue": "other", "key": "k2"},
        "peek": {"queue": "q"},
        "size": {"queue": "q"},
        "dead": {"queue": "q"},
        "list": {"queue": "q", "state": "ready"},
        "queues": {},
        "pause": {"queue": "q", "for": 60},
        "resume": {"queue": "q"},
    }


async def all_repeated(s: Stage, fault: Action, *, timeout: float = 10) -> None:
    c = await s.client(timeout=timeout, retry_for=25)
    ops = await prepared(s, c)
    for op, fields in ops.items():
        # Slow cases are tested with one operation of each kind.
        if timeout < 10 and op in ("ack_many", "get_key", "peek", "dead", "list", "queues", "resume"):
            continue
        rule = s.proxy.rule("", fault)
        before = len(s.proxy.exchanges)
        await getattr(c, op.removesuffix("_key"))(**fields)
        sent = s.proxy.exchanges[before:]
        equal((len(sent), len(rule.seen)), (2, 1), f"requests of {op}, and of those that failed")
        equal(sent[0].request.target, sent[1].request.target, f"the request of {op} and its repeat")
        equal(sent[0].request.body, sent[1].request.body, f"the body of {op} and of its repeat")
    equal(
        [body(job) for job in await s.direct.jobs("many", "ready")], [b"\0", b"\1"], "what publish_many has published"
    )
    equal(len(await s.direct.jobs("q", "ready")), 1, "what publish has published")
    equal(len(await s.direct.jobs("held", "running")), 2 if timeout < 10 else 0, "jobs that were not acked")


REPEATED = "publishes, reads, acks, cancels, pauses are repeated"


@scenario(f"Connections that are refused: {REPEATED}.", "no_repeats")
async def refused(s: Stage) -> None:
    c = await s.client(retry_for=25)
    s.proxy.refuse()
    asked = asyncio.ensure_future(c.publish(queue="q", data=b"x"))
    sized = asyncio.ensure_future(c.size(queue="q"))
    await asyncio.sleep(1)
    check(not asked.done() and not sized.done(), "it has given up")
    await s.proxy.listen()
    await asked
    await sized
    equal((await c.size(queue="q"))["size"], 1, "jobs in the queue")


@scenario(f"A connection that is reset before the request was done: {REPEATED}.", "no_repeats")
async def reset_before_it(s: Stage) -> None:
    await all_repeated(s, reset_before)


@scenario(f"A connection that is reset after it was done: {REPEATED}, and it is done once.", "no_repeats no_key")
async def reset_after_it(s: Stage) -> None:
    await all_repeated(s, reset_after)


@scenario(f"An answer that breaks off: {REPEATED}.", "no_repeats")
async def reset_within_it(s: Stage) -> None:
    await all_repeated(s, reset_within)


@scenario(f"A connection that is closed in order without an answer: {REPEATED}.", "no_repeats")
async def closed_without_answer(s: Stage) -> None:
    await all_repeated(s, dropped)


@scenario(f"No answer in time: {REPEATED}.", "no_repeats", seconds=90)
async def no_answer(s: Stage) -> None:
    await all_repeated(s, never, timeout=3)


@scenario(f"No answer in time, though it was done: {REPEATED}.", "no_repeats no_key", seconds=90)
async def no_answer_though_done(s: Stage) -> None:
    await all_repeated(s, never_after, timeout=3)


@scenario(
    "A cancel by key whose answer was lost is repeated: that there is none any more means that it was done.",
    "no_repeats",
)
async def cancel_by_key(s: Stage) -> None:
    c = await s.client()
    job = await s.direct.put("q", "x", key="k", delay=60)
    s.proxy.rule("cancel_key", reset_after)
    equal(await c.cancel(queue="q", key="k"), {}, "the cancel")
    equal([e.answer.status for e in s.proxy.seen("cancel_key") if e.answer], [404], "the answer that came")
    await s.gone("q", job)
    s.proxy.rule("cancel_key", answers(503))
    await c.refused("cancel", "not_found", queue="q", key="k")


def status_scenario(status: int) -> None:
    async def play(s: Stage) -> None:
        await all_repeated(s, answers(status, {"error": "not now"}))

    play.__name__ = f"status_{status}"
    scenario(f"{status}: {REPEATED}.", "no_repeats")(play)


for each in (408, 500, 502, 504, 507):
    status_scenario(each)


async def dying(s: Stage, count: int) -> None:
    for i in range(count):
        await s.direct.put("q", str(i))
        taken = await s.direct.take("q")
        assert taken is not None
        await s.direct.hold("bury", taken)


async def every_call(s: Stage, fault: Action, low: float) -> None:
    c = await s.client(retry_for=25)
    await dying(s, 3)
    ops = await prepared(s, c)
    # Each iteration needs new jobs.
    ids = [await s.direct.put("more", str(i), tries=3) for i in range(3)]
    await c.consume(queues=["more"], count=3, ttr=60)
    ops |= {
        "consume": {"queues": ["q"]}, "touch": {"job_id": ids[0]}, "release": {"job_id": ids[1]}, "bury": {"job_id": ids[2]},
        "respawn": {"queue": "q", "oldest": 1}, "delete_dead": {"queue": "q", "oldest": 1}, "destroy": {"queue": "q"},
    }  # fmt: skip
    for op, fields in ops.items():
        s.proxy.rule("", fault)
        before = len(s.proxy.exchanges)
        await getattr(c, op.removesuffix("_key"))(**fields)
        sent = s.proxy.exchanges[before:]
        equal(len(sent), 2, f"requests of {op}")
        check(sent[1].at - (sent[0].answered_at or 0) >= low, f"{op} is repeated before Retry-After has ended")


@scenario("After 503, which has done nothing, every call is repeated.", "no_repeats")
async def every_call_after_503(s: Stage) -> None:
    await every_call(s, answers(503, {"error": "the server is shutting down"}), 0.04)


@scenario(
    "After 429, which has done nothing, every call is repeated, not before Retry-After.",
    "no_repeats ignores_retry_after",
    seconds=60,
)
async def every_call_after_429(s: Stage) -> None:
    await every_call(
        s, answers(429, {"msg": "token(..) produce reach the limit rate, please retry later"}, Retry_After="1"), 1.0
    )


@scenario("After 409 `under way` a publish is repeated, not before Retry-After.", "no_repeats ignores_retry_after")
async def publish_after_409_under_way(s: Stage) -> None:
    c = await s.client()
    for op, fields in (("publish", {"data": b"x"}), ("publish_many", {"jobs": [{"data": ""}]})):
        s.proxy.rule(op, answers(409, {"error": "a request with this idempotency key is under way"}, Retry_After="1"))
        await getattr(c, op)(queue="q", **fields)
        first, second = s.proxy.seen(op)
        check(second.at - (first.answered_at or 0) >= 1.0, "it is repeated before Retry-After has ended")


NEVER: dict[str, dict[str, Any]] = {
    "consume": {"queues": ["q"]},
    "respawn": {"queue": "q", "oldest": 1},
    "delete_dead": {"queue": "q", "oldest": 1},
    "destroy": {"queue": "q"},
}


@scenario(
    "Never repeated otherwise: consume, respawning or deleting the oldest, destroy.",
    "repeats_consume repeats_destroy",
    seconds=90,
)
async def never_repeated(s: Stage) -> None:
    c = await s.client(timeout=3)
    faults: list[tuple[Action, str]] = [
        (reset_before, "network"), (reset_after, "network"), (reset_within, "network"), (dropped, "network"),
        (never, "timeout"), (answers(408, {"error": "timeout while reading the body"}), "timeout"),
        (answers(500, {"error": "internal error"}), "server"), (answers(502), "unavailable"), (answers(504), "unavailable"),
        (answers(507, {"error": "full"}), "full"),
    ]  # fmt: skip
    for op, fields in NEVER.items():
        for fault, kind in faults:
            await s.direct.put("q", "x", tries=9)
            rule = s.proxy.rule("", fault)
            before = len(s.proxy.exchanges)
            await c.refused(op, kind, **fields)
            equal((len(s.proxy.exchanges) - before, len(rule.seen)), (1, 1), f"requests of {op} after {kind}")


async def gaps(s: Stage, c: Client) -> list[float]:
    """The pauses between an answer and the repeat."""
    before = len(s.proxy.exchanges)
    await c.refused("publish", queue="q", data=b"x")
    sent = s.proxy.exchanges[before:]
    return [later.at - (sooner.answered_at or 0) for sooner, later in itertools.pairwise(sent)]


@scenario(
    "Between two there is a pause, random between half and all of 0.1 s · 2ⁿ, 5 s at most.",
    "no_pause long_pause",
    seconds=60,
)
async def pauses_grow(s: Stage) -> None:
    c = await s.client(retry_for=22)
    s.proxy.rule("publish", answers(502), times=None)
    found = await gaps(s, c)
    check(len(found) >= 6, f"in 22 s there were only {len(found)} repeats: {found}")
    for n, gap in enumerate(found):
        top = min(0.1 * 2**n, 5.0)
        within(gap, top / 2 - 0.005, top + SLACK, f"pause {n} of {[round(gap, 3) for gap in found]}")


@scenario("The pauses are random: many clients do not come back together.", "same_pause")
async def pauses_are_random(s: Stage) -> None:
    c = await s.client(retry_for=2.5)
    s.proxy.rule("publish", answers(502), times=None)
    firsts = sorted([(await gaps(s, c))[2] for _ in range(6)])
    check(firsts[-1] - firsts[0] > 0.03, f"six pauses that should be random: {firsts}")


@scenario("A pause is never less than Retry-After.", "ignores_retry_after")
async def retry_after(s: Stage) -> None:
    c = await s.client()
    s.proxy.rule("publish", answers(503, {"error": "the server is shutting down"}, Retry_After="2"))
    await c.publish(queue="q", data=b"x")
    first, second = s.proxy.seen("publish")
    within(second.at - (first.answered_at or 0), 2.0, 2.0 + 2 * SLACK, "the pause")


@scenario("`retry_for` is for all of a call: a longer Retry-After is not waited for.", "ignores_retry_for")
async def retry_after_beyond(s: Stage) -> None:
    c = await s.client(retry_for=2)
    s.proxy.rule("publish", answers(503, {"error": "the server is shutting down"}, Retry_After="60"), times=None)
    began = s.now()
    error = await c.refused("publish", "unavailable", queue="q", data=b"x")
    check(s.now() - began < 2 + 2 * SLACK, f"it has waited for {s.now() - began:.1f} s")
    equal(error["retry_after"], 60, "retry_after of the error")


@scenario("`timeout` is for one request, `retry_for` for all of a call.", "ignores_timeout ignores_retry_for")
async def bounds(s: Stage) -> None:
    c = await s.client(timeout=1, retry_for=4)
    s.proxy.rule("publish", never, times=None)
    began = s.now()
    error = await c.refused("publish", "timeout", queue="q", data=b"x")
    took = s.now() - began
    within(took, 2.0, 5.0 + 2 * SLACK, "seconds of a call with 1 s for a request and 4 s for all")
    sent = s.proxy.seen("publish")
    check(2 <= len(sent) <= 4, f"{len(sent)} requests")
    for exchange in sent:
        await s.until(partial(getattr, exchange, "ended_at"), "the end of a request that got no answer")
        within(
            (exchange.ended_at or 0) - exchange.at,
            0.0 if exchange is sent[-1] else 0.4,
            1 + SLACK,
            "seconds of a request",
        )
    equal((error["status"], error["retryable"]), (None, True), "status and retryable")


@scenario("`retry_for` 0 is off.", "always_repeats")
async def off(s: Stage) -> None:
    c = await s.client(retry_for=0)
    for fault, kind in (
        (reset_before, "network"),
        (answers(503, {"error": "x"}), "unavailable"),
        (answers(500, {"error": "x"}), "server"),
    ):
        before = len(s.proxy.exchanges)
        s.proxy.rule("publish", fault)
        await c.refused("publish", kind, queue="q", data=b"x")
        equal(len(s.proxy.exchanges) - before, 1, "requests")


@scenario(
    "`retry_for` is 540 s at most: beyond ten minutes the server has forgotten the Idempotency-Key.",
    "unbounded_retry_for",
)
async def at_most(s: Stage) -> None:
    from ..program import Refused

    await s.client(retry_for=540)
    try:
        await s.client(retry_for=541)
    except Refused as refused:
        equal(refused.error["type"], "invalid", "the type of the error")
    else:
        check(False, "a retry_for of 541 s is taken")


@scenario("A connection that broke while nobody used it is not an error.", "no_repeats")
async def broken_reused_connection(s: Stage) -> None:
    c = await s.client()
    await c.size(queue="q")
    s.proxy.cut()
    await c.publish(queue="q", data=b"x")
    s.proxy.rule("size", answers(200, {"namespace": s.namespace, "queue": "q", "size": 1}))
    await c.size(queue="q")
    s.proxy.cut()
    # A consume is never retried once it was sent; a connection known to be broken is not used for it.
    job = await c.publish(queue="q", data=b"y")
    check(job["job_id"], "no job")
    equal((await c.size(queue="q"))["size"], 2, "jobs in the queue")
