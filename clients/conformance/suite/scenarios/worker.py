"""What a worker asks for, how often, and when it gives up."""

import asyncio
import itertools
from typing import Any

from ..program import Refused
from ..proxy import answers, delayed, reset_before
from ..registry import scenario
from ..stage import SLACK, Broken, Stage, check, do, equal, within
from .errors import without_receipt


@scenario("Defaults: concurrency 10, ttr 30 s, poll 20 s; a poll asks for receipts.", "other_defaults")
async def defaults(s: Stage) -> None:
    await s.worker(concurrency=None)
    poll = await s.request("consume")
    wanted = {"count": "10", "ttr": "30", "timeout": "20", "receipt": "1"}
    equal({key: poll.query.get(key) for key in wanted}, wanted, "the query")
    check("weights" not in poll.query, "weights that nobody asked for")


@scenario("`ttr` is whole seconds, 3 at least.", "any_ttr")
async def ttr_bounds(s: Stage) -> None:
    for wrong in (2, 3.5, 0):
        try:
            await s.worker(ttr=wrong)
        except Refused as refused:
            equal(refused.error["type"], "invalid", f"the type of the error of ttr {wrong}")
        else:
            raise Broken(f"a ttr of {wrong} s is taken")
    await s.worker(ttr=3)
    equal((await s.request("consume")).query.get("ttr"), "3", "ttr of the poll")


@scenario("Of several queues the first that has jobs goes first, in the order of their registration.", "sorts_queues")
async def order(s: Stage) -> None:
    ids = {queue: await s.direct.put(queue, "x") for queue in ("a", "m", "z")}
    w = await s.worker(queues=["z", "a", "m"])
    await w.event("start", 3)
    equal([e["job"]["job_id"] for e in w.seen("start")], [ids["z"], ids["a"], ids["m"]], "the order")
    paths = {e.request.path.rsplit("/", 1)[1].replace("%2C", ",") for e in s.proxy.seen("consume")}
    equal(paths, {"z,a,m"}, "what polls name")


@scenario("Or weights, one for each queue.", "drops_weights")
async def weights(s: Stage) -> None:
    await s.worker(queues={"a": 5, "b": 3})
    poll = await s.request("consume")
    named = poll.request.path.rsplit("/", 1)[1].replace("%2C", ",").split(",")
    pairs = dict(zip(named, poll.query.get("weights", "").split(","), strict=False))
    equal(pairs, {"a": "5", "b": "3"}, "queues and weights")


@scenario("`concurrency`: handlers at a time, over all queues.", "more_slots")
async def concurrency(s: Stage) -> None:
    for i in range(8):
        await s.direct.put("ab"[i % 2], do({"wait": s.gate("g")}))
    w = await s.worker(queues=["a", "b"], concurrency=5, drain=5)
    await w.event("start", 5)
    await asyncio.sleep(0.7)
    equal(len(w.seen("start")), 5, "handlers at a time")
    equal(max(e["running"] for e in w.seen("start")), 5, "running")
    await s.open("g")
    await w.event("end", 8)
    check(max(e["running"] for e in w.seen("start")) <= 5, "more than 5 handlers at a time")


@scenario("`count` of a poll is the free slots, and there is none while no slot is free.", "fetches_ahead")
async def nothing_ahead(s: Stage) -> None:
    w = await s.worker(concurrency=3)
    first = await s.request("consume")
    equal(first.query.get("count"), "3", "count of the first poll")
    await s.direct.put("q", do({"wait": s.gate("g")}))
    await w.event("start", 1)
    equal((await s.request("consume", 2)).query.get("count"), "2", "count with one handler at work")
    await s.direct.put("q", do({"wait": s.gate("g")}))
    await w.event("start", 2)
    equal((await s.request("consume", 3)).query.get("count", "1"), "1", "count with two at work")
    await s.direct.put("q", do({"wait": s.gate("h")}))
    await w.event("start", 3)
    await asyncio.sleep(1)
    equal(len(s.proxy.seen("consume")), 3, "polls while no slot is free")
    await s.open("h")
    equal((await s.request("consume", 4)).query.get("count", "1"), "1", "count when one slot is free again")
    await s.open("g")


@scenario("100 jobs at most are asked for at a time.", "fetches_ahead")
async def hundred(s: Stage) -> None:
    await s.worker(concurrency=150)
    equal((await s.request("consume")).query.get("count"), "100", "count")


@scenario("One poll is open at a time, for all queues: N handlers need one connection to wait.", "two_polls")
async def one_poll(s: Stage) -> None:
    w = await s.worker(queues=["a", "b", "c"], concurrency=50, poll=1)
    await s.request("consume", 4, done=True)
    await s.direct.put("b", "x")
    await w.event("end")
    await s.request("consume", 6)
    polls = s.proxy.seen("consume")
    for sooner, later in itertools.pairwise(polls):
        check(not sooner.open and later.at >= (sooner.answered_at or 0), "two polls are open at a time")
    await asyncio.sleep(0.3)
    check(len(s.proxy.connections) <= 2, f"{len(s.proxy.connections)} connections: one waits, and one has acked")
    check(s.proxy.opened <= 2, f"{s.proxy.opened} connections were opened")


@scenario("A poll that came back empty at its time-out is followed by the next at once.", "pauses_after_empty")
async def next_at_once(s: Stage) -> None:
    await s.worker(poll=1)
    await s.request("consume", 5)
    polls = s.proxy.seen("consume")
    gaps = [later.at - (sooner.answered_at or 0) for sooner, later in itertools.pairwise(polls)]
    # A busy machine may be late once, not each time.
    check(sorted(gaps)[1] < 0.3, f"the pauses between polls: {gaps}")
    equal({e.query.get("timeout") for e in polls}, {"1"}, "timeout")


EMPTY = answers(404, {"msg": "no job available"})


@scenario("A poll that came back empty before half of its time-out counts as a failure.", "polls_in_a_loop")
async def empty_at_once(s: Stage) -> None:
    s.proxy.rule("consume", EMPTY, times=None)
    await s.worker(poll=4)
    await s.request("consume", 6, within=15)
    polls = s.proxy.seen("consume")
    gaps = [later.at - (sooner.answered_at or 0) for sooner, later in itertools.pairwise(polls)]
    for n, gap in enumerate(gaps[:5]):
        within(gap, 0.1 * 2**n / 2 - 0.005, 0.1 * 2**n + SLACK, f"pause {n} of {gaps}")


@scenario(
    "After a failure: pauses as for repeats; after the first answer that works they are forgotten.", "polls_in_a_loop"
)
async def pauses(s: Stage) -> None:
    s.proxy.rule("consume", answers(502), times=2)
    s.proxy.rule("consume", reset_before, times=2)
    w = await s.worker(poll=1)
    await s.request("consume", 5)
    failed = s.proxy.seen("consume")[:5]
    ends = [e.answered_at or e.ended_at or 0 for e in failed]
    gaps = [later.at - end for end, later in zip(ends, failed[1:], strict=False)]
    for n, gap in enumerate(gaps):
        within(gap, 0.1 * 2**n / 2 - 0.005, 0.1 * 2**n + SLACK, f"pause {n} of {gaps}")
    await s.direct.put("q", "x")
    await w.event("end")
    # One poll has worked by then.
    count = len(s.proxy.seen("consume"))
    s.proxy.rule("consume", answers(502))
    rule = s.proxy.rules[-1]
    await s.until(lambda: rule.seen, "one more poll that fails")
    failed_again = rule.seen[0]
    at = s.proxy.seen("consume").index(failed_again)
    again = await s.request("consume", at + 2)
    check(count <= at + 1, "polls went on")
    within(
        again.at - (failed_again.answered_at or 0),
        0.045,
        0.1 + SLACK,
        "the pause after a poll that worked and one that failed",
    )


@scenario("After a failure a poll honours Retry-After.", "ignores_retry_after")
async def retry_after(s: Stage) -> None:
    s.proxy.rule("consume", answers(503, {"error": "the server is shutting down"}, Retry_After="2"))
    await s.worker(poll=1)
    again = await s.request("consume", 2)
    within(again.at - (s.proxy.seen("consume")[0].answered_at or 0), 2.0, 2 + 2 * SLACK, "the pause")


@scenario("The request of a poll may take 10 s more than `poll`.", "short_poll")
async def late_poll(s: Stage) -> None:
    c = await s.client(timeout=1)
    job = await s.direct.put("q", "x")
    s.proxy.rule("consume", delayed(after=6))
    w = await s.worker(c, poll=1)
    await w.started(job, within=12)
    await w.ended(job)
    check(s.proxy.seen("consume")[0].answered_at, "the poll was given up")


def fatal(name: str, sentence: str, status: int, answer: Any, kind: str) -> None:
    async def play(s: Stage) -> None:
        s.proxy.rule(
            "consume", EMPTY if status == 0 else answers(status, answer if answer is not None else without_receipt(s))
        )
        w = await s.worker(poll=1)
        event = await w.event("stopped")
        check(event["error"], f"the worker has ended without an error: {event}")
        error = event["error"]
        equal(error["type"] if isinstance(error, dict) else error, kind, "the type of the error that ended it")
        polls = len(s.proxy.seen("consume"))
        await asyncio.sleep(0.7)
        equal((polls, len(s.proxy.seen("consume"))), (1, 1), "polls, and some time later")

    play.__name__ = name
    scenario(sentence, "never_gives_up")(play)


fatal("ends_at_400", "400 ends the worker with that error.", 400, {"error": "too many queues"}, "invalid")
fatal("ends_at_401", "401 ends the worker with that error.", 401, {"error": "invalid token"}, "unauthorized")
fatal("ends_at_403", "403 ends the worker with that error.", 403, {"error": "no"}, "forbidden")
fatal(
    "ends_at_404",
    "A 404 that is not `no job available` ends the worker with that error.",
    404,
    {"error": "pool not found"},
    "not_found",
)
fatal("ends_at_old_server", "404 `api not found` ends the worker.", 404, {"error": "api not found"}, "unsupported")
fatal("ends_without_receipt", "A job without a receipt ends the worker.", 200, None, "unsupported")


@scenario(
    "`backoff`: 5 s, 30 s, 5 min, 30 min, 2 h after the 1st, 2nd … failure, the last repeats, each ±10 %.",
    "other_backoff",
)
async def default_backoff(s: Stage) -> None:
    told = {
        "": 5,
        "the mail server is away": 5,
        "attempt 1: a": 30,
        "attempt 2: b": 300,
        "attempt 3: c": 1800,
        "attempt 4: d": 7200,
        "attempt 9: e": 7200,
    }
    jobs: dict[str, tuple[str, int]] = {}
    for number, (reason, delay) in enumerate(told.items()):
        job = await s.direct.put(f"q{number}", do({"fail": "boom"}), tries=9)
        taken = await s.direct.take(f"q{number}", ttr=30)
        assert taken is not None
        await s.direct.hold("release", taken, reason.encode())
        jobs[job] = reason, delay
    w = await s.worker(queues=[f"q{number}" for number in range(len(told))], concurrency=3)
    for job, (reason, delay) in jobs.items():
        released = await s.request("release", job_id=job, done=True, within=12)
        within(float(released.query.get("delay", "0")), delay * 0.9, delay * 1.1, f"delay after {reason!r}")
        number = int(reason.split(" ")[1][:-1]) + 1 if reason.startswith("attempt") else 1
        equal(released.request.body, b"attempt %d: boom" % number, f"the reason after {reason!r}")
        finish = await w.finished(job)
        equal(finish["outcome"], "released", "outcome")
    delays = [float(e.query["delay"]) for e in s.requests("release")][:2]
    check(delays[0] != delays[1], "the back-off is not spread")


@scenario(
    "`backoff` is a list; the last repeats; a try is spent each time; with none left the job is dead.", "other_backoff"
)
async def own_backoff(s: Stage) -> None:
    job = await s.direct.put("q", do({"fail": "boom"}), tries=4)
    w = await s.worker(backoff=[0.3, 1], poll=2)
    finish = await w.finished(job, 4, within=20)
    equal(finish["outcome"], "released", "outcome of the release that was the job's death")
    sent = s.requests("release", job)
    for exchange, low in zip(sent, (0.27, 0.9, 0.9, 0.9), strict=True):
        within(float(exchange.query.get("delay", "0")), low, low / 0.9 * 1.1, "delay")
    equal([e.request.body for e in sent], [b"attempt %d: boom" % n for n in (1, 2, 3, 4)], "reasons")
    equal((await s.state("q", job, "dead"))["reason"], "attempt 4: boom", "reason of the dead job")


@scenario("The requests of a job: one in a poll, one in an ack; nothing is asked beside it.", "looks_at_each_job")
async def few_requests(s: Stage) -> None:
    await s.direct.put_many("q", ["x"] * 60)
    w = await s.worker(concurrency=20)
    await w.event("end", 60, within=15)
    await s.until(lambda: len(w.seen("hook", name="finish")) >= 60, "60 results")
    verbs = [e.verb for e in s.proxy.exchanges]
    equal(set(verbs) - {"consume", "ack", "ack_many"}, set(), "other requests")
    equal(len([e for e in s.proxy.seen("consume") if e.request.header("Idempotency-Key")]), 0, "polls with a key")


@scenario("For a bound per queue take two workers: they share a client.", "more_slots")
async def share_a_client(s: Stage) -> None:
    c = await s.client()
    for queue in ("a", "b"):
        await s.direct.put_many(queue, [do({"sleep": 0.3})] * 4)
    a = await s.worker(c, "a", concurrency=1)
    b = await s.worker(c, "b", concurrency=2)
    await a.event("end", 4)
    await b.event("end", 4)
    equal([max(e["running"] for e in w.seen("start")) for w in (a, b)], [1, 2], "handlers at a time")
    check(await a.stop(), "the first worker has not ended clean")
    job = await s.direct.put("b", "x")
    await b.ended(job)
