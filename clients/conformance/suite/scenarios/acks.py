"""How acks are sent."""

import asyncio
import json

from ..proxy import answers, never
from ..registry import scenario
from ..stage import SLACK, Stage, check, do, equal, within


@scenario("Acks of a queue wait ack_window at most for others, in one `POST Q/ack`.", "one_by_one")
async def together(s: Stage) -> None:
    for queue in ("a", "b"):
        for _ in range(6):
            await s.direct.put(queue, do({"wait": s.gate("g")}))
    w = await s.worker(queues=["a", "b"], concurrency=12, ack_window=0.5)
    await w.event("start", 12)
    await s.open("g")
    await s.until(lambda: len(w.seen("hook", name="finish")) >= 12, "12 results")
    batches = s.proxy.seen("ack_many")
    equal(len(s.proxy.seen("ack")), 0, "acks that were sent alone")
    equal(
        sorted((e.request.path.split("/")[3], len(e.request.json()["jobs"])) for e in batches),
        [("a", 6), ("b", 6)],
        "batches",
    )
    check(all(job.get("receipt") for e in batches for job in e.request.json()["jobs"]), "an ack without a receipt")
    equal({e["outcome"] for e in w.seen("hook", name="finish")}, {"acked"}, "outcomes")


@scenario("100 acks in one request.", "one_by_one", seconds=40)
async def hundred(s: Stage) -> None:
    await s.direct.put_many("q", [do({"wait": s.gate("g")})] * 130)
    w = await s.worker(concurrency=130, ack_window=1.5)
    await w.event("start", 130, within=15)
    await s.open("g")
    await s.until(lambda: len(w.seen("hook", name="finish")) >= 130, "130 results", 15)
    sizes = sorted(len(e.request.json()["jobs"]) for e in s.proxy.seen("ack_many"))
    equal(sizes, [30, 100], "jobs of each request")


@scenario("A lone ack is sent alone, when ack_window has ended.", "late_acks")
async def alone(s: Stage) -> None:
    job = await s.direct.put("q", "x")
    w = await s.worker(ack_window=0.5)
    ended = await w.ended(job)
    ack = await s.request("ack", job_id=job, done=True)
    within(ack.at - ended["_at"], 0.3, 0.5 + SLACK, "seconds from the end to the ack")
    equal(s.proxy.seen("ack_many"), [], "batches")


@scenario("`ack_window` is 5 ms by default.", "late_acks")
async def default_window(s: Stage) -> None:
    w = await s.worker()
    waited = []
    for _ in range(5):
        job = await s.direct.put("q", "x")
        ended = await w.ended(job)
        waited.append((await s.request("ack", job_id=job)).at - ended["_at"])
    check(min(waited) < 0.2, f"seconds from the end to the ack: {waited}")


@scenario("A result that could not be sent is repeated until it is: ack, release and bury.", "gives_up_results")
async def repeated(s: Stage) -> None:
    for verb, body, outcome in (
        ("ack", b"x", "acked"),
        ("release", do({"fail": "x"}), "released"),
        ("bury", do({"permanent": "x"}), "buried"),
    ):
        job = await s.direct.put("q", body, tries=3)
        s.proxy.rule(verb, answers(502), times=3)
        w = await s.worker(ttr=6, backoff=[60])
        finish = await w.finished(job)
        equal((finish["outcome"], len(s.requests(verb, job))), (outcome, 4), "outcome, and how often it was sent")
        await w.stop()


@scenario("Within the time that is left, however long a server asks to wait.", "gives_up_results")
async def asked_to_wait(s: Stage) -> None:
    for verb, body, outcome in (("ack", b"x", "acked"), ("release", do({"fail": "x"}), "released")):
        job = await s.direct.put("q", body, tries=3)
        s.proxy.rule(verb, answers(503, {"error": "the server is shutting down"}, Retry_After="60"))
        w = await s.worker(ttr=3, backoff=[60])
        equal((await w.finished(job))["outcome"], outcome, "outcome")
        equal(len(s.requests(verb, job)), 2, f"requests of {verb}")
        await w.stop()


@scenario("A result that could not be sent until ttr is over: the job is lost.", "sends_after_lost")
async def never_sent(s: Stage) -> None:
    job = await s.direct.put("q", "x", tries=3)
    s.proxy.rule("ack", answers(502), times=None)
    s.first_poll_alone()
    w = await s.worker(ttr=3)
    finish = await w.finished(job, within=10)
    equal(finish["outcome"], "lost", "outcome")
    sent = s.requests("ack", job)
    handed = next(e for e in s.proxy.seen("consume") if e.answer and job.encode() in e.answer.body)
    check(len(sent) >= 3, f"{len(sent)} acks in 3 s")
    check(sent[-1].at < (handed.answered_at or 0) + 3.1, "an ack after ttr was over")
    await asyncio.sleep(1.5)
    equal(len(s.requests("ack", job)), len(sent), "acks, and some time later")


@scenario("A result that gets no answer does not hold up the others.", "one_at_a_time")
async def hangs(s: Stage) -> None:
    first = await s.direct.put("q", "x", tries=3)
    s.proxy.rule("ack", never)
    w = await s.worker(ttr=6)
    await w.ended(first)
    await s.request("ack", job_id=first)
    second = await s.direct.put("q", do({"fail": "x"}), tries=3)
    equal((await w.finished(second, within=4))["outcome"], "released", "outcome of the next")


@scenario("`stale` means lost.", "hides_stale")
async def stale(s: Stage) -> None:
    jobs = [await s.direct.put("q", do({"wait": s.gate("g")}), tries=3) for _ in range(3)]

    async def one_stale(exchange: object) -> None:
        from ..proxy import Exchange
        from ..wire import Answer

        assert isinstance(exchange, Exchange)
        answer = await exchange.forward()
        told = answer.json() | {"acked": 2, "stale": [jobs[1]]}
        await exchange.send(Answer(200, answer.headers, json.dumps(told).encode()))

    s.proxy.rule("ack_many", one_stale)
    w = await s.worker(concurrency=3, ack_window=0.5)
    await w.event("start", 3)
    await s.open("g")
    outcomes = [(await w.finished(job))["outcome"] for job in jobs]
    equal(outcomes, ["acked", "lost", "acked"], "outcomes")
