"""How a worker ends."""

import asyncio
import signal

from ..proxy import Exchange, answers, trickled
from ..registry import scenario
from ..stage import SLACK, Stage, check, do, equal, within


async def stop_while_parked(s: Stage, number: int) -> None:
    w = await s.worker()
    poll = await s.request("consume")
    await asyncio.sleep(0.5)
    began = s.now()
    s.program.kill(number)
    await s.until(lambda: poll.gone, "the end of the poll that was parked", alive=False)
    within((poll.ended_at or 0) - began, 0, 1 + SLACK, "seconds until the parked poll was closed")
    equal(await s.program.exit_code(10), 0, "exit code")
    equal(len(s.proxy.seen("consume")), 1, "polls")
    equal([e["clean"] for e in w.seen("stopped")], [True], "events `stopped`")
    job = await s.direct.put("q", "x", tries=3)
    await asyncio.sleep(0.3)
    equal((await s.state("q", job, "ready"))["remain_tries"], 3, "tries of a job that came after it")


@scenario(
    "SIGTERM: no poll any more, and the parked one is closed; exit code 0.", "keeps_poll_parked polls_on", own=True
)
async def sigterm(s: Stage) -> None:
    await stop_while_parked(s, signal.SIGTERM)


@scenario("SIGINT does the same.", "ignores_sigint", own=True)
async def sigint(s: Stage) -> None:
    await stop_while_parked(s, signal.SIGINT)


@scenario("A call does the same; the server gives its job to the next.", "keeps_poll_parked")
async def call(s: Stage) -> None:
    first = await s.worker()
    poll = await s.request("consume")
    second = await s.worker()
    await s.request("consume", 2)
    check(await first.stop(), "the worker has not ended clean")
    await s.until(lambda: not poll.open, "the end of the poll that was parked", 1 + SLACK)
    job = await s.direct.put("q", "x")
    await second.ended(job, within=3)
    equal(first.seen("start"), [], "handlers of the worker that was stopped")


@scenario("Jobs that came and have not begun are released at once with their try.", "keeps_late_jobs")
async def late_answer(s: Stage) -> None:
    job = await s.direct.put("q", "x", tries=3)
    rule = s.proxy.rule("consume", trickled(8, 0.25))
    w = await s.worker(ttr=30)
    poll: Exchange = await s.until(
        lambda: rule.seen and rule.seen[0].answered_at and rule.seen[0], "the head of the answer"
    )
    await asyncio.sleep(0.3)
    check(poll.ended_at is None, "the answer has broken off")
    check(await w.stop(), "the worker has not ended clean")
    found = await s.state("q", job, "ready")
    equal((found["remain_tries"], found["reason"] or None), (3, None), "tries and reason")
    equal(w.seen("start"), [], "handlers that have begun")
    equal([e.query.get("spend") for e in s.requests("release", job)], ["0"], "releases")


@scenario(
    "So is a job whose answer was on its way when the poll was closed: half of the connection is.",
    "keeps_late_jobs",
)
async def answer_under_way(s: Stage) -> None:
    job = await s.direct.put("q", "x", tries=3)
    taken: list[Exchange] = []

    async def slow(exchange: Exchange) -> None:
        answer = await exchange.forward()
        taken.append(exchange)
        s.proxy.signal.ring()
        await exchange.incoming.until_gone()
        await exchange.send(answer)

    s.proxy.rule("consume", slow)
    w = await s.worker(ttr=30)
    await s.until(lambda: taken, "the answer of the server")
    check(await w.stop(), "the worker has not ended clean")
    found = await s.state("q", job, "ready")
    equal((found["remain_tries"], found["reason"] or None), (3, None), "tries and reason")
    equal(w.seen("start"), [], "handlers that have begun")


@scenario(
    "Handlers go on for drain, and are not cancelled; their acks are sent; exit code 0.",
    "cancels_at_once kills_at_once",
    own=True,
)
async def drain(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 2}), tries=3)
    w = await s.worker(drain=20, grace=5)
    await w.started(job)
    s.program.kill(signal.SIGTERM)
    equal(await s.program.exit_code(15), 0, "exit code")
    equal([e["result"] for e in w.seen("end")], ["ok"], "results")
    equal(w.seen("cancelled"), [], "cancellations")
    equal([e["outcome"] for e in w.seen("hook", name="finish")], ["acked"], "outcomes")
    equal(await s.direct.job("q", job), None, "the job after the end")


@scenario("No poll while it drains, also when slots are free.", "polls_on")
async def no_poll_in_drain(s: Stage) -> None:
    job = await s.direct.put("q", do({"wait": s.gate("g")}), tries=3)
    w = await s.worker(concurrency=4, drain=20)
    await w.started(job)
    await s.request("consume", 2)
    stop = asyncio.ensure_future(w.stop())
    await asyncio.sleep(0.5)
    count = len(s.proxy.seen("consume"))
    other = await s.direct.put("q", "x", tries=3)
    await asyncio.sleep(1)
    await s.open("g")
    check(await stop, "the worker has not ended clean")
    equal(len(s.proxy.seen("consume")), count, "polls, and some time after the stop")
    equal((await s.state("q", other, "ready"))["remain_tries"], 3, "tries of a job that came after the stop")
    await s.gone("q", job)


@scenario(
    "A handler that fails while the worker drains, and was not cancelled, has failed as always.", "forgives_in_drain"
)
async def fails_in_drain(s: Stage) -> None:
    job = await s.direct.put("q", do({"wait": s.gate("g")}, {"fail": "boom"}), tries=3)
    w = await s.worker(drain=20, backoff=[60])
    await w.started(job)
    stop = asyncio.ensure_future(w.stop())
    await asyncio.sleep(0.5)
    await s.open("g")
    check(await stop, "the worker has not ended clean")
    found = await s.state("q", job, "delayed")
    equal((found["remain_tries"], found["reason"]), (2, "attempt 1: boom"), "tries and reason")


@scenario(
    "After drain handlers are cancelled; one that returns an error: release at once, the try given back, no reason.",
    "spends_in_drain cancels_at_once",
)
async def cancelled_by_drain(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 60}), tries=3)
    w = await s.worker(drain=1, grace=10)
    await w.started(job)
    began = s.now()
    check(await w.stop(), "the worker has not ended clean")
    told = await w.event("cancelled", job_id=job)
    equal(told["cause"], "drain", "cause")
    within(told["_at"] - began, 0.95, 1 + SLACK, "seconds until the cancellation")
    found = await s.state("q", job, "ready")
    equal((found["remain_tries"], found["reason"] or None), (3, None), "tries and reason")
    equal([e["outcome"] for e in w.seen("hook", name="finish")], ["returned"], "outcomes")
    within(s.now() - began, 1, 5, "seconds of the stop: grace is not waited for")


@scenario("One that was cancelled by the drain and returns without an error: ack.", "drops_acks_in_drain")
async def done_after_drain(s: Stage) -> None:
    job = await s.direct.put("q", do({"swallow": True}, {"sleep": 60}), tries=3)
    w = await s.worker(drain=0.3, grace=10)
    await w.started(job)
    check(await w.stop(), "the worker has not ended clean")
    equal(
        (w.seen("cancelled")[0]["cause"], [e["outcome"] for e in w.seen("hook", name="finish")]),
        ("drain", ["acked"]),
        "cause, outcomes",
    )
    await s.gone("q", job)


@scenario(
    "One that has not returned when grace ends: release at once, the try given back; `run` returns an error.",
    "waits_for_ever clean_lie",
)
async def grace_ends(s: Stage) -> None:
    job = await s.direct.put("q", do({"ignore": 12}), tries=3)
    w = await s.worker(drain=0.5, grace=1)
    await w.started(job)
    began = s.now()
    equal(await w.stop(), False, "clean")
    within(s.now() - began, 1.4, 4 + SLACK, "seconds of the stop")
    equal((await s.state("q", job, "ready"))["remain_tries"], 3, "tries")
    equal([e["clean"] for e in w.seen("stopped")], [False], "events `stopped`")


@scenario("A handler that had not returned when grace ended: exit code 1.", "clean_lie", own=True)
async def exit_code(s: Stage) -> None:
    job = await s.direct.put("q", do({"ignore": 25}), tries=3)
    w = await s.worker(drain=0.5, grace=1)
    await w.started(job)
    s.program.kill(signal.SIGTERM)
    equal(await s.program.exit_code(10), 1, "exit code")
    equal((await s.state("q", job, "ready"))["remain_tries"], 3, "tries")


@scenario("`drain` is 25 s and `grace` 5 s by default.", "cancels_at_once", seconds=60)
async def default_times(s: Stage) -> None:
    first = await s.direct.put("q", do({"sleep": 60}), tries=3)
    second = await s.direct.put("q", do({"ignore": 40}), tries=3)
    w = await s.worker(concurrency=2, drain=None, grace=None)
    await w.event("start", 2)
    began = s.now()
    equal(await w.stop(), False, "clean")
    took = s.now() - began
    for job in (first, second):
        told = await w.event("cancelled", job_id=job)
        within(told["_at"] - began, 24.9, 25 + SLACK, "seconds until the cancellation")
    within(took, 29.9, 30 + 2 * SLACK, "seconds of the stop")


@scenario("Acks are sent before `run` returns, also those that wait for others.", "kills_at_once", own=True)
async def acks_before_end(s: Stage) -> None:
    jobs = [await s.direct.put("q", "x", tries=3) for _ in range(3)]
    w = await s.worker(concurrency=3, ack_window=2, drain=20)
    await w.event("end", 3)
    s.program.kill(signal.SIGTERM)
    equal(await s.program.exit_code(10), 0, "exit code")
    for job in jobs:
        equal(await s.direct.job("q", job), None, "a job whose handler had returned")


@scenario(
    "Acks that could not be sent when the worker stops are repeated before `run` returns.",
    "gives_up_acks kills_at_once",
    own=True,
)
async def acks_again_before_end(s: Stage) -> None:
    jobs = [await s.direct.put("q", "x", tries=3) for _ in range(3)]
    s.proxy.rule("ack ack_many", answers(502), times=5)
    w = await s.worker(concurrency=3, ack_window=1, drain=20)
    await w.event("end", 3)
    s.program.kill(signal.SIGTERM)
    equal(await s.program.exit_code(15), 0, "exit code")
    for job in jobs:
        equal(await s.direct.job("q", job), None, "a job whose handler had returned")


@scenario("A second signal ends drain and grace.", "deaf_to_second", own=True)
async def second_signal(s: Stage) -> None:
    jobs = [await s.direct.put("q", do(step), tries=3) for step in ({"ignore": 60}, {"sleep": 60})]
    w = await s.worker(concurrency=2, drain=30, grace=30)
    await w.event("start", 2)
    s.program.kill(signal.SIGTERM)
    await w.event("hook", name="drain")  # Before the first is handled, a second would be the same one.
    await asyncio.sleep(1)
    check(s.program.process.returncode is None, "it has ended at the first signal")
    s.program.kill(signal.SIGTERM)
    equal(await s.program.exit_code(8), 1, "exit code")
    for job in jobs:
        equal((await s.state("q", job, "ready"))["remain_tries"], 3, "tries")


@scenario(
    "A second signal ends nothing else: a result that could not be sent is repeated.", "gives_up_results", own=True
)
async def result_after_second_signal(s: Stage) -> None:
    job = await s.direct.put("q", do({"ignore": 60}), tries=3)
    s.proxy.rule("release", answers(502), times=2)
    w = await s.worker(drain=30, grace=30)
    await w.started(job)
    s.program.kill(signal.SIGTERM)
    await w.event("hook", name="drain")
    s.program.kill(signal.SIGTERM)
    equal(await s.program.exit_code(8), 1, "exit code")
    equal((await s.state("q", job, "ready"))["remain_tries"], 3, "tries")


@scenario("So does a second call.", "deaf_to_second")
async def second_call(s: Stage) -> None:
    jobs = [await s.direct.put("q", do(step), tries=3) for step in ({"ignore": 10}, {"sleep": 60})]
    w = await s.worker(concurrency=2, drain=30, grace=30)
    await w.event("start", 2)
    first = asyncio.ensure_future(w.stop())
    await asyncio.sleep(1)
    check(not first.done(), "it has ended at the first call")
    began = s.now()
    equal([await w.stop(), await first], [False, False], "clean")
    within(s.now() - began, 0, 4 + SLACK, "seconds until it has ended")
    for job in jobs:
        equal((await s.state("q", job, "ready"))["remain_tries"], 3, "tries")


@scenario("SIGTERM ends all workers of the program, each as it should.", "kills_at_once", own=True)
async def several_workers(s: Stage) -> None:
    a = await s.direct.put("a", do({"sleep": 1.5}), tries=3)
    b = await s.direct.put("b", do({"sleep": 60}), tries=3)
    wa = await s.worker(queues="a", drain=20, grace=5)
    wb = await s.worker(queues="b", drain=0.5, grace=5)
    await wa.started(a)
    await wb.started(b)
    s.program.kill(signal.SIGTERM)
    equal(await s.program.exit_code(15), 0, "exit code")
    equal(await s.direct.job("a", a), None, "the job that was done")
    equal((await s.state("b", b, "ready"))["remain_tries"], 3, "tries of the job that was given back")
    equal([e["clean"] for w in (wa, wb) for e in w.seen("stopped")], [True, True], "events `stopped`")


@scenario("At the end of its input a program ends at once.", "outlives_input", own=True)
async def end_of_input(s: Stage) -> None:
    job = await s.direct.put("q", do({"ignore": 30}), tries=3)
    w = await s.worker(drain=30, grace=30)
    await w.started(job)
    assert s.program.process.stdin is not None
    s.program.process.stdin.close()
    await s.program.exit_code(4)
