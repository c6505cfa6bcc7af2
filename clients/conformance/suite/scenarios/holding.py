"""How a job is kept while its handler works, and when it is given up."""

import asyncio
import itertools
import json
from typing import Any

from ..proxy import Exchange, answers, delayed, never, never_after, reset_after, trickled
from ..registry import scenario
from ..stage import SLACK, Stage, Worker, check, do, equal, within


def handed(s: Stage, job_id: str) -> Exchange:
    """The poll that has brought the job, the last time."""
    found = [
        e for e in s.proxy.seen("consume") if e.answer and e.answer.status == 200 and job_id.encode() in e.answer.body
    ]
    check(found, f"no poll has brought {job_id}")
    return found[-1]


def receipt(s: Stage, job_id: str) -> dict[str, Any]:
    """The job as the poll has brought it, with its receipt."""
    answer = handed(s, job_id).answer
    assert answer is not None
    jobs = answer.json()
    found: dict[str, Any] = next(job for job in (jobs if isinstance(jobs, list) else [jobs]) if job["job_id"] == job_id)
    return found


def answered(exchange: Exchange) -> float:
    assert exchange.answered_at is not None
    return exchange.answered_at


async def acked(s: Stage, w: Worker, job: str, within: float = 15) -> None:
    """The job was done once and acked."""
    finish = await w.finished(job, within=within)
    equal(finish["outcome"], "acked", "outcome")
    await s.gone("q", job)
    equal(len([e for e in w.seen("start") if e["job"]["job_id"] == job]), 1, "how often it was handed out")


@scenario(
    "A job is touched when a third of its ttr has passed (±10 %), and again a third after each answer.", "late_touches"
)
async def thirds(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 12}))
    s.proxy.rule("touch", delayed(after=1.2))
    w = await s.worker(ttr=6)
    first = await s.request("touch", 1, job_id=job, done=True)
    within(first.at - answered(handed(s, job)), 1.78, 2.2 + SLACK, "seconds from the poll's answer to the touch")
    equal(first.query.get("ttr"), "6", "ttr of the touch")
    second = await s.request("touch", 2, job_id=job, done=True)
    within(second.at - answered(first), 1.78, 2.2 + SLACK, "seconds from the answer of a touch to the next")
    third = await s.request("touch", 3, job_id=job, done=True)
    within(third.at - answered(second), 1.78, 2.2 + SLACK, "seconds from the answer of a touch to the next")
    equal(
        [e.query["receipt"] for e in (second, third)],
        [e.answer.json()["receipt"] for e in (first, second) if e.answer],
        "receipts",
    )
    await acked(s, w, job, 20)


@scenario("Until the handler has returned: a job that takes several ttr is handed out once.", "no_touches", seconds=40)
async def long_handler(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 10}), tries=3)
    w = await s.worker(ttr=3, concurrency=2)
    await acked(s, w, job, 20)
    check(len(s.requests("touch", job)) >= 6, f"{len(s.requests('touch', job))} touches in 10 s with a ttr of 3 s")
    await asyncio.sleep(1.3)
    check(all(e.at < w.seen("end")[0]["_at"] + 0.1 for e in s.requests("touch", job)), "a touch after the end")


@scenario("A job is touched also while the worker drains.", "no_touches_in_drain", seconds=40)
async def while_draining(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 7}), tries=3)
    w = await s.worker(ttr=3, drain=20)
    await w.started(job)
    began = s.now()
    check(await w.stop(), "the worker has not ended clean")
    within(s.now() - began, 5, 15, "seconds of the stop")
    check(len([e for e in s.requests("touch", job) if e.at > began]) >= 4, "touches while it drains")
    await acked(s, w, job)


@scenario(
    "Never through the handler's cancellation: a handler that is cancelled and goes on keeps its job.",
    "no_touches_when_cancelled",
)
async def past_cancellation(s: Stage) -> None:
    job = await s.direct.put("q", do({"ignore": 6}), tries=3)
    w = await s.worker(ttr=3, time_limit=0.5, grace=20)
    told = await w.event("cancelled", job_id=job)
    equal(told["cause"], "time_limit", "cause")
    await w.ended(job, within=15)
    check(len([e for e in s.requests("touch", job) if e.at > told["_at"]]) >= 3, "touches after the cancellation")
    equal(len(w.seen("start")), 1, "how often it was handed out")


async def crossing(s: Stage, end: dict[str, Any], verb: str) -> None:
    job = await s.direct.put("q", do({"wait": s.gate("g")}, end), tries=3)
    rule = s.proxy.rule("touch", delayed(after=1.0))
    w = await s.worker(ttr=6, backoff=[60])
    await w.started(job)
    touch: Exchange = await s.until(lambda: rule.seen and rule.seen[0], "a touch")
    await s.open("g")
    await w.ended(job)
    await w.finished(job)
    result = await s.request(verb, job_id=job, done=True)
    check(
        touch.answered_at is not None and result.at >= touch.answered_at,
        "the result was sent while a touch was under way",
    )
    assert touch.answer is not None
    equal(result.query.get("receipt"), touch.answer.json()["receipt"], "the receipt of the result")
    equal((len(s.requests(verb, job)), len(s.requests("touch", job))), (1, 1), "results and touches")


@scenario(
    "Touches and the result never cross: an ack waits for the touch under way, and has the new receipt.", "old_receipts"
)
async def ack_waits_for_touch(s: Stage) -> None:
    await crossing(s, {"attempt": True}, "ack")


@scenario("Touches and the result never cross: a release too.", "old_receipts")
async def release_waits_for_touch(s: Stage) -> None:
    await crossing(s, {"fail": "boom"}, "release")


@scenario("Touches and the result never cross: a bury too.", "old_receipts")
async def bury_waits_for_touch(s: Stage) -> None:
    await crossing(s, {"permanent": "boom"}, "bury")


@scenario(
    "A touch waits a third of ttr for its answer; one that failed is repeated within the time left.", "patient_touches"
)
async def touch_without_answer(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 7}), tries=3)
    rule = s.proxy.rule("touch", never)
    w = await s.worker(ttr=6)
    first: Exchange = await s.until(lambda: rule.seen and rule.seen[0], "a touch")
    second = await s.request("touch", 2, job_id=job)
    check(first.ended_at is not None, "two touches under way")
    within((first.ended_at or 0) - first.at, 1.5, 2 + SLACK, "seconds that a touch waits for its answer")
    within(second.at - (first.ended_at or 0), 0.0, 0.2 + SLACK, "seconds until it is repeated")
    await acked(s, w, job)


@scenario("A touch waits 10 s at most for its answer.", "patient_touches", seconds=60)
async def touch_waits_ten_seconds(s: Stage) -> None:
    job = await s.direct.put("q", do({"wait": s.gate("g")}), tries=3)
    rule = s.proxy.rule("touch", never)
    w = await s.worker(ttr=60)
    first: Exchange = await s.until(lambda: rule.seen and rule.seen[0], "a touch", 24)
    within(first.at - answered(handed(s, job)), 17.9, 22 + SLACK, "seconds until the touch")
    await s.until(lambda: first.ended_at, "its end", 15)
    within((first.ended_at or 0) - first.at, 9.5, 10 + SLACK, "seconds that a touch waits for its answer")
    await s.request("touch", 2, job_id=job, done=True)
    await s.open("g")
    await acked(s, w, job)


@scenario("A touch that failed is repeated within the time left.", "gives_up_touches")
async def touch_fails(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 5}), tries=3)
    s.proxy.rule("touch", answers(502), times=2)
    w = await s.worker(ttr=3, concurrency=2)
    await acked(s, w, job)
    touches = s.requests("touch", job)
    within(touches[2].at - touches[0].at, 0.05, 1.2, "seconds until a touch that failed has worked")


@scenario(
    "Not before Retry-After, if that is within the time left; else within it all the same.",
    "gives_up_touches ignores_retry_after",
)
async def touch_asked_to_wait(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 9}), tries=3)
    for seconds in ("1", "60"):
        s.proxy.rule("touch", answers(503, {"error": "the server is shutting down"}, Retry_After=seconds))
    w = await s.worker(ttr=6, concurrency=2)
    await acked(s, w, job, 20)
    first, second, third = s.requests("touch", job)[:3]
    check(second.at - answered(first) >= 1, "a touch is repeated before Retry-After has ended")
    within(third.at - answered(handed(s, job)), 3, 6, "seconds until a touch is repeated that should wait for 60")


async def silent(s: Stage, job: str) -> None:
    """Nothing more is sent for the job."""
    sent = len(s.requests("", job))
    await asyncio.sleep(1.6)
    equal(len(s.requests("", job)), sent, "requests for a job that is lost")


async def is_lost(s: Stage, w: Worker, job: str) -> None:
    told = await w.event("cancelled", job_id=job, within=10)
    equal(told["cause"], "lost", "cause")
    await silent(s, job)
    sent = len(s.requests("", job))
    await s.open("lost")
    await w.ended(job)
    finish = await w.finished(job)
    equal(finish["outcome"], "lost", "outcome")
    await silent(s, job)
    # Requests that a handler sent before it ended count too.
    equal(len(s.requests("", job)), sent, "requests for a job that is lost, at the end of its handler")


DEAF = ({"swallow": True}, {"ignore": 5})


@scenario(
    "A job is lost when an answer says so (409): the handler is cancelled at once, and nothing more is sent.",
    "ignores_lost sends_after_lost",
)
async def lost_by_409(s: Stage) -> None:
    job = await s.direct.put("q", do(*DEAF), tries=3)
    s.first_poll_alone()
    w = await s.worker(ttr=3)
    await w.started(job)
    given = await s.direct.hold("release", receipt(s, job), delay=60)
    equal(given.status, 200, "the release by somebody else")
    await is_lost(s, w, job)
    touch = s.requests("touch", job)[-1]
    within(w.seen("cancelled")[0]["_at"] - answered(touch), -0.1, SLACK, "seconds from the 409 to the cancellation")


@scenario("A job is lost when an answer says so (404).", "ignores_lost sends_after_lost")
async def lost_by_404(s: Stage) -> None:
    job = await s.direct.put("q", do(*DEAF, {"fail": "late"}), tries=3)
    s.first_poll_alone()
    w = await s.worker(ttr=3)
    await w.started(job)
    await s.direct.ask("DELETE", f"q/job/{job}")
    await is_lost(s, w, job)


@scenario("Nothing more is sent for a job that is lost, not by hand either.", "sends_after_lost")
async def lost_and_by_hand(s: Stage) -> None:
    job = await s.direct.put("q", do(*DEAF, {"ack": True}), tries=3)
    s.first_poll_alone()
    w = await s.worker(ttr=3)
    await w.started(job)
    await s.direct.ask("DELETE", f"q/job/{job}")
    await is_lost(s, w, job)


@scenario("Nor is the server asked for the attempt of a job that is lost.", "sends_after_lost")
async def lost_and_asks_attempt(s: Stage) -> None:
    job = await s.direct.put("q", do(*DEAF, {"attempt": True}), tries=3)
    s.first_poll_alone()
    w = await s.worker(ttr=3)
    await w.started(job)
    await s.direct.ask("DELETE", f"q/job/{job}")
    await is_lost(s, w, job)


@scenario("What a handler does by hand is not repeated beyond the loss of its job.", "sends_after_lost")
async def lost_while_by_hand(s: Stage) -> None:
    job = await s.direct.put("q", do({"ack": True}), tries=3)
    s.first_poll_alone()
    s.proxy.rule("ack touch release", answers(502), times=None)
    w = await s.worker(ttr=3)
    equal((await w.finished(job, within=15))["outcome"], "lost", "outcome")
    await silent(s, job)
    check(len(s.requests("ack", job)) >= 3, f"{len(s.requests('ack', job))} acks in 3 s")
    within(s.requests("", job)[-1].at - answered(handed(s, job)), 0.5, 3.1, "seconds until the last request for it")


@scenario("An ack by hand that is refused: the handler learns of the loss at once.", "ignores_lost")
async def lost_by_hand(s: Stage) -> None:
    job = await s.direct.put("q", do({"wait": s.gate("g")}, {"ack": True}), tries=3)
    s.first_poll_alone()
    w = await s.worker(ttr=30)
    await w.started(job)
    given = await s.direct.hold("release", receipt(s, job), delay=60)
    equal(given.status, 200, "the release by somebody else")
    await s.open("g")
    finish = await w.finished(job)
    equal((finish["outcome"], len(s.requests("ack", job))), ("lost", 1), "outcome and acks")
    await w.event("cancelled", job_id=job, within=2)
    await silent(s, job)


@scenario(
    "A job is lost when ttr has passed since the head of the poll's answer came, by the worker's own clock.",
    "late_lost sends_after_lost",
)
async def lost_by_clock(s: Stage) -> None:
    job = await s.direct.put("q", do(*DEAF), tries=3)
    s.first_poll_alone()
    s.proxy.rule("touch", never, times=None)
    w = await s.worker(ttr=3)
    await is_lost(s, w, job)
    within(w.seen("cancelled")[0]["_at"] - answered(handed(s, job)), 2.95, 3 + SLACK, "seconds until the job is lost")


@scenario(
    "Since the head came, not the end: a job whose answer takes all of its ttr to come whole is not begun, for it is "
    "somebody else's by then.",
    "counts_from_the_end",
)
async def whole_too_late(s: Stage) -> None:
    job = await s.direct.put("q", "x", tries=3)
    s.proxy.rule("consume", trickled(8, 0.5))
    w = await s.worker(ttr=3, poll=2)
    finish = await w.finished(job, within=15)
    equal(finish["outcome"], "acked", "outcome")
    # The second delivery is the only one that a handler has seen.
    equal([e["job"]["remain_tries"] for e in w.seen("start")], [1], "tries of the job at each start")


@scenario("Or since the last touch that worked was sent.", "late_lost", seconds=40)
async def lost_after_touch(s: Stage) -> None:
    job = await s.direct.put("q", do(*DEAF, {"wait": s.gate("lost")}), tries=3)
    s.first_poll_alone()
    s.proxy.rule("touch", delayed(after=1.5))
    s.proxy.rule("touch", never, times=None)
    w = await s.worker(ttr=6)
    told = await w.event("cancelled", job_id=job, within=14)
    equal(told["cause"], "lost", "cause")
    within(
        told["_at"] - s.requests("touch", job)[0].at, 5.9, 6 + SLACK, "seconds from the touch that worked to the loss"
    )


@scenario("When a job is lost one line is logged.", "logs_twice", own=True)
async def lost_is_logged(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 30}), tries=3)
    s.first_poll_alone()
    w = await s.worker(ttr=3)
    await w.started(job)
    await s.direct.ask("DELETE", f"q/job/{job}")
    await is_lost(s, w, job)
    lines = [line for line in s.program.said().splitlines() if job in line]
    equal(len(lines), 1, f"lines about the job in {s.program.said()!r}")


@scenario(
    "A touch whose answer was lost has perhaps made the receipt old: the worker asks for the valid one, and goes on.",
    "never_looks",
)
async def touch_answer_lost(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 5}), tries=3)
    s.proxy.rule("touch", reset_after)
    w = await s.worker(ttr=3, concurrency=2)
    await acked(s, w, job)
    looks = [e for e in s.requests("get", job) if "receipt" in e.query]
    check(looks, "nobody asked for the receipt")
    equal(looks[0].query.get("verbose"), "1", "verbose")
    equal(len(w.seen("cancelled")), 0, "cancellations")


@scenario("So it is when the answer never came.", "never_looks")
async def touch_answer_never_came(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 8}), tries=3)
    s.proxy.rule("touch", never_after)
    w = await s.worker(ttr=6, concurrency=2)
    await acked(s, w, job, 20)


async def result_after_lost_touch(s: Stage, end: dict[str, Any], verb: str) -> Worker:
    job = await s.direct.put("q", do({"wait": s.gate("g")}, end), tries=3)

    async def fault(exchange: Exchange) -> None:
        await s.open("g")
        await asyncio.sleep(0.3)
        await reset_after(exchange)

    s.proxy.rule("touch", fault)
    # No further touch works: the result itself has the old receipt.
    s.proxy.rule("touch", answers(502), times=None)
    w = await s.worker(ttr=6, backoff=[60])
    finish = await w.finished(job, within=15)
    equal(finish["outcome"], {"ack": "acked", "release": "released", "bury": "buried"}[verb], "outcome")
    return w


@scenario("A 409 to the result after a touch whose answer was lost is looked into: ack.", "never_looks")
async def ack_after_lost_touch(s: Stage) -> None:
    await result_after_lost_touch(s, {"attempt": True}, "ack")
    equal(await s.direct.jobs("q", "running"), [], "running jobs")


@scenario("A 409 to the result after a touch whose answer was lost is looked into: release.", "never_looks")
async def release_after_lost_touch(s: Stage) -> None:
    await result_after_lost_touch(s, {"fail": "boom"}, "release")
    (job,) = await s.direct.jobs("q", "delayed")
    equal((job["reason"], job["remain_tries"]), ("attempt 1: boom", 2), "reason and tries")


@scenario("A 409 to the result after a touch whose answer was lost is looked into: bury.", "never_looks")
async def bury_after_lost_touch(s: Stage) -> None:
    await result_after_lost_touch(s, {"permanent": "boom"}, "bury")
    equal(len(await s.direct.jobs("q", "dead")), 1, "dead jobs")


@scenario("`stale` after a touch whose answer was lost is looked into too.", "never_looks")
async def stale_after_lost_touch(s: Stage) -> None:
    jobs = [await s.direct.put("q", do({"wait": s.gate("g")}), tries=3) for _ in range(3)]
    s.proxy.rule("touch", reset_after, times=3)
    s.proxy.rule("touch", answers(502), times=None)
    w = await s.worker(ttr=9, concurrency=3, ack_window=0.5)
    await s.request("touch", 3, done=True)
    await s.open("g")
    for job in jobs:
        await acked(s, w, job)


@scenario("If the look shows no receipt the job is somebody else's: it is lost.", "ignores_lost")
async def taken_after_lost_touch(s: Stage) -> None:
    job = await s.direct.put("q", do(*DEAF), tries=5)
    s.first_poll_alone()

    async def fault(exchange: Exchange) -> None:
        # The reply of the touch is lost, and then the job goes to another consumer.
        answer = await exchange.forward()
        mine = {"queue": "q", "job_id": job, "receipt": answer.json()["receipt"]}
        check((await s.direct.hold("release", mine)).status == 200, "the job was not released")
        check(await s.direct.take("q", ttr=60), "nobody else has got the job")
        exchange.reset()

    s.proxy.rule("touch", fault)
    w = await s.worker(ttr=3)
    await is_lost(s, w, job)
    equal((await s.state("q", job, "running"))["remain_tries"], 3, "tries of the job that is the other's")


async def given_twice(s: Stage, end: dict[str, Any], verb: str, outcome: str) -> None:
    job = await s.direct.put("q", do(end), tries=3)
    rule = s.proxy.rule(verb, reset_after)
    w = await s.worker(ttr=6, backoff=[60])
    finish = await w.finished(job)
    equal(finish["outcome"], outcome, "outcome")
    check(rule.seen and len(s.requests(verb, job)) >= 2, "it was not repeated")
    await silent(s, job)


@scenario("After a lost answer a 409 to a repeated release means done.", "release_409_lost")
async def release_answer_lost(s: Stage) -> None:
    await given_twice(s, {"fail": "boom"}, "release", "released")
    (job,) = await s.direct.jobs("q", "delayed")
    equal((job["remain_tries"], job["reason"]), (2, "attempt 1: boom"), "tries and reason")


@scenario("After a 503, which has done nothing, a 409 to a repeated release means lost.", "forgives_losses")
async def release_not_done(s: Stage) -> None:
    job = await s.direct.put("q", do({"fail": "boom"}), tries=3)
    s.first_poll_alone()

    async def fault(exchange: Exchange) -> None:
        given = await s.direct.hold("release", receipt(s, job), delay=60)
        check(given.status == 200, "the job was not released by somebody else")
        await answers(503, {"error": "not now"})(exchange)

    s.proxy.rule("release", fault)
    w = await s.worker(ttr=6, backoff=[60])
    finish = await w.finished(job)
    equal((finish["outcome"], len(s.requests("release", job))), ("lost", 2), "outcome and releases")


@scenario("After a lost answer a 409 to a repeated bury means done.", "release_409_lost")
async def bury_answer_lost(s: Stage) -> None:
    await given_twice(s, {"permanent": "boom"}, "bury", "buried")
    equal(len(await s.direct.jobs("q", "dead")), 1, "dead jobs")


@scenario("After a lost answer a 404 to a repeated release means done.", "release_409_lost")
async def release_answer_lost_and_gone(s: Stage) -> None:
    async def gone(exchange: Exchange) -> None:
        await s.direct.ask("DELETE", f"q/job/{exchange.job_id}")
        await exchange.send(await exchange.forward())

    job = await s.direct.put("q", do({"fail": "boom"}), tries=3)
    s.proxy.rule("release", reset_after)
    s.proxy.rule("release", gone)
    w = await s.worker(ttr=6, backoff=[60])
    equal((await w.finished(job))["outcome"], "released", "outcome")


@scenario("Acks repeat without harm.", "ack_once")
async def ack_answer_lost(s: Stage) -> None:
    job = await s.direct.put("q", "x", tries=3)
    rule = s.proxy.rule("ack", reset_after)
    w = await s.worker(ttr=6)
    await acked(s, w, job)
    check(rule.seen and len(s.requests("ack", job)) == 2, f"{len(s.requests('ack', job))} acks")


@scenario(
    "A handler that blocks its thread or its event loop does not stop the touches.",
    "no_touches",
    own=True,
    needs="block",
)
async def blocking_handler(s: Stage) -> None:
    job = await s.direct.put("q", do({"block": 7}), tries=3)
    w = await s.worker(ttr=3)
    await acked(s, w, job, 20)
    times = [e.at for e in s.requests("touch", job)]
    check(len(times) >= 4, f"{len(times)} touches while the thread of handlers was blocked for 7 s")
    check(max(b - a for a, b in itertools.pairwise(times)) < 1.1 + SLACK, f"touches at {times}")


@scenario(
    "A job acked with others keeps its own receipt: those in one batch are those of the last touches.", "old_receipts"
)
async def batch_has_new_receipts(s: Stage) -> None:
    for _ in range(4):
        await s.direct.put("q", do({"wait": s.gate("g")}), tries=3)
    w = await s.worker(ttr=3, concurrency=4, ack_window=0.3)
    await w.event("start", 4)
    await s.request("touch", 4, done=True)
    await s.open("g")
    await s.until(lambda: len(w.seen("hook", name="finish")) >= 4, "4 results")
    equal({e["outcome"] for e in w.seen("hook", name="finish")}, {"acked"}, "outcomes")
    newest = {e.job_id: e.answer.json()["receipt"] for e in s.proxy.seen("touch") if e.answer}
    sent = {job["id"]: job["receipt"] for e in s.proxy.seen("ack_many") for job in json.loads(e.request.body)["jobs"]}
    equal(sent, {job: newest[job] for job in sent}, "receipts")
    check(sent, "no batch of acks")


@scenario(
    "An outage in which the handler ends: the result is sent when the server is back, and the job is done once.",
    "gives_up_results",
)
async def outage(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 2}), tries=3)
    w = await s.worker(ttr=15, poll=2)
    await w.started(job)
    s.proxy.refuse()
    await w.ended(job)
    await asyncio.sleep(1.5)
    equal(len(w.seen("hook", name="finish")), 0, "results in the outage")
    await s.proxy.listen()
    await acked(s, w, job)
    other = await s.direct.put("q", "x")
    await w.ended(other)
