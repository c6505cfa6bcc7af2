"""Promises of a client: what it sends, repeats, and says of errors."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from suite import wire
from suite.proxy import Exchange, streamed
from suite.wire import Answer, Request

if TYPE_CHECKING:
    from ..main import Liar, Line

from ..tools import (
    PUBLISHES,
    also,
    answer,
    copy,
    cut_after,
    error,
    lie,
    op,
    query,
    repeated,
    request,
    result,
    target,
    without,
)

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
            given["attributes"] = {
                k: v.encode("ascii", "replace").decode().strip() for k, v in given["attributes"].items()
            }

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
        given_back = await liar.ask(
            given["client"], "POST", f"/{given['queue']}/jobs/batch", json.dumps(given["jobs"]).encode()
        )
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
def skips_promote(liar: Liar) -> None:
    """A promote is answered and not sent."""

    async def act(exchange: Exchange) -> None:
        body = json.dumps({"msg": "ready"}).encode()
        await exchange.send(Answer(200, [("Content-Type", "application/json")], body))

    liar.rules.append(("promote", act, None))


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


for each in [
    "invalid",
    "unauthorized",
    "not_found",
    "unsupported",
    "lost",
    "conflict",
    "busy",
    "too_large",
    "limited",
    "server",
    "network",
    "protocol",
]:
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
