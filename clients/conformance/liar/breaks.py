"""The promises that the liar can break, each by what is seen of it: an op, a line, or a request on its way."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from suite import wire
from suite.proxy import Exchange, answers, streamed
from suite.wire import Answer, Ended, Request

if TYPE_CHECKING:
    from .main import Liar, Line

Break = Callable[["Liar"], None]
BREAKS: dict[str, Break] = {}


def lie(break_: Break) -> Break:
    BREAKS[break_.__name__] = break_
    return break_


# What most breaks are made of.


def op(liar: Liar, names: str, change: Callable[[Line], Any]) -> None:
    """Changes requests of the suite's."""
    wanted = names.split()
    liar.ops.append(lambda given: change(given) if given["op"] in wanted else None)


def option(liar: Liar, **values: Any) -> None:
    """Workers have another option than they were given."""
    op(liar, "worker", lambda given: given.update(values))


def without(*names: str) -> Callable[[Line], None]:
    def change(given: Line) -> None:
        for name in names:
            given.pop(name, None)

    return change


def request(liar: Liar, verbs: str, change: Callable[[Request], Any], when: Callable[[Exchange], bool] | None = None) -> None:
    """Changes requests to the server."""

    async def act(exchange: Exchange) -> None:
        change(exchange.request)
        await streamed(exchange)

    liar.rules.append((verbs, act, None, when))


def query(liar: Liar, verbs: str, **values: Any) -> None:
    """Sets parameters; None takes one away."""

    def change(given: Request) -> None:
        given.target = target(given, **values)

    request(liar, verbs, change)


def target(given: Request, **values: Any) -> str:
    left = {key: value for key, value in (given.query | values).items() if value is not None}
    path = given.target.split("?")[0]
    return f"{path}?{urlencode(left)}" if left else path


def answer(liar: Liar, verbs: str, change: Callable[[Answer], Any]) -> None:
    """Changes answers of the server."""

    async def act(exchange: Exchange) -> None:
        given = await exchange.forward()
        change(given)
        await exchange.send(given)

    liar.rules.append((verbs, act, None))


def instead(liar: Liar, verbs: str, status: int, body: Any = b"", when: Callable[[Exchange], bool] | None = None) -> None:
    """The server never hears of it."""
    liar.rules.append((verbs, answers(status, body), None, when))


def line(liar: Liar, change: Callable[[Line], Any]) -> None:
    liar.lines.append(change)


def event(liar: Liar, name: str, change: Callable[[Line], Any], **fields: Any) -> None:
    def of(given: Line) -> Any:
        if given.get("event") == name and all(given.get(key) == value for key, value in fields.items()):
            return change(given)
        return None

    line(liar, of)


def result(liar: Liar, ops: str, change: Callable[[Line], Any]) -> None:
    """Changes answers to the suite."""
    wanted = ops.split()

    def of(given: Line) -> None:
        if "result" in given and liar.asked[given["id"]]["op"] in wanted:
            change(given["result"])

    line(liar, of)


def error(liar: Liar, change: Callable[[Line], Any]) -> None:
    line(liar, lambda given: change(given["error"]) if isinstance(given.get("error"), dict) and "id" in given else None)


def held(liar: Liar, seconds: float, verbs: str, when: Callable[[Exchange], bool] | None = None) -> None:
    """Requests come late."""

    async def act(exchange: Exchange) -> None:
        await exchange.pause(seconds)
        await streamed(exchange)

    liar.rules.append((verbs, act, None, when))


def cut_after(liar: Liar, verbs: str, seconds: float) -> None:
    """Answers that take long are not waited for."""

    async def act(exchange: Exchange) -> None:
        try:
            given = await asyncio.wait_for(exchange.forward(), seconds)
        except TimeoutError:
            exchange.reset()
        await exchange.send(given)

    liar.rules.append((verbs, act, None))


def also(liar: Liar, verbs: str, other: Callable[[Exchange], list[Request]]) -> None:
    """Sends further requests beside."""

    async def act(exchange: Exchange) -> None:
        for request in other(exchange):
            await wire.ask(exchange.proxy.upstream, request)
        await streamed(exchange)

    liar.rules.append((verbs, act, None))


def copy(exchange: Exchange, method: str, target: str) -> Request:
    return Request(method, target, [("X-Token", exchange.request.header("X-Token") or "")])


def repeated(liar: Liar, verbs: str, times: int) -> None:
    """Repeats what has failed at once."""

    async def act(exchange: Exchange) -> None:
        for left in reversed(range(times + 1)):
            try:
                given = await exchange.forward()
            except (Ended, OSError):
                if exchange.incoming.buffer or not left:
                    raise
                exchange.proxy.forget(exchange)
                continue
            if given.status < 400 or not left:
                break
        await exchange.send(given)

    liar.rules.append((verbs, act, None))


def receipts(liar: Liar) -> dict[str, str]:
    """The first receipt of each job that was handed out, as polls bring them."""

    def note(given: Answer) -> None:
        if given.status == 200:
            jobs = given.json()
            for job in jobs if isinstance(jobs, list) else [jobs]:
                liar.receipts.setdefault(job["job_id"], job.get("receipt"))

    answer(liar, "consume", note)
    return liar.receipts


RESULTS = "ack release bury"
PUBLISHES = "publish publish_many"


# Client


@lie
def shifted_at(liar: Liar) -> None:
    """The zone of an instant is ignored."""

    def change(given: Line) -> None:
        at = given.get("at")
        if isinstance(at, dict) and at["as"] == "time":
            at["ms"] += at["offset"] * 60_000
        elif isinstance(at, dict) and at["as"] == "text":
            at["value"] = re.sub(r"[+-]\d\d:\d\d$", "Z", at["value"])

    op(liar, "publish", change)


@lie
def no_path(liar: Liar) -> None:
    """The path in front of /api is left out."""

    def change(given: Request) -> None:
        given.target = given.target[given.target.index("/api/") :]

    request(liar, "", change)


@lie
def token_in_url(liar: Liar) -> None:
    """The token is in the query."""

    def change(given: Request) -> None:
        given.target = target(given, token=given.header("X-Token"))

    request(liar, "", change)


@lie
def token_in_log(liar: Liar) -> None:
    """Requests are logged with their headers."""
    request(liar, "", lambda given: liar.log(f"request {given.headers}"))


@lie
def token_in_error(liar: Liar) -> None:
    """Errors say which token was used."""
    error(liar, lambda given: given.update(message=f"{given['message']} {list(liar.clients.values())[-1]['token']}"))


@lie
def follows_redirects(liar: Liar) -> None:
    """Redirects are followed."""

    async def act(exchange: Exchange) -> None:
        given = await exchange.forward()
        if 300 <= given.status < 400:
            url = urlsplit(given.header("Location") or "")
            exchange.request.target = url.path
            given = await exchange.forward()
        await exchange.send(given)

    liar.rules.append(("", act, None))


@lie
def other_agent(liar: Liar) -> None:
    """The User-Agent is that of an HTTP library."""
    request(liar, "", lambda given: given.set_header("User-Agent", "http-library/1.0"))


@lie
def connection_each(liar: Liar) -> None:
    """Each request has a connection of its own."""

    async def act(exchange: Exchange) -> None:
        await streamed(exchange)
        exchange.proxy.forget(exchange)

    liar.rules.append(("", act, None))


@lie
def mixes_answers(liar: Liar) -> None:
    """A caller gets the answer of another."""
    before: list[Line] = []

    def change(given: Line) -> None:
        mine = dict(given)
        if before:
            given.update(before.pop())
        before.append(mine)

    result(liar, "get", change)


@lie
def wrong_due_at(liar: Liar) -> None:
    """due_at is not that of the server."""
    result(liar, "publish", lambda given: given.update(due_at=given["due_at"] + 5000))


@lie
def drops_parameters(liar: Liar) -> None:
    """ttl, tries and delay are not sent."""
    op(liar, "publish", without("ttl", "tries", "delay"))


@lie
def drops_key(liar: Liar) -> None:
    """The key is not sent."""
    op(liar, "publish", without("key"))


@lie
def drops_idempotency(liar: Liar) -> None:
    """The caller's Idempotency-Key is not used."""
    op(liar, "publish", without("idempotency_key"))


@lie
def json_twice(liar: Liar) -> None:
    """JSON is written as a text in JSON."""
    op(liar, "publish", lambda given: given.update(json=json.dumps(given["json"])) if "json" in given else None)


@lie
def text_bodies(liar: Liar) -> None:
    """Bodies go through UTF-8."""

    def change(given: Line) -> None:
        raw = base64.b64decode(given.get("data", "")).decode(errors="replace").encode()
        given["data"] = base64.b64encode(raw[: 1 << 20]).decode()

    op(liar, "publish", change)


@lie
def ascii_attributes(liar: Liar) -> None:
    """Attributes are what a header can carry."""

    def change(given: Line) -> None:
        if given.get("attributes"):
            given["attributes"] = {k: v.encode("ascii", "replace").decode().strip() for k, v in given["attributes"].items()}

    op(liar, "publish", change)


@lie
def sends_attributes(liar: Liar) -> None:
    """Something is sent before attributes are looked at."""

    async def change(given: Line) -> None:
        await liar.ask(given["client"], "GET", "/q/size")

    op(liar, PUBLISHES, change)


@lie
def drops_traceparent(liar: Liar) -> None:
    """The traceparent is not sent."""
    op(liar, "publish", without("traceparent"))


@lie
def reorders_batch(liar: Liar) -> None:
    """A batch is sent in another order."""

    def change(given: Request) -> None:
        given.body = json.dumps(given.json()[::-1]).encode()

    request(liar, "publish_many", change)


@lie
def no_split(liar: Liar) -> None:
    """A batch is as large as the caller's list."""

    async def change(given: Line) -> Line:
        given_back = await liar.ask(given["client"], "POST", f"/{given['queue']}/jobs/batch", json.dumps(given["jobs"]).encode())
        return {"result": {"jobs": given_back.json()["jobs"]}}

    op(liar, "publish_many", change)


@lie
def index_of_batch(liar: Liar) -> None:
    """The index counts from the first job of the batch."""
    error(liar, lambda given: given.update(index=given["index"] % 64) if given["index"] else None)


@lie
def drops_batch_fields(liar: Liar) -> None:
    """Jobs of a batch have bodies alone."""

    def change(given: Line) -> None:
        given["jobs"] = [{key: job[key] for key in ("data", "json") if key in job} for job in given["jobs"]]

    op(liar, "publish_many", change)


@lie
def drops_reason(liar: Liar) -> None:
    """The reason is not shown."""
    result(liar, "get", lambda given: given.update(reason=None))


@lie
def peek_consumes(liar: Liar) -> None:
    """A peek takes the job."""

    async def act(exchange: Exchange) -> None:
        given = await exchange.forward()
        await wire.ask(exchange.proxy.upstream, copy(exchange, "GET", exchange.request.path.removesuffix("/peek")))
        await exchange.send(given)

    liar.rules.append(("peek", act, None))


@lie
def forgets_receipt(liar: Liar) -> None:
    """A touch by hand is sent without its receipt."""
    query(liar, "touch release bury", receipt=None)


@lie
def short_consume(liar: Liar) -> None:
    """A consume waits no longer than any request."""
    cut_after(liar, "consume", 1)


@lie
def drops_weights(liar: Liar) -> None:
    """Weights are not sent."""
    query(liar, "consume", weights=None)


@lie
def hides_stale(liar: Liar) -> None:
    """What is stale counts as acked."""

    def change(given: Answer) -> None:
        given.body = json.dumps(given.json() | {"stale": []}).encode()

    answer(liar, "ack_many", change)


@lie
def pause_forever(liar: Liar) -> None:
    """A pause has no end."""
    query(liar, "pause", **{"for": None})


@lie
def eager_lists(liar: Liar) -> None:
    """A page is asked for before it is needed."""
    also(liar, "list", lambda exchange: [copy(exchange, "GET", exchange.request.target)])


@lie
def stops_at_empty_page(liar: Liar) -> None:
    """A list ends at an empty page."""

    def change(given: Answer) -> None:
        page = given.json()
        if page.get("jobs") == [] or page.get("queues") == []:
            given.body = json.dumps(page | {"cursor": None}).encode()

    answer(liar, "list queues", change)


@lie
def respawns_one(liar: Liar) -> None:
    """One job is respawned, however many were asked for."""
    query(liar, "respawn_oldest", limit=1)


@lie
def cuts_slow_answers(liar: Liar) -> None:
    """A request has less time than `timeout`."""
    cut_after(liar, "publish", 0.7)


# Repeats


@lie
def no_key(liar: Liar) -> None:
    """Publishes carry no Idempotency-Key."""
    request(liar, PUBLISHES, lambda given: given.set_header("Idempotency-Key", None))


@lie
def key_each_repeat(liar: Liar) -> None:
    """Each repeat has an Idempotency-Key of its own."""
    request(liar, PUBLISHES, lambda given: given.set_header("Idempotency-Key", str(uuid.uuid4())))


@lie
def key_for_all(liar: Liar) -> None:
    """Two publishes have the same Idempotency-Key."""
    request(liar, PUBLISHES, lambda given: given.set_header("Idempotency-Key", "the-key"))


@lie
def no_repeats(liar: Liar) -> None:
    """Nothing is repeated."""
    op(liar, "client", lambda given: given.update(retry_for=0))


@lie
def ignores_retry_after(liar: Liar) -> None:
    """Retry-After is not looked at."""

    def change(given: Answer) -> None:
        given.headers = [(key, value) for key, value in given.headers if key.lower() != "retry-after"]

    answer(liar, "", change)


@lie
def repeats_consume(liar: Liar) -> None:
    """A consume is repeated."""
    repeated(liar, "consume", 1)


@lie
def repeats_destroy(liar: Liar) -> None:
    """A destroy is repeated."""
    repeated(liar, "destroy", 1)


@lie
def no_pause(liar: Liar) -> None:
    """There is no pause before a repeat."""
    repeated(liar, PUBLISHES, 1)


def between(liar: Liar, pause: Callable[[int], float]) -> None:
    """The n-th repeat of a publish is sent so long after the answer before it."""
    seen: dict[str, tuple[int, float]] = {}

    async def act(exchange: Exchange) -> None:
        key = exchange.request.header("Idempotency-Key") or ""
        n, at = seen.get(key, (0, 0.0))
        if n:
            await exchange.pause(max(0.001, at + pause(n - 1) - exchange.proxy.now()))
        given = await exchange.forward()
        seen[key] = n + 1, exchange.proxy.now()
        await exchange.send(given)

    liar.rules.append((PUBLISHES, act, None))


@lie
def same_pause(liar: Liar) -> None:
    """Pauses are not random."""
    between(liar, lambda n: 0.1 * 2**n + 0.05)


@lie
def long_pause(liar: Liar) -> None:
    """Pauses are longer than they may be."""
    between(liar, lambda n: 0.1 * 2**n + 2)


@lie
def ignores_retry_for(liar: Liar) -> None:
    """A call is repeated for ever."""
    op(liar, "client", lambda given: given.update(retry_for=500))


@lie
def ignores_timeout(liar: Liar) -> None:
    """A request may take as long as it likes."""
    op(liar, "client", lambda given: given.update(timeout=60))


@lie
def always_repeats(liar: Liar) -> None:
    """`retry_for` 0 is taken for none given."""
    op(liar, "client", lambda given: given.update(retry_for=given.get("retry_for") or 30))


@lie
def unbounded_retry_for(liar: Liar) -> None:
    """`retry_for` may be beyond the life of an Idempotency-Key."""
    op(liar, "client", lambda given: given.update(retry_for=min(540, given.get("retry_for", 30))))


# Errors


def renames(kind: str) -> None:
    def break_(liar: Liar) -> None:
        error(liar, lambda given: given.update(type="error") if given["type"] == kind else None)

    break_.__name__ = f"renames_{kind}"
    break_.__doc__ = f"An error is not called `{kind}`."
    lie(break_)


for each in "invalid unauthorized not_found unsupported lost conflict busy too_large limited server network protocol".split():
    renames(each)


@lie
def not_retryable(liar: Liar) -> None:
    """No error may be repeated."""
    error(liar, lambda given: given.update(retryable=False))


@lie
def long_message(liar: Liar) -> None:
    """A message is as long as the answer."""
    error(liar, lambda given: given.update(message=given["message"] + "x" * 300))


@lie
def no_request_id(liar: Liar) -> None:
    """Errors carry no request_id."""
    error(liar, lambda given: given.update(request_id=None))


# Worker


@lie
def other_defaults(liar: Liar) -> None:
    """Another concurrency and another ttr."""
    op(liar, "worker", lambda given: given.update({"concurrency": 5, "ttr": 60} | given))


@lie
def any_ttr(liar: Liar) -> None:
    """A ttr that cannot be held is taken."""
    op(liar, "worker", lambda given: given.update(ttr=max(3, int(given.get("ttr", 30)))))


@lie
def sorts_queues(liar: Liar) -> None:
    """Queues are served in the order of their names."""
    op(liar, "worker", lambda given: given.update(queues=sorted(given["queues"])))


@lie
def more_slots(liar: Liar) -> None:
    """One handler more than there are slots."""
    op(liar, "worker", lambda given: given.update(concurrency=given.get("concurrency", 10) + 1))


@lie
def fetches_ahead(liar: Liar) -> None:
    """More jobs are asked for than there are free slots."""

    def change(given: Request) -> None:
        given.target = target(given, count=int(given.query.get("count", "1")) + 5)

    request(liar, "consume", change)


@lie
def two_polls(liar: Liar) -> None:
    """Each queue has a poll of its own."""

    async def act(exchange: Exchange) -> None:
        other = copy(exchange, "GET", exchange.request.target)
        liar.later(wire.ask(exchange.proxy.upstream, other))
        await streamed(exchange)

    liar.rules.append(("consume", act, None))


@lie
def pauses_after_empty(liar: Liar) -> None:
    """There is a pause between polls."""
    held(liar, 0.7, "consume")


@lie
def polls_in_a_loop(liar: Liar) -> None:
    """A poll that failed is followed by the next at once."""
    repeated(liar, "consume", 2)


@lie
def short_poll(liar: Liar) -> None:
    """A poll has no more time than it asks the server to wait."""
    cut_after(liar, "consume", 3)


@lie
def never_gives_up(liar: Liar) -> None:
    """A worker goes on polling whatever the server says."""

    def change(given: Answer) -> None:
        if 400 <= given.status < 500 or (given.status == 200 and b'"receipt"' not in given.body):
            given.status, given.body = 404, b'{"msg":"no job available"}'

    answer(liar, "consume", change)


@lie
def other_backoff(liar: Liar) -> None:
    """Another back-off, always the same."""
    option(liar, backoff=[3])


@lie
def looks_at_each_job(liar: Liar) -> None:
    """Each job is looked at before it is acked."""

    def look(exchange: Exchange) -> list[Request]:
        if exchange.verb == "ack":
            return [copy(exchange, "GET", exchange.request.path + "?verbose=1")]
        base = exchange.request.path.removesuffix("/ack")
        return [copy(exchange, "GET", f"{base}/job/{job['id']}?verbose=1") for job in exchange.request.json()["jobs"]]

    also(liar, "ack ack_many", look)


# Holding

TOUCHED = {"msg": "touched", "until": "2099-01-01T00:00:00.000Z"}


def no_touch(liar: Liar, when: Callable[[Exchange], bool]) -> None:
    """The worker believes that it has touched."""

    async def act(exchange: Exchange) -> None:
        await answers(200, TOUCHED | {"receipt": exchange.query["receipt"]})(exchange)

    liar.rules.append(("touch", act, None, when))


@lie
def late_touches(liar: Liar) -> None:
    """Touches come when half of ttr has passed and more."""
    held(liar, 1.9, "touch")


@lie
def no_touches(liar: Liar) -> None:
    """Nothing is touched."""
    no_touch(liar, lambda _: True)


@lie
def no_touches_in_drain(liar: Liar) -> None:
    """Nothing is touched while the worker stops."""
    no_touch(liar, lambda _: liar.draining)


def cancelled(liar: Liar, cause: str | None = None) -> set[str]:
    found: set[str] = set()

    def note(given: Line) -> None:
        if cause is None or given["cause"] == cause:
            found.add(given["job_id"])

    event(liar, "cancelled", note)
    return found


@lie
def no_touches_when_cancelled(liar: Liar) -> None:
    """Touches end with the handler's cancellation."""
    found = cancelled(liar)
    no_touch(liar, lambda exchange: exchange.job_id in found)


@lie
def old_receipts(liar: Liar) -> None:
    """Results carry the receipt of the poll."""
    first = receipts(liar)

    def change(given: Request) -> None:
        if wire.verb(given) == "ack_many":
            jobs = [{**job, "receipt": first[job["id"]]} for job in given.json()["jobs"]]
            given.body = json.dumps({"jobs": jobs}).encode()
        else:
            given.target = target(given, receipt=first[wire.job_id(given) or ""])

    request(liar, "ack ack_many release bury", change)


@lie
def patient_touches(liar: Liar) -> None:
    """A touch without an answer is never given up."""

    async def act(exchange: Exchange) -> None:
        asked = asyncio.ensure_future(wire.ask(exchange.proxy.upstream, exchange.request))
        liar.later(asked)
        gone = asyncio.ensure_future(exchange.incoming.until_gone())
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not asked.done():
            raise Ended
        await exchange.send(asked.result())

    liar.rules.append(("touch", act, None))


@lie
def gives_up_touches(liar: Liar) -> None:
    """A touch that failed is not repeated."""
    failed: set[str | None] = set()

    async def act(exchange: Exchange) -> None:
        if exchange.job_id in failed:
            await answers(200, TOUCHED | {"receipt": exchange.query["receipt"]})(exchange)
            return
        given = await exchange.forward()
        if given.status != 200:
            failed.add(exchange.job_id)
        await exchange.send(given)

    liar.rules.append(("touch", act, None))


@lie
def ignores_lost(liar: Liar) -> None:
    """The handler learns nothing when its job is lost."""
    event(liar, "cancelled", lambda _: False, cause="lost")


@lie
def sends_after_lost(liar: Liar) -> None:
    """A job that is lost is acked."""
    known: dict[str, tuple[Exchange, str]] = {}

    async def act(exchange: Exchange) -> None:
        given = await exchange.forward()
        if given.status == 200:
            jobs = given.json()
            for job in jobs if isinstance(jobs, list) else [jobs]:
                known[job["job_id"]] = exchange, job["receipt"]
        await exchange.send(given)

    liar.rules.append(("consume", act, None))

    async def send(job: str) -> None:
        await asyncio.sleep(0.3)
        exchange, receipt = known[job]
        await wire.ask(exchange.proxy.upstream, copy(exchange, "DELETE", f"{exchange.request.path}/job/{job}?receipt={receipt}"))

    def lost(given: Line) -> None:
        if given.get("cause") == "lost" or given.get("outcome") == "lost":
            liar.later(send(given["job_id"]))

    event(liar, "cancelled", lost)
    event(liar, "hook", lost, name="finish")


@lie
def late_lost(liar: Liar) -> None:
    """A handler goes on for a while with a job that is lost."""

    async def late(given: Line) -> None:
        await asyncio.sleep(2.2)
        liar.say(given)

    def change(given: Line) -> bool:
        liar.later(late(given))
        return False

    event(liar, "cancelled", change, cause="lost")


@lie
def logs_twice(liar: Liar) -> None:
    """A job that is lost has two lines in the log."""
    event(liar, "cancelled", lambda given: liar.log(f"gone: {given['job_id']}"), cause="lost")


@lie
def never_looks(liar: Liar) -> None:
    """Nobody asks for the valid receipt."""
    instead(liar, "get", 404, {"error": "job not found"}, lambda exchange: "receipt" in exchange.query)


@lie
def release_409_lost(liar: Liar) -> None:
    """A repeated release that was done is taken for a loss."""
    event(liar, "hook", lambda given: given.update(outcome="lost"), name="finish")


@lie
def ack_once(liar: Liar) -> None:
    """An ack is sent once, whatever comes of it."""
    seen: set[str | None] = set()

    def again(exchange: Exchange) -> bool:
        known = exchange.job_id in seen
        seen.add(exchange.job_id)
        return known

    instead(liar, "ack", 204, b"", again)


# What becomes of a job


@lie
def acks_without_receipt(liar: Liar) -> None:
    """An ack has no receipt."""
    query(liar, "ack", receipt=None)


@lie
def other_reason(liar: Liar) -> None:
    """The reason is the text alone."""

    def change(given: Request) -> None:
        given.body = re.sub(rb"^attempt \d+: ", b"", given.body)

    request(liar, "release bury", change)


@lie
def dies_of_panic(liar: Liar) -> None:
    """The program ends when a handler panics."""
    event(liar, "end", lambda _: os.kill(liar.child.pid, signal.SIGKILL), result="panic")


@lie
def hides_stack(liar: Liar) -> None:
    """Nothing is logged."""
    liar.silent = True


@lie
def other_delay(liar: Liar) -> None:
    """A job is released after another delay."""

    def change(given: Request) -> None:
        given.target = target(given, delay=float(given.query.get("delay", "0")) + 1.5)

    request(liar, "release", change)


@lie
def snooze_spends(liar: Liar) -> None:
    """A snooze spends a try."""
    query(liar, "release", spend=None)


@lie
def buries_nothing(liar: Liar) -> None:
    """A job that will never work is not buried."""
    instead(liar, "bury", 200, {"msg": "dead"})


@lie
def result_after_own(liar: Liar) -> None:
    """A result is sent although the handler has sent one."""

    async def act(exchange: Exchange) -> None:
        await streamed(exchange)
        liar.later(wire.ask(exchange.proxy.upstream, copy(exchange, "DELETE", exchange.request.target)))

    liar.rules.append(("ack", act, None))


@lie
def no_time_limit(liar: Liar) -> None:
    """Handlers have no time limit."""
    op(liar, "worker", without("time_limit"))


@lie
def slot_after_result(liar: Liar) -> None:
    """A slot is free when the result was sent."""

    async def act(exchange: Exchange) -> None:
        await exchange.pause(0.2)
        while any(other.open for other in exchange.proxy.seen("ack")):
            await exchange.pause(0.05)
        await streamed(exchange)

    liar.rules.append(("consume", act, None))


@lie
def other_attempt(liar: Liar) -> None:
    """The attempt is counted from 0."""
    event(liar, "attempt", lambda given: given.update(attempt=given["attempt"] - 1))


@lie
def long_reason(liar: Liar) -> None:
    """A reason is as long as the error."""

    def change(given: Request) -> None:
        given.body *= 2

    request(liar, "release bury", change)


# Acks


@lie
def one_by_one(liar: Liar) -> None:
    """Each ack is a request."""

    async def act(exchange: Exchange) -> None:
        jobs = exchange.request.json()["jobs"]
        base = exchange.request.path.removesuffix("/ack")
        for job in jobs:
            await wire.ask(exchange.proxy.upstream, copy(exchange, "DELETE", f"{base}/job/{job['id']}?receipt={job['receipt']}"))
        await answers(200, {"acked": len(jobs), "stale": []})(exchange)

    liar.rules.append(("ack_many", act, None))


@lie
def late_acks(liar: Liar) -> None:
    """Acks wait for longer than ack_window."""
    held(liar, 2, "ack ack_many")


@lie
def gives_up_results(liar: Liar) -> None:
    """A result that could not be sent is not sent again."""
    failed: set[str | None] = set()

    async def act(exchange: Exchange) -> None:
        if exchange.job_id in failed:
            await answers(204 if exchange.verb == "ack" else 200, b"" if exchange.verb == "ack" else {"msg": "dead"})(exchange)
            return
        try:
            given = await exchange.forward()
        except (Ended, OSError):
            failed.add(exchange.job_id)
            raise
        if given.status >= 500:
            failed.add(exchange.job_id)
        await exchange.send(given)

    liar.rules.append((RESULTS, act, None))


@lie
def one_at_a_time(liar: Liar) -> None:
    """A result waits for the one before."""
    busy = asyncio.Lock()

    async def act(exchange: Exchange) -> None:
        async with busy:
            await streamed(exchange)

    liar.rules.append((RESULTS, act, None))


# Stopping


@lie
def keeps_poll_parked(liar: Liar) -> None:
    """The parked poll is not closed."""

    async def act(exchange: Exchange) -> None:
        asked = asyncio.ensure_future(wire.ask(exchange.proxy.upstream, exchange.request))
        gone = asyncio.ensure_future(exchange.incoming.until_gone())
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not asked.done():
            await asyncio.wait({asked}, timeout=3)
            raise Ended
        await exchange.send(asked.result())

    liar.rules.append(("consume", act, None))

    liar.linger = 3


@lie
def polls_on(liar: Liar) -> None:
    """A worker that stops polls once more."""
    last: list[Exchange] = []

    async def act(exchange: Exchange) -> None:
        last[:] = [exchange]
        await streamed(exchange)

    liar.rules.append(("consume", act, None))

    async def poll() -> None:
        exchange = last[0]
        await wire.ask(exchange.proxy.upstream, copy(exchange, "GET", target(exchange.request, timeout=1)))

    async def on_signal(number: int) -> bool:
        await poll()
        return True

    async def later() -> None:
        await asyncio.sleep(0.8)
        await poll()

    liar.signals.append(on_signal)
    op(liar, "stop", lambda _: liar.later(later()))


@lie
def ignores_sigint(liar: Liar) -> None:
    """SIGINT does nothing."""

    async def heard(number: int) -> bool:
        return number != signal.SIGINT

    liar.signals.append(heard)


@lie
def keeps_late_jobs(liar: Liar) -> None:
    """Jobs that came late are kept until their ttr has ended."""
    instead(liar, "release", 200, {"msg": "released", "remain_tries": 3, "due_at": "2026-01-01T00:00:00.000Z"})


@lie
def cancels_at_once(liar: Liar) -> None:
    """Handlers are cancelled when the worker is told to stop."""
    option(liar, drain=0)


@lie
def kills_at_once(liar: Liar) -> None:
    """The program ends at the signal."""

    async def heard(number: int) -> bool:
        liar.child.kill()
        return False

    liar.signals.append(heard)
    liar.exit_code = 0


@lie
def forgives_in_drain(liar: Liar) -> None:
    """A handler that fails while the worker drains has not failed."""

    def change(given: Request) -> None:
        given.target, given.body = target(given, spend=0, delay=0), b""

    request(liar, "release", change, lambda _: liar.draining)


@lie
def spends_in_drain(liar: Liar) -> None:
    """What the drain gives back has spent a try."""
    query(liar, "release", spend=None)


@lie
def drops_acks_in_drain(liar: Liar) -> None:
    """A job that was done after drain is not acked."""
    instead(liar, "ack", 204, b"", lambda _: liar.draining)


@lie
def waits_for_ever(liar: Liar) -> None:
    """A deaf handler holds up the end."""
    option(liar, grace=30)


@lie
def clean_lie(liar: Liar) -> None:
    """The end is called clean though a handler had not returned."""
    result(liar, "stop", lambda given: given.update(clean=True))
    liar.exit_code = 0


@lie
def deaf_to_second(liar: Liar) -> None:
    """A second signal does nothing."""
    seen: list[int] = []

    async def heard(number: int) -> bool:
        seen.append(number)
        return len(seen) == 1

    liar.signals.append(heard)


@lie
def outlives_input(liar: Liar) -> None:
    """The program goes on at the end of its input."""
    liar.outlives_input = True


# Around it


@lie
def no_middleware(liar: Liar) -> None:
    """Middleware is not called."""
    event(liar, "middleware", lambda _: False)


@lie
def no_hooks(liar: Liar) -> None:
    """Hooks `touch` and `drain` are not called."""
    event(liar, "hook", lambda _: False, name="touch")
    event(liar, "hook", lambda _: False, name="drain")


@lie
def away_each_poll(liar: Liar) -> None:
    """Hook `away` is called for each poll that fails."""

    def change(given: Line) -> None:
        if given["error"]:
            liar.say(given | {"name": "away"})

    event(liar, "hook", change, name="poll")


@lie
def logs_each_poll(liar: Liar) -> None:
    """Each poll that fails is logged."""
    event(liar, "hook", lambda given: liar.log("poll failed") if given["error"] else None, name="poll")


@lie
def logs_body(liar: Liar) -> None:
    """Jobs are logged with their bodies."""
    event(liar, "start", lambda given: liar.log(base64.b64decode(given["job"]["data"]).decode(errors="replace")))


# The protocol


@lie
def one_op_at_a_time(liar: Liar) -> None:
    """A request waits for the answer to the one before."""
    under_way: list[int] = []

    async def wait(given: Line) -> None:
        while under_way:
            await asyncio.sleep(0.02)
        under_way.append(given["id"])

    def answered(given: Line) -> None:
        if given.get("id") in under_way:
            under_way.remove(given["id"])

    liar.ops.append(wait)
    line(liar, answered)


@lie
def other_hello(liar: Liar) -> None:
    """The first line says another version."""
    event(liar, "ready", lambda given: given.update(version="9.9.9"))


@lie
def events_without_time(liar: Liar) -> None:
    """Events have no time."""
    line(liar, lambda given: given.pop("at", None) and None)


@lie
def dies_of_nonsense(liar: Liar) -> None:
    """The program ends at an op that it does not know."""
    op(liar, "no_such_op", lambda _: liar.child.kill())


# Signatures, the double


@lie
def refuses_all(liar: Liar) -> None:
    """No request of push is taken."""
    op(liar, "verify", lambda _: {"error": {"type": "signature", "message": "signature: no"}})


@lie
def takes_all(liar: Liar) -> None:
    """Every request of push is taken."""
    op(liar, "verify", lambda _: {"result": {}})


@lie
def double_lies(liar: Liar) -> None:
    """The double forgets the last job that it has handled."""
    result(liar, "double", lambda given: given.update(handled=given["handled"][:-1]))
