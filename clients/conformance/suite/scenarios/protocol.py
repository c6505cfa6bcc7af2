"""The protocol of the programs itself: the other scenarios stand on it."""

import asyncio

from ..program import Refused
from ..registry import scenario
from ..stage import Broken, Stage, check, do, equal


@scenario("Requests run side by side, and are answered in any order.", "one_op_at_a_time")
async def side_by_side(s: Stage) -> None:
    c = await s.client()
    waits = asyncio.ensure_future(c.consume(queues=["q"], timeout=20))
    await s.request("consume")
    await asyncio.wait_for(c.size(queue="q"), 8)
    check(not waits.done(), "the consume has not waited")
    job = await s.direct.put("q", "x")
    equal([found["job_id"] for found in (await waits)["jobs"]], [job], "the job that the consume has waited for")


@scenario("The first line says language, version and what it lacks.", "other_hello")
async def hello(s: Stage) -> None:
    said = s.program.hello
    check(isinstance(said["language"], str) and said["version"] == "0.1.0", f"the first line: {said}")
    check(set(said["lacks"]) <= {"block"}, f"what it lacks: {said['lacks']}")


@scenario("Events have the fields that the protocol names, and the time.", "events_without_time")
async def events(s: Stage) -> None:
    job = await s.direct.put("q", do({"attempt": True}), tries=2)
    w = await s.worker()
    await w.finished(job)
    check(await w.stop(), "the worker has not ended clean")
    named = {
        "start": {"job", "running"}, "end": {"job_id", "result"}, "attempt": {"job_id", "attempt"},
        "middleware": {"job_id", "phase", "error"}, "hook": {"name"}, "stopped": {"clean", "error"},
    }  # fmt: skip
    for name, fields in named.items():
        for event in w.seen(name):
            missing = (fields | {"worker", "at"}) - event.keys()
            check(not missing, f"an event without {missing}: {event}")
        check(w.seen(name), f"no event {name}")
    job_fields = {
        "job_id",
        "queue",
        "namespace",
        "data",
        "remain_tries",
        "ttl",
        "elapsed_ms",
        "attributes",
        "traceparent",
    }
    missing = job_fields - w.seen("start")[0]["job"].keys()
    check(not missing, f"a job without {missing}")


@scenario("What a program cannot do is answered with an error, and it goes on.", "dies_of_nonsense", own=True)
async def nonsense(s: Stage) -> None:
    for op, fields in (
        ("no_such_op", {}),
        ("size", {"client": "nobody", "queue": "q"}),
        ("publish", {"client": "nobody"}),
    ):
        try:
            await s.program.call(op, **fields)
        except Refused:
            continue
        raise Broken(f"{op} with {fields} is answered")
    c = await s.client()
    equal((await c.size(queue="q"))["size"], 0, "size")
