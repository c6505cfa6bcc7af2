"""What stands around a handler: middleware, hooks, the log, the trace."""

import asyncio

from ..proxy import answers
from ..registry import scenario
from ..stage import SLACK, Stage, check, do, equal, within

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@scenario("A handler's job has all that was published with it.", "ascii_attributes")
async def job_fields(s: Stage) -> None:
    c = await s.client()
    p = await c.publish(queue="q", data=b"\xffx", tries=4, ttl=500, attributes={"u": "ä"}, traceparent=TRACE)
    await asyncio.sleep(0.2)
    w = await s.worker(c)
    job = (await w.event("start"))["job"]
    want = {
        "job_id": p["job_id"], "queue": "q", "namespace": s.namespace, "data": "/3g=", "remain_tries": 3,
        "attributes": {"u": "ä", "traceparent": TRACE}, "traceparent": TRACE,
    }  # fmt: skip
    equal({key: job[key] for key in want}, want, "the job")
    within(job["ttl"], 490, 500, "ttl")
    within(job["elapsed_ms"], 150, 20_000, "elapsed_ms")
    await w.ended(p["job_id"])
    plain = await s.direct.put("q", "x", ttl=0)
    job = (await w.started(plain))["job"]
    equal(
        (job["ttl"], job["traceparent"], job["attributes"] or {}),
        (0, None, {}),
        "ttl, traceparent, attributes of a plain job",
    )


@scenario("Middleware wraps a handler, and sees job and error.", "no_middleware")
async def middleware(s: Stage) -> None:
    w = await s.worker(backoff=[60], concurrency=4)
    for body, error in (
        (b"x", None),
        (do({"fail": "boom"}), "boom"),
        (do({"panic": "ouch"}), "ouch"),
        (do({"permanent": "never"}), "never"),
    ):
        job = await s.direct.put("q", body, tries=3)
        await w.finished(job)
        seen = [(e["phase"], e.get("error")) for e in w.seen("middleware", job_id=job)]
        equal([phase for phase, _ in seen], ["before", "after"], f"phases of {body!r}")
        equal(seen[0][1], None, "error before")
        got = seen[1][1]
        check(
            got is None if error is None else error in (got or ""),
            f"the error that middleware sees: {got!r}, not {error!r}",
        )
        order = [
            e["event"]
            for e in w.stage.program.events
            if e.get("worker") == w.name and e["event"] in ("middleware", "start", "end")
        ][-4:]
        equal(order, ["middleware", "start", "end", "middleware"], "the order")


@scenario("Hooks: poll (jobs, seconds, error), start, finish (outcome, seconds, elapsed), touch, drain.", "no_hooks")
async def hooks(s: Stage) -> None:
    job = await s.direct.put("q", do({"sleep": 2.5}), tries=3)
    s.proxy.rule("consume", answers(502))
    w = await s.worker(ttr=3, drain=5, poll=1)
    finish = await w.finished(job)
    equal(finish["outcome"], "acked", "outcome")
    within(finish["seconds"], 2.4, 2.5 + SLACK, "seconds of the handler")
    within(finish["elapsed"], finish["seconds"], 10, "elapsed, in seconds since the publish")
    await w.event("hook", 3, name="poll")
    failed, brought, *_ = w.seen("hook", name="poll")
    check(failed["error"], "the poll that failed has no error")
    equal((brought["jobs"], brought.get("error")), (1, None), "jobs and error of the second poll")
    check(0 <= brought["seconds"] < 5, f"seconds of the poll: {brought['seconds']}")
    check(w.seen("hook", name="start") and w.seen("hook", name="touch"), "no hook start or touch")
    equal(w.seen("hook", name="drain"), [], "hooks drain")
    last = await s.direct.put("q", do({"sleep": 1}), tries=3)
    await w.started(last)
    await w.stop()
    equal(len(w.seen("hook", name="drain")), 1, "hooks drain")


@scenario("Hooks `away` and `back`, once an outage.", "away_each_poll")
async def away_and_back(s: Stage) -> None:
    w = await s.worker(poll=1)
    await s.request("consume", 2)
    equal(w.seen("hook", name="away"), [], "hooks away before the outage")
    s.proxy.refuse()
    await w.event("hook", name="away")
    await asyncio.sleep(2)
    equal(w.seen("hook", name="back"), [], "hooks back in the outage")
    await s.proxy.listen()
    await w.event("hook", name="back")
    await asyncio.sleep(1.5)
    equal(
        (len(w.seen("hook", name="away")), len(w.seen("hook", name="back"))),
        (1, 1),
        "hooks away and back of one outage",
    )
    s.proxy.rule("consume", answers(502), times=3)
    await w.event("hook", 2, name="back")
    equal((len(w.seen("hook", name="away")), len(w.seen("hook", name="back"))), (2, 2), "hooks of a second outage")


@scenario("Log lines: one an outage.", "logs_each_poll", own=True)
async def log_of_outage(s: Stage) -> None:
    w = await s.worker(poll=1)
    await s.request("consume", 2)
    before = s.program.said().count("\n")
    s.proxy.refuse()
    await w.event("hook", name="away")
    failed = len(w.seen("hook", name="poll"))
    await asyncio.sleep(3)
    check(len(w.seen("hook", name="poll")) - failed >= 3, "there were not several polls that failed")
    lines = s.program.said().count("\n") - before
    check(lines <= 2, f"{lines} lines for one outage: {s.program.said()[-1500:]}")
    await s.proxy.listen()
    await w.event("hook", name="back")
    check(s.program.said().count("\n") - before <= 3, f"lines for one outage and its end: {s.program.said()[-1500:]}")


@scenario("Never a body in the log.", "logs_body", own=True)
async def no_body_in_log(s: Stage) -> None:
    mark = "s3cr3t-b0dy"
    bodies = [
        b"json:{" + mark.encode(),
        mark.encode(),
        do({"publish": {"queue": "z", "data": mark}}, {"panic": "ouch"}),
    ]
    w = await s.worker(backoff=[60], ttr=3)
    for body in bodies:
        job = await s.direct.put("q", body, tries=3)
        await w.finished(job)
    job = await s.direct.put("q", do({"sleep": 30}, {"publish": {"queue": "z", "data": mark}}), tries=3)
    await w.started(job)
    await s.direct.ask("DELETE", f"q/job/{job}")
    await w.finished(job)
    await w.stop()
    check(mark not in s.program.said(), f"a body is in the log: {s.program.said()[-1500:]!r}")


@scenario("A publish made within a handler carries its job's traceparent on by itself.", "drops_traceparent")
async def carried_on(s: Stage) -> None:
    c = await s.client()
    w = await s.worker(c, concurrency=4)
    other = TRACE.replace("4bf9", "1111")
    for trace in (TRACE, other, None):
        fields = {"traceparent": trace} if trace else {}
        p = await c.publish(
            queue="q", data=do({"sleep": 0.1}, {"publish": {"queue": "next", "data": "eA=="}}), **fields
        )
        await w.finished(p["job_id"])
        (job,) = (await c.consume(queues=["next"]))["jobs"]
        equal(job["traceparent"], trace, "traceparent of the job that was published in the handler")
        await c.ack(job_id=job["job_id"])
    p = await c.publish(queue="outside", data=b"x")
    equal(
        (await s.direct.jobs("outside", "ready"))[0].get("attributes") or None,
        None,
        "attributes of a publish outside of a handler",
    )
