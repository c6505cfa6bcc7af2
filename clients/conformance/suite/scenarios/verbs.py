"""The verbs of a client beside publish."""

import asyncio
import time
from typing import Any

from ..proxy import answers
from ..registry import scenario
from ..stage import Stage, body, check, equal, within


@scenario("Cancel by id and get by id: a job with `state`, `due_at`, `key`, `reason`.", "drops_reason")
async def get_and_cancel(s: Stage) -> None:
    c = await s.client()
    job_id = await s.direct.put("q", "x", tries=3, key="k")
    taken = await s.direct.take("q")
    assert taken is not None
    await s.direct.hold("release", taken, "später".encode(), delay=60)
    job = await c.get(queue="q", job_id=job_id)
    equal((job["state"], job["key"], job["reason"], job["remain_tries"]), ("delayed", "k", "später", 2), "the job")
    within(job["due_at"], time.time() * 1000 + 50_000, time.time() * 1000 + 61_000, "due_at")
    equal((job["queue"], job["namespace"], job["attributes"]), ("q", s.namespace, {}), "where it is, and attributes")
    await c.cancel(queue="q", job_id=job_id)
    await c.refused("get", "not_found", queue="q", job_id=job_id)
    equal(await c.cancel(queue="q", job_id=job_id), {}, "a cancel of what is not there")


@scenario("Promote by id and by key: a delayed job is ready now; of another one it is a `conflict`.", "skips_promote")
async def promote(s: Stage) -> None:
    c = await s.client()
    first = await s.direct.put("q", "first", delay=60)
    keyed = await s.direct.put("q", "keyed", key="a/b", delay=60)
    equal(await c.promote(queue="q", job_id=first), {}, "a promote by id")
    equal(await c.promote(queue="q", key="a/b"), {}, "a promote by key")
    equal([job["job_id"] for job in await s.direct.jobs("q", "ready")], [first, keyed], "the ready jobs")
    error = await c.refused("promote", "conflict", queue="q", job_id=first)
    equal((error["status"], error["message"]), (409, "the job is not delayed"), "the error")
    await c.refused("promote", "conflict", queue="q", key="a/b")
    await c.refused("promote", "not_found", queue="q", key="nobody")
    await c.refused("promote", "not_found", queue="q", job_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")


@scenario("Peek.", "peek_consumes")
async def peek(s: Stage) -> None:
    c = await s.client()
    equal((await c.peek(queue="q"))["job"], None, "peek of an empty queue")
    job_id = await s.direct.put("q", b"\xffx", tries=2)
    for _ in range(2):
        job = (await c.peek(queue="q"))["job"]
        check(job, "the peek of a queue that has a job shows none")
        equal((job["job_id"], body(job), job["remain_tries"]), (job_id, b"\xffx", 2), "the job")
        equal((job["queue"], job["namespace"]), ("q", s.namespace), "where it is")


@scenario("Consume, touch, release, bury and ack for those who want no worker.", "forgets_receipt")
async def by_hand(s: Stage) -> None:
    c = await s.client()
    equal((await c.consume(queues=["q"]))["jobs"], [], "a consume of an empty queue")
    ids = [await s.direct.put("q", str(i), tries=3) for i in range(4)]
    before = time.time() * 1000
    jobs = (await c.consume(queues=["other", "q"], count=10, ttr=20))["jobs"]
    equal([job["job_id"] for job in jobs], ids, "the jobs")
    equal({job["namespace"] for job in jobs}, {s.namespace}, "their namespace")
    equal({job["queue"] for job in jobs}, {"q"}, "their queue")
    equal({job["remain_tries"] for job in jobs}, {2}, "their tries")
    until = (await c.touch(job_id=ids[0], ttr=50))["until"]
    within(until, before + 49_000, before + 60_000, "until of a touch of 50 s")
    await c.ack(job_id=ids[0])
    await s.gone("q", ids[0])
    released = await c.release(job_id=ids[1], delay=60, spend=False, reason="wäit")
    equal(released, {"remain_tries": 3}, "a release that gives the try back")
    job = await s.state("q", ids[1], "delayed")
    equal(job["reason"], "wäit", "its reason")
    released = await c.release(job_id=ids[2])
    equal(released, {"remain_tries": 2}, "a release")
    await s.state("q", ids[2], "ready")
    last = await s.direct.put("last", "x", tries=1)
    await c.consume(queues=["last"])
    equal(await c.release(job_id=last, reason="no"), {"dead": True}, "a release of a job without tries")
    await c.bury(job_id=ids[3], reason="no")
    equal((await s.state("q", ids[3], "dead"))["reason"], "no", "reason of the dead job")


@scenario("A consume waits for `timeout`, longer than a request may take.", "short_consume")
async def consume_waits(s: Stage) -> None:
    c = await s.client(timeout=1, retry_for=0)
    began = s.now()
    equal((await c.consume(queues=["q"], timeout=3))["jobs"], [], "jobs")
    within(s.now() - began, 2.9, 8, "seconds until the answer")
    asked = asyncio.ensure_future(c.consume(queues=["q"], timeout=20))
    await s.request("consume", 2)
    await asyncio.sleep(1.5)
    job_id = await s.direct.put("q", "x")
    equal([job["job_id"] for job in (await asked)["jobs"]], [job_id], "the job that came after 1.5 s")


@scenario("A consume that is repeated waits for as long again, whatever is left of `retry_for`.", "short_consume")
async def consume_waits_again(s: Stage) -> None:
    c = await s.client(timeout=1, retry_for=3)
    s.proxy.rule("consume", answers(503, {"error": "the server is shutting down"}))
    equal((await c.consume(queues=["q"], timeout=5))["jobs"], [], "jobs")
    first, second = s.proxy.seen("consume")
    within((second.answered_at or 0) - (first.answered_at or 0), 4.9, 9, "seconds until the answer")


@scenario("Consume with weights.", "drops_weights")
async def consume_weights(s: Stage) -> None:
    c = await s.client()
    await c.consume(queues=["a", "b"], weights=[5, 3], count=2, ttr=9)
    (exchange,) = s.proxy.seen("consume")
    equal(exchange.request.path.rsplit("/", 1)[1].replace("%2C", ","), "a,b", "the queues")
    equal(
        [exchange.query.get(key) for key in ("weights", "count", "ttr", "receipt")], ["5,3", "2", "9", "1"], "the query"
    )


@scenario("Ack many, of which some are stale.", "hides_stale")
async def ack_many(s: Stage) -> None:
    c = await s.client()
    ids = [await s.direct.put("q", str(i), tries=3) for i in range(3)]
    await c.consume(queues=["q"], count=3, ttr=1)
    await s.state("q", ids[2], "ready", 10)
    jobs = (await c.consume(queues=["q"], count=2, ttr=30))["jobs"]
    held = [job["job_id"] for job in jobs]
    stale = next(job for job in ids if job not in held)
    # Another consumer has it: the receipt that the program has kept is old.
    check(await s.direct.take("q", ttr=30), "the third job is not there")
    answered = await c.ack_many(queue="q", job_ids=ids)
    equal((answered["acked"], answered["stale"]), (2, [stale]), "acked and stale")


@scenario("Pause and resume.", "pause_forever")
async def pause(s: Stage) -> None:
    c = await s.client()
    await s.direct.put("q", "x", tries=9)
    equal((await c.pause(queue="q"))["until"], None, "until of a pause without an end")
    equal((await c.consume(queues=["q"]))["jobs"], [], "jobs of a paused queue")
    until = (await c.pause(queue="q", for_=40))["until"]
    within(until or 0, time.time() * 1000 + 30_000, time.time() * 1000 + 41_000, "until of a pause of 40 s")
    await c.resume(queue="q")
    equal(len((await c.consume(queues=["q"]))["jobs"]), 1, "jobs after the resume")


@scenario("Lists are lazy: a page is asked for when it is needed.", "eager_lists")
async def lazy_lists(s: Stage) -> None:
    c = await s.client()
    ids = await s.direct.put_many("q", [str(i) for i in range(120)])
    first = (await c.list(queue="q", state="ready", take=1))["jobs"]
    equal([job["job_id"] for job in first], ids[:1], "the first job")
    equal(len(s.proxy.seen("list")), 1, "requests for one job")
    whole = (await c.list(queue="q", state="ready", data=True))["jobs"]
    equal([job["job_id"] for job in whole], ids, "all jobs")
    equal(body(whole[119]), b"119", "the body of the last")
    await s.direct.put("z", "x")
    queues = (await c.queues())["queues"]
    equal([(queue["queue"], queue["ready"]) for queue in queues], [("q", 120), ("z", 1)], "the queues")
    for state in ("delayed", "running", "dead"):
        equal((await c.list(queue="q", state=state))["jobs"], [], f"{state} jobs")


@scenario("A list goes on after an empty page.", "stops_at_empty_page")
async def empty_page(s: Stage) -> None:
    c = await s.client()
    job_id = await s.direct.put("q", "x")
    s.proxy.rule("list", answers(200, {"jobs": [], "cursor": "next", "scanned": 100}), times=2)

    async def last(exchange: Any) -> None:
        equal(exchange.query.get("cursor"), "next", "the cursor")
        exchange.request.target = f"/api/{s.namespace}/q/jobs?state=ready"
        await exchange.send(await exchange.forward())

    s.proxy.rule("list", last)
    jobs = (await c.list(queue="q", state="ready"))["jobs"]
    equal([job["job_id"] for job in jobs], [job_id], "jobs after two empty pages")
    s.proxy.rule("queues", answers(200, {"namespace": s.namespace, "queues": [], "cursor": "next"}))

    async def queues(exchange: Any) -> None:
        exchange.request.target = f"/api/{s.namespace}?limit=10"
        await exchange.send(await exchange.forward())

    s.proxy.rule("queues", queues)
    equal([queue["queue"] for queue in (await c.queues())["queues"]], ["q"], "queues after an empty page")


@scenario("Dead letter: show, respawn by id or the oldest, delete; destroy.", "respawns_one")
async def dead_letter(s: Stage) -> None:
    c = await s.client()
    ids = []
    for i in range(5):
        ids.append(await s.direct.put("q", str(i)))
        taken = await s.direct.take("q")
        assert taken is not None
        await s.direct.hold("bury", taken)
    shown = await c.dead(queue="q")
    equal((shown["size"], shown["head"]), (5, ids[0]), "size and head")
    answered = await c.respawn(queue="q", job_ids=[ids[3], "01M80D5J4VCPC2AJTPM8000000"], tries=4, ttl=0)
    equal((answered["respawned"], answered["missing"]), (1, ["01M80D5J4VCPC2AJTPM8000000"]), "respawned and missing")
    job = await s.state("q", ids[3], "ready")
    equal((job["remain_tries"], job["ttl"]), (4, 0), "tries and ttl of the job that was respawned")
    equal((await c.respawn(queue="q", oldest=2))["respawned"], 2, "respawned of the oldest")
    await s.state("q", ids[1], "ready")
    await c.delete_dead(queue="q", oldest=1)
    equal([job["job_id"] for job in await s.direct.jobs("q", "dead")], [ids[4]], "what is left dead")
    delayed_again = await c.respawn(queue="q", job_ids=[ids[4]], delay=60)
    equal(delayed_again["respawned"], 1, "respawned with a delay")
    await s.state("q", ids[4], "delayed")
    await c.destroy(queue="q")
    equal(await s.direct.jobs("q", "ready"), [], "ready jobs after a destroy")
    empty = await c.dead(queue="q")
    equal((empty["size"], empty["head"] or None), (0, None), "size and head of an empty dead letter")
