"""The test double gives the same answers as the server."""

import asyncio
import json
from typing import Any

from ..registry import scenario
from ..stage import Stage, body, data, do, equal


async def on_server(s: Stage, jobs: list[dict[str, Any]], advance: float) -> dict[str, Any]:
    """The same jobs on the server, with a worker of one slot and a back-off of 5 s."""
    for job in jobs:
        query = {key: value for key, value in job.items() if key != "data"}
        await s.direct.put("q", body(job), **query)
    w = await s.worker(concurrency=1, backoff=[5], poll=1)
    began = s.now()

    async def idle() -> None:
        """Two polls have come back empty, and each handler has ended."""
        seen = len(s.proxy.seen("consume"))

        def empty() -> bool:
            later = s.proxy.seen("consume")[seen:]
            return len([e for e in later if e.answer and e.answer.status == 404]) >= 1

        await s.until(empty, "a poll that finds nothing", 12)

    await idle()
    await asyncio.sleep(max(0.0, advance - (s.now() - began)))
    await idle()
    await w.stop()
    by_id = {e["job"]["job_id"]: e["job"]["data"] for e in w.seen("start")}
    handled = [{"data": by_id[e["job_id"]], "outcome": e["outcome"]} for e in w.seen("hook", name="finish")]
    states = {state: await s.direct.jobs("q", state) for state in ("ready", "delayed", "dead")}
    return {"handled": handled} | states


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """What is compared."""

    def text(job: dict[str, Any]) -> str:
        return json.dumps([body(job).decode(errors="replace"), job.get("outcome")])

    states = {state: [body(job).decode(errors="replace") for job in answer[state]] for state in ("ready", "delayed")}
    dead = [(body(job).decode(errors="replace"), job["reason"]) for job in answer["dead"]]
    # A slot is freed before the result is sent, and the back-off varies: the order of ends is undefined.
    return {"handled": sorted(text(job) for job in answer["handled"])} | states | {"dead": sorted(dead)}


async def same(s: Stage, jobs: list[dict[str, Any]], advance: float) -> dict[str, Any]:
    double = told(await s.program.call("double", jobs=jobs, advance=advance))
    server = told(await on_server(s, jobs, advance))
    equal(double, server, "what the double says, and the server")
    return double


@scenario(
    "The double: outcomes of a handler, a job that comes back when the clock moves, dead jobs with their reasons.",
    "double_lies",
    seconds=45,
)
async def outcomes(s: Stage) -> None:
    jobs: list[dict[str, Any]] = [
        {"data": data("plain")},
        {"data": data(do({"fail": "boom"})), "tries": 1},
        {"data": data(do({"fail": "twice"})), "tries": 2},
        {"data": data(do({"fail": "once", "times": 1})), "tries": 3},
        {"data": data(do({"permanent": "never"})), "tries": 3},
        {"data": data(do({"snooze": 60})), "tries": 1},
        {"data": data(do({"retry": {"after": 2, "text": "soon"}})), "tries": 2},
        {"data": data(do({"panic": "ouch"})), "tries": 1},
        {"data": data(do({"ack": True}, {"fail": "late"})), "tries": 2},
        {"data": data("json:{"), "tries": 2},
    ]
    seen = await same(s, jobs, 8)
    equal(len(seen["handled"]), 13, "jobs that were handled")


@scenario("The double: delays, and keys of which the first is kept.", "double_lies")
async def delays_and_keys(s: Stage) -> None:
    jobs: list[dict[str, Any]] = [
        {"data": data("soon"), "delay": 3, "key": "a"},
        {"data": data("same key"), "delay": 3, "key": "a"},
        {"data": data("late"), "delay": 600, "key": "b"},
        {"data": data("same key, now"), "key": "b"},
        {"data": data("now")},
    ]
    seen = await same(s, jobs, 5)
    equal(len(seen["handled"]), 2, "jobs that were handled")
    equal(seen["delayed"], ["late"], "delayed jobs")


@scenario("The double's clock stands until the test moves it.", "double_lies")
async def clock_stands(s: Stage) -> None:
    jobs = [{"data": data("a"), "delay": 100}, {"data": data("b"), "delay": 100_000}]
    answer = told(await s.program.call("double", jobs=jobs, advance=99))
    equal((answer["handled"], answer["delayed"]), ([], ["a", "b"]), "after 99 s")
    answer = told(await s.program.call("double", jobs=jobs, advance=101))
    equal((len(answer["handled"]), answer["delayed"]), (1, ["b"]), "after 101 s")


@scenario("The double keeps a job whose handler takes long by real time: nothing moves but by the test.", "double_lies")
async def touches(s: Stage) -> None:
    answer = told(await s.program.call("double", jobs=[{"data": data(do({"ignore": 1}))}], advance=0))
    equal(answer["handled"], [json.dumps([do({"ignore": 1}).decode(), "acked"])], "what was handled")
