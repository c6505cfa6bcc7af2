"""The worker. No second passes: polls, touches and results are on a loop whose time jumps."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from dormouse_client import (
    AsyncHeldJob,
    Cause,
    DrainError,
    Invalid,
    Job,
    Lost,
    Message,
    Outcome,
    Permanent,
    RetryAfter,
    Snooze,
    Unauthorized,
    Unsupported,
    Worker,
)
from dormouse_client.protocol import JobDetails, State

from .conftest import Fault, JumpingLoop, Server, Working, after, answers, before, never, never_after, slow

Make = Callable[..., Working]


async def done(job: AsyncHeldJob) -> None:
    """A handler that has nothing to do."""


def lasting(seconds: float) -> Callable[[AsyncHeldJob], Awaitable[None]]:
    async def handler(job: AsyncHeldJob) -> None:
        await asyncio.sleep(seconds)

    return handler


def raising(error: BaseException) -> Callable[[AsyncHeldJob], Awaitable[None]]:
    async def handler(job: AsyncHeldJob) -> None:
        raise error

    return handler


async def deaf(job: AsyncHeldJob) -> None:
    """A handler that goes on for ten minutes, whatever it is told."""
    end = asyncio.get_running_loop().time() + 600
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def one_job(server: Server, data: str = "x", **options: Any) -> str:
    return (await server.client().publish("q", data, **{"tries": 3, **options})).job_id


async def look(server: Server, job_id: str) -> JobDetails:
    return await server.client().get("q", job_id)


async def left(server: Server) -> dict[str, int]:
    client = server.client()
    states: tuple[State, ...] = ("ready", "delayed", "running", "dead")
    counts = {state: len([job async for job in client.jobs("q", state)]) for state in states}
    return {state: count for state, count in counts.items() if count}


# Results of jobs


@pytest.mark.parametrize(
    ("error", "outcome", "state", "tries", "reason", "delay"),
    [
        (Exception("boom"), "released", "delayed", 2, "attempt 1: boom", (4.5, 5.5)),
        (ValueError("boom"), "released", "delayed", 2, "attempt 1: ValueError: boom", (4.5, 5.5)),
        (KeyError("to"), "released", "delayed", 2, "attempt 1: KeyError: 'to'", (4.5, 5.5)),
        (SystemExit("out"), "released", "delayed", 2, "attempt 1: panic: SystemExit: out", (4.5, 5.5)),
        (RetryAfter(60, "soon"), "released", "delayed", 2, "attempt 1: soon", (60, 60)),
        (Snooze(60), "snoozed", "delayed", 3, None, (60, 60)),
        (Permanent("never"), "buried", "dead", 0, "attempt 1: never", None),
        (Exception("é" * 3000), "released", "delayed", 2, "attempt 1: " + "é" * 2042, (4.5, 5.5)),
    ],
)
def test_what_a_handler_raises_decides(
    loop: JumpingLoop,
    server: Server,
    working: Make,
    error: BaseException,
    outcome: str,
    state: str,
    tries: int,
    reason: str | None,
    delay: tuple[float, float] | None,
) -> None:
    async def test() -> None:
        job_id = await one_job(server)
        work = working(raising(error))
        assert await work.finished() == [outcome]
        job = await look(server, job_id)
        assert (job.state, job.remain_tries, job.reason) == (state, tries, reason)
        if delay is not None and job.due_at is not None:
            left = (job.due_at - server.double.now).total_seconds()
            assert delay[0] - 0.1 <= left <= delay[1]

    loop.run_until_complete(test())


def test_a_handler_that_returns_acks_with_few_requests(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await server.client().publish_many("q", [str(i) for i in range(250)])
        before = len(server.sent)
        work = working(done, concurrency=50)
        assert await work.finished(250) == ["acked"] * 250
        assert len(server.sent) - before < 0.2 * 250
        assert await left(server) == {}
        assert max(len(sent.request.content) for sent in server.seen("ack_many")) > 0

    loop.run_until_complete(test())


def test_a_lone_ack_goes_alone(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await one_job(server)
        await working(done).finished()
        (ack,) = server.seen("ack", "ack_many")
        assert (ack.verb, "receipt" in ack.request.url.params) == ("ack", True)

    loop.run_until_complete(test())


def test_attempts_are_counted_in_the_reason(loop: JumpingLoop, server: Server, working: Make) -> None:
    attempts: list[int] = []

    async def handler(job: AsyncHeldJob) -> None:
        attempts.append(await job.attempt())
        raise Exception("no")

    async def test() -> None:
        job_id = await one_job(server, tries=4)
        work = working(handler, backoff=[5, 30])
        assert await work.finished(4) == ["released"] * 4
        assert attempts == [1, 2, 3, 4]
        assert len(server.seen("get")) == 4
        times = [at for at, *_ in work.told.finished]
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert 4.5 <= gaps[0] <= 6
        assert all(27 <= gap <= 34 for gap in gaps[1:])
        assert (await look(server, job_id)).reason == "attempt 4: no"
        assert await left(server) == {"dead": 1}

    loop.run_until_complete(test())


def test_a_back_off_may_be_a_function(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await one_job(server, tries=2)
        work = working(raising(ValueError("x")), backoff=lambda attempt, error: 100 * attempt * len(str(error)))
        await work.finished(2)
        (first, *_), (second, *_) = work.told.finished
        assert 100 <= second - first <= 121

    loop.run_until_complete(test())


def test_a_body_that_is_no_json_is_buried(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def handler(job: AsyncHeldJob) -> None:
        job.json()

    async def test() -> None:
        job_id = await one_job(server, "{")
        assert await working(handler).finished() == ["buried"]
        assert "no JSON" in str((await look(server, job_id)).reason)

    loop.run_until_complete(test())


def test_a_handler_may_settle_the_job_itself(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def handler(job: AsyncHeldJob) -> None:
        match job.data:
            case b"ack":
                await job.ack()
            case b"release":
                await job.release(delay=1000, spend=False)
            case b"bury":
                await job.bury("no use")
        with pytest.raises(Invalid):
            await job.ack()
        await asyncio.sleep(100)
        raise Exception("nobody hears of it")

    async def test() -> None:
        for verb in ("ack", "release", "bury"):
            await one_job(server, verb)
        work = working(handler, concurrency=3)
        assert sorted(await work.finished(3)) == ["acked", "buried", "released"]
        assert [len(server.seen(verb)) for verb in ("ack", "release", "bury", "touch")] == [1, 1, 1, 0]
        assert await left(server) == {"delayed": 1, "dead": 1}

    loop.run_until_complete(test())


# Holding


def test_a_long_handler_keeps_its_job(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await one_job(server)
        work = working(lasting(300), ttr=30)
        assert await work.finished() == ["acked"]
        times = [sent.at for sent in server.seen("touch")]
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert all(9 <= gap <= 11.01 for gap in gaps)
        assert len({round(gap, 3) for gap in gaps}) > 1
        assert len(server.seen("consume")) >= 1
        (_, seconds, elapsed) = work.told.finished[0]
        assert seconds == pytest.approx(300, abs=0.1)
        assert elapsed >= seconds

    loop.run_until_complete(test())


@pytest.mark.parametrize("result", [None, Exception("no"), Permanent("no")])
def test_touch_and_result_never_cross(
    loop: JumpingLoop, server: Server, working: Make, result: Exception | None
) -> None:
    async def handler(job: AsyncHeldJob) -> None:
        await asyncio.sleep(11.5)  # By then the touch is on its way.
        if result:
            raise result

    async def test() -> None:
        await one_job(server)
        server.spoil("touch", slow(4))
        work = working(handler, ttr=30)
        assert await work.finished() in (["acked"], ["released"], ["buried"])
        (touch,) = server.seen("touch")
        (last,) = server.seen("ack", "release", "bury")
        assert last.at >= touch.at + 4
        assert last.status in (200, 204)
        assert last.request.url.params["receipt"] != touch.request.url.params["receipt"]

    loop.run_until_complete(test())


@pytest.mark.parametrize("fault", [before, after, never, never_after, answers(502), answers(500)])
def test_a_touch_without_answer_is_repeated(loop: JumpingLoop, server: Server, working: Make, fault: Fault) -> None:
    async def test() -> None:
        await one_job(server)
        server.spoil("touch", fault)
        work = working(lasting(60), ttr=30)
        assert await work.finished() == ["acked"]
        first, second, *_ = server.seen("touch")
        assert second.at - first.at < 10.2
        assert "touch failed" in work.told.events

    loop.run_until_complete(test())


@pytest.mark.parametrize("result", [None, Exception("no"), Permanent("no"), Snooze(5)])
def test_a_409_after_a_lost_touch_is_looked_into(
    loop: JumpingLoop, server: Server, working: Make, result: Exception | None
) -> None:
    """The touch was done, its answer was lost, and the result has the old receipt."""

    async def handler(job: AsyncHeldJob) -> None:
        await asyncio.sleep(21)
        if result:
            raise result

    async def test() -> None:
        await one_job(server)
        server.spoil("touch", after)
        server.spoil("touch", answers(502), times=1000)
        work = working(handler, ttr=30)
        (outcome,) = await work.finished()
        assert outcome is not Outcome.LOST
        assert len(server.seen("look")) == 1
        assert [sent.status for sent in server.seen("ack", "release", "bury")][-1] in (200, 204)
        assert "running" not in await left(server)

    loop.run_until_complete(test())


def test_stale_after_a_lost_touch_is_looked_into(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await server.client().publish_many("q", [Message(str(i), tries=3) for i in range(3)])
        touched: set[str] = set()

        async def fault(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
            first = request.url.path not in touched
            touched.add(request.url.path)
            return await (after if first else answers(502))(request, go)

        server.spoil("touch", fault, times=1000)
        work = working(lasting(21), ttr=30, concurrency=3)
        assert await work.finished(3) == ["acked"] * 3
        assert len(server.seen("look")) == 3

    loop.run_until_complete(test())


def test_a_409_after_a_503_is_a_loss(loop: JumpingLoop, server: Server, working: Make) -> None:
    """503 says that nothing was done, so the release is not taken for done."""

    async def test() -> None:
        await one_job(server)
        server.spoil("release", answers(503))
        server.spoil("release", answers(409, "the job is not yours any more"))
        assert await working(raising(Exception("boom"))).finished() == ["lost"]

    loop.run_until_complete(test())


def test_a_reason_by_hand_is_told_as_it_is(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def handler(job: AsyncHeldJob) -> None:
        await (job.bury("no use") if job.data == b"bury" else job.release(delay=60, reason="later"))

    async def test() -> None:
        ids = [await one_job(server, verb) for verb in ("bury", "release")]
        await working(handler, concurrency=2).finished(2)
        assert server.seen("get") == [], "the worker has asked for the attempt"
        assert [(await look(server, job_id)).reason for job_id in ids] == ["no use", "later"]

    loop.run_until_complete(test())


def test_no_look_without_a_doubt(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await one_job(server)
        server.spoil("touch", answers(409, "the job is not yours any more"))
        assert await working(lasting(60)).finished() == ["lost"]
        assert server.seen("look") == []

    loop.run_until_complete(test())


def test_a_job_that_somebody_else_has_is_lost(loop: JumpingLoop, server: Server, working: Make) -> None:
    """The touch was done, then the job went to another: what the look shows is null."""

    async def fault(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        await go()
        client = server.client()
        server.double.advance(31)
        await client.consume("q", ttr=1000)
        raise httpx.ReadError("")

    async def test() -> None:
        job_id = await one_job(server, tries=5)
        server.spoil("touch", fault)
        work = working(lasting(25), ttr=30)
        assert await work.finished() == ["lost"]
        assert len(server.seen("look")) == 1
        assert server.seen("ack", "release") == []
        assert (await look(server, job_id)).remain_tries == 3

    loop.run_until_complete(test())


@pytest.mark.parametrize("fault", [answers(409, "the job is not yours any more"), answers(404, "job not found"), never])
def test_the_handler_of_a_lost_job_is_cancelled_at_once(
    loop: JumpingLoop, server: Server, working: Make, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    causes: list[tuple[float, Cause | None]] = []

    async def handler(job: AsyncHeldJob) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            causes.append((loop.time(), job.cause))
            assert job.cancelled
            with pytest.raises(Lost):
                await job.touch()

    async def test() -> None:
        await one_job(server)
        server.spoil("touch", fault, times=100)
        work = working(handler, ttr=30)
        began = loop.time()
        assert await work.finished() == ["lost"]
        ((at, cause),) = causes
        assert cause is Cause.LOST
        assert at - began == pytest.approx(30 if fault is never else 10, abs=1.1)
        assert server.seen("ack", "ack_many", "release", "bury") == []
        assert len([record for record in caplog.records if "is lost" in record.message]) == 1

    caplog.set_level(logging.INFO, "dormouse_client")
    loop.run_until_complete(test())


def test_a_lease_begins_with_the_head_of_the_answer(loop: JumpingLoop, server: Server, working: Make) -> None:
    """The poll itself may have taken long: that is no part of ttr."""

    async def test() -> None:
        work = working(lasting(25), ttr=30, poll=60)
        await work.start()
        await asyncio.sleep(50)
        await one_job(server)
        server.spoil("touch", before, times=1000)
        assert await work.finished() == ["acked"]

    loop.run_until_complete(test())


@pytest.mark.parametrize(("verb", "result"), [("release", Exception("no")), ("bury", Permanent("no"))])
def test_a_repeated_result_that_is_refused_was_done(
    loop: JumpingLoop, server: Server, working: Make, verb: str, result: Exception
) -> None:
    async def test() -> None:
        await one_job(server)
        server.spoil(verb, after)
        assert await working(raising(result)).finished() == ["released" if verb == "release" else "buried"]
        assert [sent.status for sent in server.seen(verb)] == [None, 409]

    loop.run_until_complete(test())


def test_a_result_is_repeated_until_ttr_is_over(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await one_job(server, tries=1)
        server.spoil("ack", answers(502), times=1000)
        work = working(done, ttr=30)
        began = loop.time()
        assert await work.finished() == ["lost"]
        acks = server.seen("ack")
        assert len(acks) > 8
        assert max(sent.at for sent in acks) < began + 30
        assert loop.time() - began == pytest.approx(30, abs=0.1)

    loop.run_until_complete(test())


def test_a_result_that_hangs_frees_the_slot(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await one_job(server)
        server.spoil("ack", never)
        work = working(done, ttr=30)
        await work.start()
        await asyncio.sleep(1)
        await one_job(server)
        await asyncio.sleep(1)
        assert work.told.outcomes == ["acked"]
        assert await work.finished(2) == ["acked", "acked"]

    loop.run_until_complete(test())


def test_many_touches_at_a_time_do_not_crowd_each_other_out(loop: JumpingLoop, server: Server, working: Make) -> None:
    """All of them come due in the same seconds. Each on a connection of its own would make none of them in time."""
    open_now = 0
    most = 0

    async def fault(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        answer = await go()
        await asyncio.sleep(0.5)
        open_now -= 1
        return answer

    async def test() -> None:
        await server.client().publish_many("q", [Message(str(i), tries=3) for i in range(200)])
        server.spoil("touch", fault, times=10_000)
        work = working(lasting(40), ttr=30, concurrency=200)
        assert await work.finished(200) == ["acked"] * 200
        assert len(server.seen("touch")) >= 400
        assert most <= 8

    loop.run_until_complete(test())


def test_a_touch_by_hand_holds_for_longer(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def handler(job: AsyncHeldJob) -> None:
        await job.touch(300)
        await asyncio.sleep(85)

    async def test() -> None:
        await one_job(server)
        assert await working(handler, ttr=30).finished() == ["acked"]
        assert len(server.seen("touch")) == 1

    loop.run_until_complete(test())


# The time limit


def test_a_handler_that_passes_its_time_limit_is_cancelled(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        job_id = await one_job(server)
        work = working(lasting(1000), time_limit=50)
        assert await work.finished() == ["released"]
        assert (await look(server, job_id)).reason == "attempt 1: time limit"
        assert work.told.finished[0][1] == pytest.approx(50, abs=0.1)

    loop.run_until_complete(test())


def test_after_time_limit_and_grace_nobody_waits_for_a_deaf_handler(
    loop: JumpingLoop, server: Server, working: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        job_id = await one_job(server)
        work = working(deaf, time_limit=50, grace=5, backoff=[10_000])
        assert await work.finished() == ["released"]
        assert loop.time() == pytest.approx(1055, abs=1)
        assert (await look(server, job_id)).reason == "attempt 1: time limit"
        touches = len(server.seen("touch"))
        polls = len(server.seen("consume"))
        await asyncio.sleep(300)
        assert len(server.seen("touch")) == touches
        assert len(server.seen("consume")) == polls  # Its slot is taken still.
        assert len([record for record in caplog.records if "has not ended" in record.message]) == 6
        await asyncio.sleep(400)
        assert len(server.seen("consume")) > polls

    loop.run_until_complete(test())


# Polls


def test_one_poll_at_a_time_for_as_many_as_are_free(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        work = working(lasting(50), concurrency=3, poll=20)
        await work.start()
        await asyncio.sleep(1)
        for _ in range(3):
            await one_job(server)
            await asyncio.sleep(1)
        await asyncio.sleep(40)
        polls = server.seen("consume")
        assert [sent.request.url.params["count"] for sent in polls] == ["3", "2", "1"]
        assert all(sent.request.url.params["receipt"] == "1" for sent in polls)
        await work.finished(3)

    loop.run_until_complete(test())


def test_idle_polls_follow_each_other_at_once(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        work = working(done, concurrency=50, poll=20)
        await work.start()
        await asyncio.sleep(59)
        assert len(server.sent) == 3
        assert work.told.events == ["poll", "poll"]

    loop.run_until_complete(test())


def test_an_empty_answer_before_its_time_is_a_failure(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        server.spoil("consume", answers_nothing, times=5)
        work = working(done)
        await work.start()
        await asyncio.sleep(20)
        assert work.told.events[:2] == ["poll failed", "away"]
        assert len(server.seen("consume")) == 6
        await asyncio.sleep(20)
        assert work.told.events[-2:] == ["back", "poll"]

    loop.run_until_complete(test())


async def answers_nothing(request: httpx.Request, go: object) -> httpx.Response:
    return httpx.Response(404, json={"msg": "no job available"})


def test_polls_pause_after_failures_and_say_one_outage(
    loop: JumpingLoop, server: Server, working: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dormouse_client")

    async def test() -> None:
        server.spoil("consume", before, times=8)
        work = working(done)
        await one_job(server)
        await work.finished()
        polls = server.seen("consume")
        gaps = [later.at - sooner.at for sooner, later in itertools.pairwise(polls[:9])]
        for n, gap in enumerate(gaps):
            assert min(5, 0.1 * 2**n) / 2 <= gap <= min(5, 0.1 * 2**n) + 0.01
        assert [event for event in work.told.events if event in ("away", "back")] == ["away", "back"]
        assert [record.message[:13] for record in caplog.records] == ["the server is", "the server is"]
        server.spoil("consume", answers(503, retry_after="9"))
        await asyncio.sleep(25)
        failed, again = server.seen("consume")[-2:]
        assert again.at - failed.at >= 9
        await asyncio.sleep(21)  # One that works: the failures before it are forgotten.
        server.spoil("consume", before)
        await asyncio.sleep(21)
        (failed,) = [sent for sent in server.seen("consume")[-3:] if sent.status is None][:1]
        again = next(sent for sent in server.seen("consume") if sent.at > failed.at)
        assert again.at - failed.at <= 0.11

    loop.run_until_complete(test())


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (answers(400, "invalid ttr"), Invalid),
        (answers(401, "invalid token"), Unauthorized),
        (answers(404, "api not found"), Unsupported),
    ],
)
def test_what_no_loop_mends_ends_the_worker(
    loop: JumpingLoop, server: Server, working: Make, fault: Fault, error: type[Exception]
) -> None:
    async def test() -> None:
        await one_job(server)
        work = working(lasting(5), concurrency=2)
        await work.start()
        await asyncio.sleep(1)
        server.spoil("consume", fault)
        await asyncio.sleep(21)
        assert work.task is not None
        with pytest.raises(error):
            await work.task
        assert work.told.outcomes == ["acked"]

    loop.run_until_complete(test())


def test_weights_and_order_of_queues(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        for queues, weights in ((["b", "a"], None), ({"a": 5, "b": 3}, "5,3"), (None, None)):
            worker = Worker(client, queues=queues)
            worker.handler("a")(done)
            worker.handler("b")(done)
            await worker.run_async_until_idle()
            last = server.seen("consume")[-1].request
            assert last.url.path.rpartition("/")[2] == ("b,a" if queues == ["b", "a"] else "a,b")
            assert last.url.params.get("weights") == weights

    # A worker of an AsyncClient has a thread: a loop with virtual time would not wait for it.
    asyncio.run(test())


def test_a_worker_without_handlers_or_with_wrong_options_is_refused(server: Server) -> None:
    with pytest.raises(Invalid):
        Worker(server.client()).run()
    with pytest.raises(Invalid):
        Worker(server.client(), queues=["q"]).run()
    wrong: list[dict[str, Any]] = [
        {"ttr": 2}, {"ttr": 3.5}, {"concurrency": 0}, {"poll": 0}, {"backoff": []}, {"backoff": [-1]},
        {"time_limit": -1}, {"drain": float("nan")},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(Invalid):
            Worker(server.client(), **options)


# Stopping


def test_a_stop_closes_the_parked_poll(loop: JumpingLoop, server: Server, working: Make) -> None:
    closed: list[float] = []

    async def parked(request: httpx.Request, go: object) -> httpx.Response:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            closed.append(loop.time())
            raise
        raise AssertionError

    async def test() -> None:
        server.spoil("consume", parked)
        work = working(done)
        await work.start()
        await asyncio.sleep(5)
        began = loop.time()
        await work.stop()
        assert closed == [pytest.approx(began, abs=0.1)]
        assert loop.time() - began < 0.1

    loop.run_until_complete(test())


def test_jobs_of_an_answer_that_came_after_the_stop_are_given_back(
    loop: JumpingLoop, server: Server, working: Make
) -> None:
    class Trickle(httpx.AsyncByteStream):
        def __init__(self, body: bytes) -> None:
            self.body = body

        async def __aiter__(self) -> Any:
            yield self.body[:10]
            await asyncio.sleep(2)
            yield self.body[10:]

    async def fault(request: httpx.Request, go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        answer = await go()
        return httpx.Response(answer.status_code, stream=Trickle(await answer.aread()))

    async def test() -> None:
        job_id = await one_job(server)
        server.spoil("consume", fault)
        work = working(done)
        await work.start()
        await asyncio.sleep(1)
        await work.stop()
        assert work.told.events == ["poll", "drain 0"]
        job = await look(server, job_id)
        assert (job.state, job.remain_tries, job.reason) == ("ready", 3, None)

    loop.run_until_complete(test())


@pytest.mark.parametrize("fails", [False, True])
def test_handlers_may_end_while_the_worker_drains(
    loop: JumpingLoop, server: Server, working: Make, fails: bool
) -> None:
    async def handler(job: AsyncHeldJob) -> None:
        await asyncio.sleep(20)
        if fails:
            raise Exception("no")

    async def test() -> None:
        job_id = await one_job(server)
        work = working(handler, ttr=6)
        await work.start()
        await asyncio.sleep(1)
        await work.stop()
        assert work.told.outcomes == ["released" if fails else "acked"]
        assert len(server.seen("touch")) >= 8  # Also while it drains.
        assert work.told.events.count("drain 1") == 1
        if fails:
            assert (await look(server, job_id)).reason == "attempt 1: no"

    loop.run_until_complete(test())


@pytest.mark.parametrize("returns", [True, False])
def test_a_handler_that_the_drain_cancels(loop: JumpingLoop, server: Server, working: Make, returns: bool) -> None:
    async def handler(job: AsyncHeldJob) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            assert job.cause is Cause.DRAIN
            if not returns:
                raise ValueError("what it says does not matter") from None

    async def test() -> None:
        job_id = await one_job(server)
        work = working(handler, drain=25)
        await work.start()
        await asyncio.sleep(1)
        began = loop.time()
        await work.stop()
        assert loop.time() - began == pytest.approx(25, abs=0.2)
        assert work.told.outcomes == ["acked" if returns else "returned"]
        if not returns:
            job = await look(server, job_id)
            assert (job.state, job.remain_tries, job.reason) == ("ready", 3, None)

    loop.run_until_complete(test())


def test_a_handler_that_does_not_return_is_an_error(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        job_id = await one_job(server)
        work = working(deaf, drain=25, grace=5)
        await work.start()
        await asyncio.sleep(1)
        began = loop.time()
        with pytest.raises(DrainError) as error:
            await work.stop()
        assert error.value.job_ids == [job_id]
        assert loop.time() - began == pytest.approx(30, abs=0.2)
        assert work.told.outcomes == ["returned"]
        job = await look(server, job_id)
        assert (job.state, job.remain_tries) == ("ready", 3)

    loop.run_until_complete(test())


def test_a_second_stop_ends_drain_and_grace(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await one_job(server)
        work = working(deaf, drain=1000, grace=1000)
        await work.start()
        await asyncio.sleep(1)
        work.worker.stop()
        await asyncio.sleep(10)
        began = loop.time()
        with pytest.raises(DrainError):
            await work.stop()
        assert loop.time() - began < 0.2

    loop.run_until_complete(test())


def test_a_handler_past_its_time_limit_is_given_back_when_grace_ends(
    loop: JumpingLoop, server: Server, working: Make
) -> None:
    async def test() -> None:
        job_id = await one_job(server)
        work = working(deaf, time_limit=50, drain=1000, grace=1000)
        await work.start()
        await asyncio.sleep(60)
        work.worker.stop()
        await asyncio.sleep(1)
        with pytest.raises(DrainError):
            await work.stop()
        assert work.told.outcomes == ["returned"]
        job = await look(server, job_id)
        assert (job.state, job.remain_tries, job.reason) == ("ready", 3, None)

    loop.run_until_complete(test())


def test_acks_are_sent_before_the_end(loop: JumpingLoop, server: Server, working: Make) -> None:
    async def test() -> None:
        await server.client().publish_many("q", ["a", "b", "c"])
        work = working(done, concurrency=3, ack_window=20)
        await work.start()
        await asyncio.sleep(1)
        assert server.seen("ack", "ack_many") == []
        await work.stop()
        assert loop.time() < 1002
        assert await left(server) == {}

    loop.run_until_complete(test())


def test_an_ack_of_a_handler_that_ends_in_the_drain_does_not_wait(
    loop: JumpingLoop, server: Server, working: Make
) -> None:
    async def test() -> None:
        await one_job(server)
        work = working(lasting(5), ack_window=20)
        await work.start()
        await asyncio.sleep(1)
        await work.stop()
        assert work.told.outcomes == ["acked"]
        assert loop.time() < 1006

    loop.run_until_complete(test())


# Around it


def test_middleware_sees_job_and_error(loop: JumpingLoop, server: Server, working: Make) -> None:
    said: list[str] = []

    def named(name: str) -> Callable[[Job, Callable[[], Awaitable[None]]], Awaitable[None]]:
        async def middleware(job: Job, call: Callable[[], Awaitable[None]]) -> None:
            said.append(f"{name} before {job.data.decode()}")
            try:
                await call()
            except Exception as error:
                said.append(f"{name} {error}")
                raise

        return middleware

    async def test() -> None:
        await one_job(server, "x")
        work = working(raising(Exception("no")), middleware=[named("outer"), named("inner")])
        assert await work.finished() == ["released"]
        assert said == ["outer before x", "inner before x", "inner no", "outer no"]

    loop.run_until_complete(test())


def test_a_publish_within_a_handler_carries_the_trace_on(loop: JumpingLoop, server: Server, working: Make) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def handler(job: AsyncHeldJob) -> None:
        assert job.traceparent == (trace if job.data == b"with" else None)
        await server.client().publish("out", job.data)
        await server.client().publish("out", job.data, traceparent="00-mine")

    async def test() -> None:
        await one_job(server, "with", traceparent=trace)
        await one_job(server, "without")
        await working(handler).finished(2)
        traces = [job.traceparent for job in await server.client().consume("out", count=10)]
        assert traces == [trace, "00-mine", None, "00-mine"]

    loop.run_until_complete(test())


def test_hooks_that_fail_hold_nothing_up(
    loop: JumpingLoop, server: Server, working: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await one_job(server)
        work = working(done)

        def fail(*args: object) -> None:
            raise RuntimeError("a fault of the hook")

        work.told.start = fail  # type: ignore[method-assign, assignment]
        assert await work.finished() == ["acked"]
        assert "a hook failed" in caplog.text

    loop.run_until_complete(test())


def test_bodies_and_tokens_are_not_logged(
    loop: JumpingLoop, server: Server, working: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dormouse_client")

    async def test() -> None:
        await one_job(server, "secret body")
        await working(raising(Exception("no")), backoff=[1]).finished(3)

    loop.run_until_complete(test())
    assert "secret body" not in caplog.text
    assert caplog.text


def test_the_log_of_a_failed_handler_has_its_stack(
    loop: JumpingLoop, server: Server, working: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await one_job(server)
        await working(raising(SystemExit(3))).finished()

    loop.run_until_complete(test())
    assert "Traceback" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
