"""What becomes of a job: the rows of the table."""

import asyncio
from typing import Any

from ..proxy import answers
from ..registry import scenario
from ..stage import SLACK, Stage, Worker, check, do, equal, within


async def one(s: Stage, body: bytes | str, tries: int = 3, **options: Any) -> tuple[str, Worker]:
    """A job, and a worker that has finished it."""
    job = await s.direct.put("q", body, tries=tries)
    given: dict[str, Any] = {"backoff": [60], "poll": 5} | options
    w = await s.worker(**given)
    await w.finished(job, within=15)
    return job, w


def outcome(w: Worker, job: str) -> str:
    (finish,) = [e for e in w.seen("hook", name="finish") if e["job_id"] == job]
    word: str = finish["outcome"]
    return word


@scenario("The handler returns: ack, with the receipt.", "acks_without_receipt")
async def returns(s: Stage) -> None:
    job, w = await one(s, "x")
    equal((w.seen("end")[0]["result"], outcome(w, job)), ("ok", "acked"), "result and outcome")
    equal([bool(e.query.get("receipt")) for e in s.requests("ack cancel", job)], [True], "acks with a receipt")
    await s.gone("q", job)


@scenario("Returns an error: release after back-off, a try spent, the reason is `attempt <n>: <text>`.", "other_reason")
async def fails(s: Stage) -> None:
    job, w = await one(s, do({"fail": "boom ☠"}))
    equal((w.seen("end")[0]["result"], outcome(w, job)), ("error", "released"), "result and outcome")
    found = await s.state("q", job, "delayed")
    equal((found["remain_tries"], found["reason"]), (2, "attempt 1: boom ☠"), "tries and reason")
    (sent,) = s.requests("release", job)
    within(float(sent.query.get("delay", 0)), 54, 66, "delay")


@scenario("With no try left it is dead.", "other_reason")
async def fails_last(s: Stage) -> None:
    job, w = await one(s, do({"fail": "boom"}), tries=1)
    equal(outcome(w, job), "released", "outcome")
    equal((await s.state("q", job, "dead"))["reason"], "attempt 1: boom", "reason")


@scenario(
    "Panics: as an error, `panic: ` before the text; the stack is logged, the worker goes on.",
    "dies_of_panic other_reason hides_stack",
    own=True,
)
async def panics(s: Stage) -> None:
    job, w = await one(s, do({"panic": "ouch-4711"}))
    equal((w.seen("end")[0]["result"], outcome(w, job)), ("panic", "released"), "result and outcome")
    found = await s.state("q", job, "delayed")
    equal((found["remain_tries"], found["reason"]), (2, "attempt 1: panic: ouch-4711"), "tries and reason")
    said = s.program.said()
    check(
        "ouch-4711" in said and (said.count("\n") > 3 or said.count("\\n") > 3), f"no stack in the log: {said[-600:]!r}"
    )
    other = await s.direct.put("q", "x")
    equal((await w.finished(other))["outcome"], "acked", "outcome of the next job")


@scenario("Says retry after d: the same with that delay.", "other_delay")
async def retry(s: Stage) -> None:
    job, w = await one(s, do({"retry": {"after": 77, "text": "soon"}}))
    equal(outcome(w, job), "released", "outcome")
    found = await s.state("q", job, "delayed")
    equal((found["remain_tries"], found["reason"]), (2, "attempt 1: soon"), "tries and reason")
    equal(float(s.requests("release", job)[0].query.get("delay", 0)), 77, "delay")


@scenario("Says snooze for d: release after d, the try given back, no reason.", "snooze_spends")
async def snooze(s: Stage) -> None:
    job, w = await one(s, do({"snooze": 88.5}), tries=1)
    equal(outcome(w, job), "snoozed", "outcome")
    found = await s.state("q", job, "delayed")
    equal((found["remain_tries"], found["reason"] or None), (1, None), "tries and reason")
    equal(float(s.requests("release", job)[0].query.get("delay", 0)), 88.5, "delay")
    equal(s.requests("get"), [], "looks at the attempt, which a snooze does not need")


@scenario("Says permanent: bury, with the reason.", "buries_nothing")
async def permanent(s: Stage) -> None:
    job, w = await one(s, do({"permanent": "no such user"}))
    equal(outcome(w, job), "buried", "outcome")
    reason = (await s.state("q", job, "dead"))["reason"]
    equal(reason, "attempt 1: no such user", "reason")


@scenario("`json()` cannot read the body: bury, with the reason.", "buries_nothing")
async def unreadable(s: Stage) -> None:
    for raw in (b"json:{", b"json:\xff\xfe"):
        job, w = await one(s, raw)
        equal(outcome(w, job), "buried", "outcome")
        check((await s.state("q", job, "dead"))["reason"], "a dead job without a reason")
        await w.stop()


@scenario("Acked the job itself: nothing more, whatever it returns.", "result_after_own")
async def acked_itself(s: Stage) -> None:
    for last in ({"attempt": True}, {"fail": "late"}, {"permanent": "late"}):
        job = await s.direct.put("q", do({"ack": True}, {"sleep": 0.1}, last), tries=3)
        w = await s.worker()
        await w.ended(job)
        await asyncio.sleep(0.5)
        acks = len(s.requests("ack", job)) + len(s.requests("ack_many"))
        equal((acks, s.requests("release bury", job)), (1, []), "acks, and other results")
        await s.gone("q", job)
        await w.stop()


@scenario("A touch by hand within a handler: the result has its receipt.", "old_receipts")
async def touched_itself(s: Stage) -> None:
    job, w = await one(s, do({"touch": 20}, {"sleep": 0.1}, {"touch": 30}))
    equal(outcome(w, job), "acked", "outcome")
    equal([e.query.get("ttr") for e in s.requests("touch", job)], ["20", "30"], "ttr of the touches")
    touched = s.requests("touch", job)[1].answer
    assert touched is not None
    equal(s.requests("ack", job)[0].query.get("receipt"), touched.json()["receipt"], "the receipt of the ack")


@scenario("A touch by hand is repeated after a 503, which has done nothing, as every call is.", "gives_up_touches")
async def touched_itself_again(s: Stage) -> None:
    job = await s.direct.put("q", do({"touch": 20}), tries=3)
    s.proxy.rule("touch", answers(503, {"error": "the server is shutting down"}))
    w = await s.worker(backoff=[60])
    equal((await w.finished(job))["outcome"], "acked", "outcome")
    equal(len(s.requests("touch", job)), 2, "touches")


@scenario("A touch by hand for a shorter time: the next touch comes a third of it later.", "no_touches")
async def touched_shorter(s: Stage) -> None:
    job = await s.direct.put("q", do({"touch": 3}, {"sleep": 7}), tries=3)
    w = await s.worker(ttr=30)
    by_hand = await s.request("touch", 1, job_id=job, done=True)
    touch = await s.request("touch", 2, job_id=job)
    equal((by_hand.query.get("ttr"), touch.query.get("ttr")), ("3", "30"), "ttr of the touches")
    within(touch.at - (by_hand.answered_at or 0), 0.88, 1.1 + SLACK, "seconds from the touch by hand to the next")
    finish = await w.finished(job, within=12)
    equal((finish["outcome"], len(w.seen("start"))), ("acked", 1), "outcome, and how often it was handed out")


@scenario("Passes time_limit: cancelled; an error within grace counts as `time limit`.", "no_time_limit")
async def time_limit(s: Stage) -> None:
    job, w = await one(s, do({"sleep": 30}), time_limit=1, grace=5)
    told = await w.event("cancelled", job_id=job)
    equal(told["cause"], "time_limit", "cause")
    within(told["_at"] - w.seen("start")[0]["_at"], 0.9, 1 + SLACK, "seconds until the cancellation")
    equal(outcome(w, job), "released", "outcome")
    found = await s.state("q", job, "delayed")
    equal((found["remain_tries"], found["reason"]), (2, "attempt 1: time limit"), "tries and reason")
    within(float(s.requests("release", job)[0].query.get("delay", 0)), 54, 66, "delay")


@scenario(
    "A handler that passes time_limit and returns without an error within grace has done its job.", "no_time_limit"
)
async def time_limit_and_done(s: Stage) -> None:
    job, w = await one(s, do({"swallow": True}, {"sleep": 30}), time_limit=1, grace=5)
    equal((w.seen("cancelled")[0]["cause"], outcome(w, job)), ("time_limit", "acked"), "cause and outcome")


@scenario("Later than grace: the same, and touches end; the slot is free when it returns, however late.", "more_slots")
async def time_limit_ignored(s: Stage) -> None:
    job = await s.direct.put("q", do({"ignore": 7}), tries=3)
    other = await s.direct.put("q", "x")
    w = await s.worker(time_limit=0.5, grace=1, ttr=3, backoff=[60])
    sent = await s.request("release", job_id=job, done=True)
    told = await w.event("cancelled", job_id=job)
    within(sent.at - told["_at"], 0.8, 1 + SLACK, "seconds from the cancellation to the release")
    equal(sent.request.body, b"attempt 1: time limit", "the reason")
    finish = await w.finished(job, within=2)
    equal(finish["outcome"], "released", "outcome")
    within(finish["seconds"], 1.4, 1.5 + SLACK, "seconds of the handler until then")
    await asyncio.sleep(2.5)
    equal([e for e in s.requests("touch", job) if e.at > sent.at], [], "touches after the release")
    equal(len(w.seen("start")), 1, "handlers that have begun while the slot is taken")
    ended = await w.ended(job)
    begun = await w.started(other)
    check(begun["_at"] >= ended["_at"] - 0.05, "the slot was free before the handler had returned")
    equal(len(s.requests("release ack bury", job)), 1, "results")


@scenario(
    "A slot is free when the handler returns: the next job begins before the result was sent.", "slot_after_result"
)
async def slot_is_free(s: Stage) -> None:
    from ..proxy import delayed

    first = await s.direct.put("q", "x")
    second = await s.direct.put("q", "y")
    s.proxy.rule("ack", delayed(before=2))
    w = await s.worker()
    a = await w.started(first)
    b = await w.started(second)
    within(b["_at"] - a["_at"], 0, 1.5, "seconds between the two jobs while the first ack hangs")
    finish = await w.finished(first)
    within(finish["seconds"], 0, 1.5, "seconds of the handler, without those of the ack")


@scenario(
    "The attempt is one more than the number in the reason; it is read when a handler failed or asks.",
    "looks_at_each_job other_attempt",
)
async def attempt(s: Stage) -> None:
    _plain, w = await one(s, "x")
    equal(s.requests("get"), [], "looks at a job that went well")
    asked = await s.direct.put("q", do({"attempt": True}), tries=5)
    equal((await w.event("attempt", job_id=asked))["attempt"], 1, "the first attempt")
    equal(len(s.requests("get", asked)), 1, "looks at the job")
    await w.stop()
    again = await s.direct.put("q", do({"attempt": True}, {"fail": "boom"}), tries=5)
    taken = await s.direct.take("q")
    assert taken is not None
    # In push's format.
    await s.direct.hold("release", taken, b"attempt 7: 503: the shop is closed")
    w2 = await s.worker(backoff=[60])
    equal((await w2.event("attempt", job_id=again))["attempt"], 8, "the attempt after `attempt 7`")
    await w2.finished(again)
    equal(len(s.requests("get", again)), 1, "looks at a job whose handler has asked and has failed")
    equal((await s.state("q", again, "delayed"))["reason"], "attempt 8: boom", "reason")


@scenario("A reason is cut to 4 KiB in whole characters.", "long_reason")
async def long_reason(s: Stage) -> None:
    for text in ("é" * 3000, "a" + "漢" * 2000, "x" * 5000, "☕🎉" * 1000):
        for end in ({"fail": text}, {"permanent": text}):
            job, w = await one(s, do(end))
            (sent,) = s.requests("release bury", job)
            raw = sent.request.body
            check(4090 <= len(raw) <= 4096, f"a reason of {len(raw)} bytes")
            equal(raw.decode(), ("attempt 1: " + text)[: len(raw.decode())], "the reason")
            equal(outcome(w, job), "released" if "fail" in end else "buried", "outcome")
            await w.stop()


@scenario("An end with `times` is passed over: the job fails twice, then it is done.", "other_delay")
async def fails_twice(s: Stage) -> None:
    job = await s.direct.put("q", do({"retry": {"after": 0.2, "text": "x"}, "times": 2}), tries=5)
    w = await s.worker(poll=5)
    finish = await w.finished(job, 3, within=20)
    equal(finish["outcome"], "acked", "outcome")
    equal([e["outcome"] for e in w.seen("hook", name="finish")], ["released", "released", "acked"], "outcomes")
    equal([e.query.get("delay") for e in s.requests("release", job)], ["0.2", "0.2"], "delays")
