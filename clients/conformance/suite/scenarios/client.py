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
    "The token goes in X-Token, never into a URL, a log, an error or a repr.",
    "token_in_url token_in_log token_in_error",
    own=True,
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


@scenario(
    "`key` and `on_conflict`: keep answers the job that is there, replace takes its place, fail is refused.",
    "drops_key",
)
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


@scenario(
    "An `idempotency_key` of the caller's is sent; a second call with it is answered as `replayed`.",
    "drops_idempotency",
)
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
    "plain": "a value", "unicode": "naïve ☕ 漢字", "blanks": "  both ends  ", "under_score": "x",
    "dots.and!marks": "x", "quotes": "\"'\\", "latin": "Ångström",
}  # fmt: skip
#: What no header can carry: push would drop it.
NO_ATTRIBUTES: tuple[dict[str, str], ...] = (
    {"ünïcode": "x"}, {"a blank": "x"}, {"colon:": "x"}, {"lines": "a\nb"}, {"nul": "a\x00b"},
)  # fmt: skip


@scenario("An attribute arrives as it was given, a value in any UTF-8, or the publish is refused.", "ascii_attributes")
async def attributes(s: Stage) -> None:
    c = await s.client()
    sets: list[dict[str, str]] = [{key: value} for key, value in ATTRIBUTES.items()]
    sets.append(ATTRIBUTES)
    for given in sets:
        p = await c.publish(queue="q", data=b"\xffx", attributes=given)
        (job,) = (await c.consume(queues=["q"]))["jobs"]
        equal((job["job_id"], job["attributes"], body(job)), (p["job_id"], given, b"\xffx"), "the job")
        await c.ack(job_id=p["job_id"])
    for given in NO_ATTRIBUTES:
        await c.refused("publish", "invalid", queue="q", data=b"x", attributes=given)
    equal(await s.direct.jobs("q", "ready"), [], "jobs that were refused")


@scenario(
    "Attributes are refused before anything is sent: over 16, a name over 32 bytes, a value over 128.",
    "sends_attributes",
)
async def attribute_bounds(s: Stage) -> None:
    c = await s.client()
    bounds = [{str(i): "v" for i in range(16)}, {"n" * 32: "v"}, {"n": "v" * 128}, {"n": "é" * 64}]
    for given in bounds:
        p = await c.publish(queue="q", data=b"x", attributes=given)
        equal((await c.get(queue="q", job_id=p["job_id"]))["attributes"], given, "attributes at the bound")
    sent = len(s.proxy.exchanges)
    beyond = [{str(i): "v" for i in range(17)}, {"n" * 33: "v"}, {"n": "v" * 129}, {"n": "é" * 65}]
    for given in beyond:
        error = await c.refused("publish", "invalid", queue="q", data=b"x", attributes=given)
        equal((error["status"], error["retryable"]), (None, False), "status and retryable of what was not sent")
        error = await c.refused(
            "publish_many", "invalid", queue="q", jobs=[{"data": ""}, {"data": "", "attributes": given}]
        )
        equal((error["index"], error["published"]), (1, 0), "index of the job that was refused, and published")
    late = [{"data": ""}] * 70 + [{"data": "", "attributes": beyond[0]}]
    error = await c.refused("publish_many", "invalid", queue="q", jobs=late)
    equal((error["index"], error["published"]), (70, 0), "index and published of a job behind a whole batch")
    equal(len(s.proxy.exchanges), sent, "requests after those that were taken")


@scenario(
    "An attribute arrives as it was given, or the publish is refused: the server keeps neither capitals in names nor empty values.",
    "sends_attributes",
)
async def attribute_names(s: Stage) -> None:
    c = await s.client()
    for given in ({"CamelCase": "x"}, {"É": "x"}, {"": "x"}, {"empty": ""}):
        await c.refused("publish", "invalid", queue="q", data=b"x", attributes=given)
        error = await c.refused("publish_many", "invalid", queue="q", jobs=[{"data": "", "attributes": given}])
        equal(error["index"], 0, "index of the job that was refused")
    equal(s.proxy.exchanges, [], "requests")


@scenario(
    "A `traceparent` given to a publish is the attribute of that name; `job.traceparent` has it.", "drops_traceparent"
)
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
    # 32 of these are exactly 8 MiB, not counting the separators.
    await c.publish_many(queue="exact", jobs=[{"data": data(bytes(196_599))}] * 32)
    lengths = [len(e.request.body) for e in s.proxy.seen("publish_many")]
    check(max(lengths) <= 8 << 20, f"a batch of {max(lengths)} bytes")


@scenario(
    "An error of publish many carries what was published before; its index counts from the first job of the call.",
    "index_of_batch",
)
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
        {"json": {"a": 1}, "tries": 4, "attributes": {"uni": "ä"}},
        {"data": "AAH/", "delay": 60.5, "key": "k", "traceparent": trace},
        {"data": "", "at": {"as": "time", "ms": at, "offset": 60}, "ttl": 0},
        {"data": "AAH/", "key": "k2", "on_conflict": "keep"},
    ]
    answered = (await c.publish_many(queue="q", jobs=jobs))["jobs"]
    found = [await s.direct.job("q", job["job_id"]) for job in answered]
    a, b, d, _ = (job or {} for job in found)
    equal((json.loads(body(a)), a["remain_tries"], a["attributes"]), ({"a": 1}, 4, {"uni": "ä"}), "the first")
    equal((body(b), b["key"], b["attributes"]), (b"\x00\x01\xff", "k", {"traceparent": trace}), "the second")
    equal((answered[2]["due_at"], d["ttl"]), (at, 0), "the third")
    again = (await c.publish_many(queue="q", jobs=jobs[3:]))["jobs"]
    equal((again[0]["duplicate"], again[0]["job_id"]), (True, answered[3]["job_id"]), "the fourth, published again")


@scenario("`timeout` is for one request: a slow answer is taken while it lasts.", "cuts_slow_answers")
async def slow_answer(s: Stage) -> None:
    c = await s.client(timeout=6, retry_for=0)
    s.proxy.rule("publish", delayed(after=1.5))
    await c.publish(queue="q", data=b"x")
    equal(len(s.proxy.exchanges), 1, "requests")
