"""What a client is, and what it publishes."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from ..proxy import answers, delayed
from ..registry import scenario
from ..stage import Stage, body, check, equal, within


def stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


@scenario("An instant may be the language's own in any zone, a text in RFC 3339, or seconds.", "shifted_at")
async def instants(s: Stage) -> None:
    c = await s.client()
    ms = (int(time.time()) + 3600) * 1000 + 250
    there = datetime.fromtimestamp(ms / 1000, UTC).astimezone(timezone(timedelta(hours=5, minutes=45)))
    forms: list[dict[str, Any]] = [
        {"as": "time", "ms": ms, "offset": 0},
        {"as": "time", "ms": ms, "offset": -210},
        {"as": "text", "value": stamp(there)},
        {"as": "text", "value": stamp(there.astimezone(UTC)).replace("+00:00", "Z")},
        {"as": "number", "seconds": ms / 1000},
    ]
    for at in forms:
        published = await c.publish(queue="q", data=b"x", at=at)
        equal(published["due_at"], ms, f"due_at of a publish with {at}")
    for wrong in ("2027-01-01T00:00:00", "tomorrow", ""):
        await c.refused("publish", "invalid", queue="q", data=b"x", at={"as": "text", "value": wrong})


@scenario("The URL may have a path in front of /api.", "no_path")
async def path(s: Stage) -> None:
    s.proxy.prefix = "/behind/a/balancer"
    c = await s.client(url=s.proxy.url)
    await c.publish(queue="q", data=b"x")
    slash = await s.client(url=s.proxy.url + "/")
    await slash.publish(queue="q", data=b"x")
    equal((await c.size(queue="q"))["size"], 2, "jobs in the queue")
    check(all(e.request.target.startswith("/api/") for e in s.proxy.exchanges), "a request without the path")


@scenario(
    "The token goes in X-Token, never into a URL, a log, an error or a repr.", "token_in_url token_in_log token_in_error", own=True
)
async def token_stays_secret(s: Stage) -> None:
    c = await s.client(retry_for=0)
    await c.publish(queue="q", data=b"x")
    w = await s.worker(c)
    await w.event("end")
    said = []
    for status in (400, 401, 403, 500, 503):
        s.proxy.rule("publish", answers(status, {"error": "no"}))
        said.append(await c.refused("publish", queue="q", data=b"x"))
    await w.stop()
    s.proxy.refuse()
    said.append(await c.refused("publish", "network", queue="q", data=b"x"))
    check(s.proxy.exchanges, "no request")
    for exchange in s.proxy.exchanges:
        equal(exchange.request.header("X-Token"), s.token, "X-Token")
        check(s.token not in exchange.request.target, f"the token is in {exchange.request.target}")
    check(s.token not in json.dumps(said), "the token is in an error")
    for text in (s.program.stdout, s.program.errors):
        check(s.token.encode() not in text, f"the token is in what the program says: {bytes(text)[-600:]!r}")


@scenario("Redirects are not followed.", "follows_redirects")
async def no_redirect(s: Stage) -> None:
    c = await s.client()
    for status in (301, 302, 307, 308):
        s.proxy.rule("get", answers(status, b"", Location=f"{s.proxy.url}/api/{s.namespace}/q/size"))
        error = await c.refused("get", "protocol", queue="q", job_id="01M80D5J4VCPC2AJTPM8000000")
        equal(error["status"], status, "its status")
        equal(error["retryable"], False, "whether a redirect may be repeated")
    equal(len(s.proxy.exchanges), 4, "requests")


@scenario("`User-Agent: dormouse-go/0.1.0`.", "other_agent")
async def user_agent(s: Stage) -> None:
    c = await s.client()
    await c.size(queue="q")
    hello = s.program.hello
    wanted = f"dormouse-{hello['language']}/{hello['version']}"
    equal(s.proxy.exchanges[0].request.header("User-Agent"), wanted, "User-Agent")


@scenario("A client keeps its connections.", "connection_each")
async def keeps_connections(s: Stage) -> None:
    c = await s.client()
    for i in range(20):
        await c.publish(queue="q", data=b"%d" % i)
        await c.size(queue="q")
    equal(s.proxy.opened, 1, "connections of 40 requests one after the other")


@scenario("A client is safe to share.", "mixes_answers")
async def is_shared(s: Stage) -> None:
    c = await s.client()

    async def one(i: int) -> None:
        published = await c.publish(queue="q", data=b"job %d" % i)
        found = await c.get(queue="q", job_id=published["job_id"])
        equal(body(found), b"job %d" % i, f"the body of {published['job_id']}")

    await asyncio.gather(*(one(i) for i in range(40)))
    check(s.proxy.opened < 80, f"{s.proxy.opened} connections for 80 requests, 40 at a time")


@scenario("Publish answers id, due_at, duplicate, replaced, replayed.", "wrong_due_at")
async def publish(s: Stage) -> None:
    c = await s.client()
    before = time.time() * 1000
    p = await c.publish(queue="q", data=b"now")
    within(p["due_at"], before - 1000, time.time() * 1000 + 1000, "due_at of a job without delay")
    equal([p["duplicate"], p["replaced"], p["replayed"]], [False, None, False], "duplicate, replaced, replayed")
    d = await c.publish(queue="q", data=b"later", delay=7.25)
    within(d["due_at"], before + 7250 - 1000, time.time() * 1000 + 7250 + 1000, "due_at with a delay of 7.25 s")
    found = await s.direct.job("q", p["job_id"])
    check(found, "the job is not there")


@scenario("Publish takes `ttl`, `tries` and `delay`.", "drops_parameters")
async def parameters(s: Stage) -> None:
    c = await s.client()
    p = await c.publish(queue="q", data=b"x", ttl=500, tries=7, delay=30)
    job = await s.direct.job("q", p["job_id"])
    assert job is not None
    equal((job["remain_tries"], job["state"]), (7, "delayed"), "tries and state")
    within(job["ttl"], 490, 500, "ttl")
    forever = await c.publish(queue="q", data=b"x", ttl=0)
    job = await s.direct.job("q", forever["job_id"])
    equal(job and job["ttl"], 0, "ttl of a job that stays forever")


@scenario("`key` and `on_conflict`: keep answers the job that is there, replace takes its place, fail is refused.", "drops_key")
async def keys(s: Stage) -> None:
    c = await s.client()
    key = "order:1/2?é".replace("é", "~")
    first = await c.publish(queue="q", data=b"1", key=key, delay=60)
    again = await c.publish(queue="q", data=b"2", key=key, delay=60)
    equal((again["job_id"], again["duplicate"]), (first["job_id"], True), "a second publish that keeps")
    new = await c.publish(queue="q", data=b"3", key=key, on_conflict="replace", delay=60)
    equal(new["replaced"], first["job_id"], "replaced")
    error = await c.refused("publish", "conflict", queue="q", data=b"4", key=key, on_conflict="fail")
    equal(error["job_id"], new["job_id"], "job_id of the conflict")
    equal(body(await c.get(queue="q", key=key)), b"3", "the job that has the key")
    await c.cancel(queue="q", key=key)
    await c.refused("get", "not_found", queue="q", key=key)
    await c.refused("cancel", "not_found", queue="q", key=key)


@scenario("An `idempotency_key` of the caller's is sent; a second call with it is answered as `replayed`.", "drops_idempotency")
async def idempotency_key(s: Stage) -> None:
    c = await s.client()
    first = await c.publish(queue="q", data=b"1", idempotency_key="mine 1")
    again = await c.publish(queue="q", data=b"1", idempotency_key="mine 1")
    equal((again["job_id"], again["replayed"], first["replayed"]), (first["job_id"], True, False), "the second call")
    equal(s.proxy.exchanges[0].request.header("Idempotency-Key"), "mine 1", "Idempotency-Key")
    await c.refused("publish", "key_reused", queue="q", data=b"2", idempotency_key="mine 1")
    equal((await c.size(queue="q"))["size"], 1, "jobs in the queue")


@scenario("Publish has a form for JSON.", "json_twice")
async def as_json(s: Stage) -> None:
    c = await s.client()
    value = {"to": ["ann", "bö"], "n": 1.5, "none": None, "yes": True}
    p = await c.publish(queue="q", json=value)
    job = await s.direct.job("q", p["job_id"])
    assert job is not None
    equal(json.loads(body(job)), value, "the body as JSON")


@scenario("Bodies are any bytes.", "text_bodies")
async def any_bytes(s: Stage) -> None:
    c = await s.client()
    for raw in (b"", bytes(range(256)), b"\xff\xfe\r\n\0", bytes(1 << 20)):
        p = await c.publish(queue="q", data=raw)
        equal(body(await c.get(queue="q", job_id=p["job_id"])) == raw, True, f"whether {len(raw)} bytes come back")
        taken = (await c.consume(queues=["q"]))["jobs"]
        check(len(taken) == 1 and body(taken[0]) == raw, f"{len(raw)} bytes are consumed as others")
        await c.ack(job_id=p["job_id"])


ATTRIBUTES = {
    "plain": "a value", "ünïcode": "naïve ☕ 漢字", "blanks": "  both ends  ", "lines": "a\nb\tc", "under_score": "x",
    "colon: in the name": "x", "nul": "a\x00b", "quotes": "\"'\\", "latin": "Ångström",
}  # fmt: skip


@scenario("An attribute arrives as it was given, in any UTF-8.", "ascii_attributes")
async def attributes(s: Stage) -> None:
    c = await s.client()
    sets: list[dict[str, str]] = [{key: value} for key, value in ATTRIBUTES.items()]
    sets.append(ATTRIBUTES)
    for given in sets:
        p = await c.publish(queue="q", data=b"\xffx", attributes=given)
        (job,) = (await c.consume(queues=["q"]))["jobs"]
        equal((job["job_id"], job["attributes"], body(job)), (p["job_id"], given, b"\xffx"), "the job")
        await c.ack(job_id=p["job_id"])


@scenario("Attributes are refused before anything is sent: over 16, a name over 32 bytes, a value over 128.", "sends_attributes")
async def attribute_bounds(s: Stage) -> None:
    c = await s.client()
    bounds = [{str(i): "v" for i in range(16)}, {"n" * 32: "v"}, {"é" * 16: "v"}, {"n": "v" * 128}, {"n": "é" * 64}]
    for given in bounds:
        p = await c.publish(queue="q", data=b"x", attributes=given)
        equal((await c.get(queue="q", job_id=p["job_id"]))["attributes"], given, "attributes at the bound")
    sent = len(s.proxy.exchanges)
    beyond = [{str(i): "v" for i in range(17)}, {"n" * 33: "v"}, {"é" * 17: "v"}, {"n": "v" * 129}, {"n": "é" * 65}]
    for given in beyond:
        error = await c.refused("publish", "invalid", queue="q", data=b"x", attributes=given)
        equal((error["status"], error["retryable"]), (None, False), "status and retryable of what was not sent")
        error = await c.refused("publish_many", "invalid", queue="q", jobs=[{"data": ""}, {"data": "", "attributes": given}])
        equal(error["index"], 1, "index of the job that was refused")
    equal(len(s.proxy.exchanges), sent, "requests after those that were taken")


@scenario("An attribute arrives as it was given, or the publish is refused: the server keeps neither capitals in names nor empty values.", "sends_attributes")
async def attribute_names(s: Stage) -> None:
    c = await s.client()
    for given in ({"CamelCase": "x"}, {"É": "x"}, {"": "x"}, {"empty": ""}):
        await c.refused("publish", "invalid", queue="q", data=b"x", attributes=given)
        error = await c.refused("publish_many", "invalid", queue="q", jobs=[{"data": "", "attributes": given}])
        equal(error["index"], 0, "index of the job that was refused")
    equal(s.proxy.exchanges, [], "requests")


@scenario("A `traceparent` given to a publish is the attribute of that name; `job.traceparent` has it.", "drops_traceparent")
async def traceparent(s: Stage) -> None:
    c = await s.client()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    p = await c.publish(queue="q", data=b"x", traceparent=trace, attributes={"a": "b"})
    (job,) = (await c.consume(queues=["q"]))["jobs"]
    equal(job["job_id"], p["job_id"], "the job")
    equal(job["traceparent"], trace, "job.traceparent")
    equal(job["attributes"], {"a": "b", "traceparent": trace}, "attributes")


def datas(count: int) -> list[dict[str, Any]]:
    from ..stage import data

    return [{"data": data(b"%d" % i)} for i in range(count)]


@scenario("Publish many takes any number: batches of 64, in order.", "reorders_batch")
async def many(s: Stage) -> None:
    c = await s.client()
    published = (await c.publish_many(queue="q", jobs=datas(150)))["jobs"]
    equal(len(published), 150, "answers")
    equal([len(e.request.json()) for e in s.proxy.seen("publish_many")], [64, 64, 22], "jobs of each batch")
    there = await s.direct.jobs("q", "ready")
    equal([body(job) for job in there], [b"%d" % i for i in range(150)], "bodies in the queue")
    equal([job["job_id"] for job in published], [job["job_id"] for job in there], "ids in the order of the call")
    keys = {e.request.header("Idempotency-Key") for e in s.proxy.seen("publish_many")}
    check(None not in keys and len(keys) == 3, f"the batches' Idempotency-Keys: {keys}")


@scenario("A batch has 8 MiB at most.", "no_split")
async def many_bytes(s: Stage) -> None:
    c = await s.client(timeout=30)
    from ..stage import data

    raw = data(bytes(1_000_000))
    await c.publish_many(queue="q", jobs=[{"data": raw}] * 11)
    sizes = [len(e.request.json()) for e in s.proxy.seen("publish_many")]
    equal(sum(sizes), 11, "jobs in all batches")
    check(max(sizes) <= 8, f"a batch of more than 8 MiB: {sizes} jobs of 1,000,000 bytes")
    check(min(sizes[:-1]) >= 5, f"batches are smaller than they need be: {sizes} jobs of 1,000,000 bytes")
    equal((await c.size(queue="q"))["size"], 11, "jobs in the queue")


@scenario("An error of publish many carries what was published before; its index counts from the first job of the call.", "index_of_batch")
async def many_refused(s: Stage) -> None:
    c = await s.client()
    taken = await s.direct.put("q", "there", key="taken", delay=60)
    jobs = datas(140)
    jobs[100] |= {"key": "taken", "on_conflict": "fail"}
    error = await c.refused("publish_many", "conflict", queue="q", jobs=jobs)
    equal((error["index"], error["published"], error["job_id"]), (100, 64, taken), "index, published, job_id")
    equal((await c.size(queue="q"))["size"], 64, "jobs in the queue: the second batch is none, the third was not sent")


@scenario("Each job of publish many has its own parameters and attributes.", "drops_batch_fields")
async def many_fields(s: Stage) -> None:
    c = await s.client()
    at = (int(time.time()) + 900) * 1000
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    jobs: list[dict[str, Any]] = [
        {"json": {"a": 1}, "tries": 4, "attributes": {"ünï": "ä"}},
        {"data": "AAH/", "delay": 60.5, "key": "k", "traceparent": trace},
        {"data": "", "at": {"as": "time", "ms": at, "offset": 60}, "ttl": 0},
        {"data": "AAH/", "key": "k2", "on_conflict": "keep"},
    ]
    answered = (await c.publish_many(queue="q", jobs=jobs))["jobs"]
    found = [await s.direct.job("q", job["job_id"]) for job in answered]
    a, b, d, _ = (job or {} for job in found)
    equal((json.loads(body(a)), a["remain_tries"], a["attributes"]), ({"a": 1}, 4, {"ünï": "ä"}), "the first")
    equal((body(b), b["key"], b["attributes"]), (b"\x00\x01\xff", "k", {"traceparent": trace}), "the second")
    equal((answered[2]["due_at"], d["ttl"]), (at, 0), "the third")
    again = (await c.publish_many(queue="q", jobs=jobs[3:]))["jobs"]
    equal((again[0]["duplicate"], again[0]["job_id"]), (True, answered[3]["job_id"]), "the fourth, published again")


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
    await c.cancel(queue="q", job_id=job_id)
    await c.refused("get", "not_found", queue="q", job_id=job_id)
    equal(await c.cancel(queue="q", job_id=job_id), {}, "a cancel of what is not there")


@scenario("Peek.", "peek_consumes")
async def peek(s: Stage) -> None:
    c = await s.client()
    equal((await c.peek(queue="q"))["job"], None, "peek of an empty queue")
    job_id = await s.direct.put("q", b"\xffx", tries=2)
    for _ in range(2):
        job = (await c.peek(queue="q"))["job"]
        equal((job["job_id"], body(job), job["remain_tries"]), (job_id, b"\xffx", 2), "the job")


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
    equal(released["remain_tries"], 3, "tries after a release that gives the try back")
    job = await s.state("q", ids[1], "delayed")
    equal(job["reason"], "wäit", "its reason")
    released = await c.release(job_id=ids[2])
    equal(released["remain_tries"], 2, "tries after a release")
    await s.state("q", ids[2], "ready")
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


@scenario("Consume with weights.", "drops_weights")
async def consume_weights(s: Stage) -> None:
    c = await s.client()
    await c.consume(queues=["a", "b"], weights=[5, 3], count=2, ttr=9)
    (exchange,) = s.proxy.seen("consume")
    equal(exchange.request.path.rsplit("/", 1)[1].replace("%2C", ","), "a,b", "the queues")
    equal([exchange.query.get(key) for key in ("weights", "count", "ttr", "receipt")], ["5,3", "2", "9", "1"], "the query")


@scenario("Ack many, of which some are stale.", "hides_stale")
async def ack_many(s: Stage) -> None:
    c = await s.client()
    ids = [await s.direct.put("q", str(i), tries=3) for i in range(3)]
    await c.consume(queues=["q"], count=3, ttr=1)
    await s.state("q", ids[2], "ready", 10)
    jobs = (await c.consume(queues=["q"], count=2, ttr=30))["jobs"]
    held = [job["job_id"] for job in jobs]
    stale = next(job for job in ids if job not in held)
    # Somebody else has it: the receipt that the program has kept is old.
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
    within(until, time.time() * 1000 + 30_000, time.time() * 1000 + 41_000, "until of a pause of 40 s")
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


@scenario("`timeout` is for one request: a slow answer is taken while it lasts.", "cuts_slow_answers")
async def slow_answer(s: Stage) -> None:
    c = await s.client(timeout=6, retry_for=0)
    s.proxy.rule("publish", delayed(after=1.5))
    await c.publish(queue="q", data=b"x")
    equal(len(s.proxy.exchanges), 1, "requests")
