"""What an error is called, whether to repeat it, and what it carries."""

from typing import Any

from ..proxy import answers, never, reset_after, reset_before, reset_within
from ..registry import scenario
from ..stage import Stage, check, equal

ID = "01M80D5J4VCPC2AJTPM8000000"


@scenario("`invalid`: 400; not repeated.", "renames_invalid")
async def invalid(s: Stage) -> None:
    c = await s.client()
    s.proxy.rule("size", answers(400, {"error": "invalid something"}))
    error = await c.refused("size", "invalid", queue="q")
    equal((error["status"], error["message"], error["retryable"]), (400, "invalid something", False), "the error")
    s.proxy.rule("publish_many", answers(400, {"error": "invalid delay", "index": 1}))
    error = await c.refused("publish_many", "invalid", queue="q", jobs=[{"data": ""}] * 3)
    equal(error["index"], 1, "index")
    equal(len(s.proxy.exchanges), 2, "requests")


@scenario("`unauthorized`: 401. `forbidden`: 403. Not repeated.", "renames_unauthorized")
async def unauthorized(s: Stage) -> None:
    c = await s.client(token="no-such-token-at-all-here")
    error = await c.refused("publish", "unauthorized", queue="q", data=b"x")
    equal((error["status"], error["message"], error["retryable"]), (401, "invalid token", False), "the error")
    s.proxy.rule("publish", answers(403, {"error": "the request was sent by a web page of another site"}))
    error = await c.refused("publish", "forbidden", queue="q", data=b"x")
    equal((error["status"], error["retryable"]), (403, False), "the error")
    equal(len(s.proxy.exchanges), 2, "requests")


@scenario("`not_found`: 404.", "renames_not_found")
async def not_found(s: Stage) -> None:
    c = await s.client()
    error = await c.refused("get", "not_found", queue="q", job_id=ID)
    equal((error["status"], error["message"], error["retryable"]), (404, "job not found", False), "the error")


@scenario(
    "`unsupported`: 404 `api not found`; a consume without receipts. An older server, or lmstfy's.",
    "renames_unsupported",
)
async def unsupported(s: Stage) -> None:
    c = await s.client()
    old = answers(404, {"error": "api not found"})
    ops: dict[str, dict[str, Any]] = {
        "publish": {"queue": "q", "data": b"x"}, "pause": {"queue": "q"}, "list": {"queue": "q", "state": "ready"}, "queues": {},
    }  # fmt: skip
    for op, fields in ops.items():
        s.proxy.rule("", old)
        error = await c.refused(op, "unsupported", **fields)
        equal((error["status"], error["retryable"]), (404, False), f"the error of {op}")
    await s.direct.put("q", "x")
    s.proxy.rule("consume", answers(200, without_receipt(s)))
    error = await c.refused("consume", "unsupported", queues=["q"])
    equal(error["retryable"], False, "retryable")


def without_receipt(s: Stage) -> dict[str, Any]:
    """A job as lmstfy hands it out."""
    return {
        "attributes": None, "data": "eA==", "elapsed_ms": 1, "job_id": ID, "msg": "new job", "namespace": s.namespace,
        "queue": "q", "remain_tries": 2, "ttl": 86398,
    }  # fmt: skip


@scenario("`lost`: 409 `the job is not yours any more`.", "renames_lost")
async def lost(s: Stage) -> None:
    c = await s.client()
    for verb in ("touch", "release", "bury", "ack"):
        await s.direct.put(verb, "x", tries=9)
        (job,) = (await c.consume(queues=[verb], ttr=1))["jobs"]
        await s.state(verb, job["job_id"], "ready")
        error = await c.refused(verb, "lost", job_id=job["job_id"])
        equal(
            (error["status"], error["message"], error["retryable"]), (409, "the job is not yours any more", False), verb
        )


@scenario("`conflict`: 409 `the key is taken`, `the job is not dead`; carries job_id and index.", "renames_conflict")
async def conflict(s: Stage) -> None:
    c = await s.client()
    there = await s.direct.put("q", "x", key="k", delay=60)
    error = await c.refused("publish", "conflict", queue="q", data=b"x", key="k", on_conflict="fail")
    equal((error["status"], error["job_id"], error["retryable"]), (409, there, False), "the error")
    error = await c.refused(
        "publish_many", "conflict", queue="q", jobs=[{"data": ""}, {"data": "", "key": "k", "on_conflict": "fail"}]
    )
    equal((error["index"], error["job_id"]), (1, there), "index and job_id")
    s.proxy.rule("", answers(409, {"error": "the job is not dead"}))
    error = await c.refused("respawn", "conflict", queue="q", job_ids=[there])
    equal(error["retryable"], False, "retryable")


@scenario("`busy`: 409 `under way`; may be repeated.", "renames_busy")
async def busy(s: Stage) -> None:
    c = await s.client(retry_for=0)
    s.proxy.rule(
        "publish", answers(409, {"error": "a request with this idempotency key is under way"}, Retry_After="1")
    )
    error = await c.refused("publish", "busy", queue="q", data=b"x")
    equal((error["status"], error["retryable"], error["retry_after"]), (409, True, 1), "the error")


@scenario("`too_large`: 413. `key_reused`: 422. Not repeated.", "renames_too_large")
async def too_large(s: Stage) -> None:
    c = await s.client()
    s.proxy.rule("publish", answers(413, {"error": "job too large"}))
    error = await c.refused("publish", "too_large", queue="q", data=b"x")
    equal((error["status"], error["message"], error["retryable"]), (413, "job too large", False), "the error")
    s.proxy.rule("publish", answers(422, {"error": "the idempotency key was used for another request"}))
    error = await c.refused("publish", "key_reused", queue="q", data=b"x")
    equal((error["status"], error["retryable"]), (422, False), "the error")
    equal(len(s.proxy.exchanges), 2, "requests")


@scenario("`limited`: 429; may be repeated; carries retry_after.", "renames_limited")
async def limited(s: Stage) -> None:
    await s.server.limit(s.namespace, s.token, read=0, write=1, interval=30)
    c = await s.client(retry_for=0)
    await c.publish(queue="q", data=b"x")
    error = await c.refused("publish", "limited", queue="q", data=b"x")
    equal((error["status"], error["retryable"]), (429, True), "the error")
    check("reach the limit rate" in error["message"], f"the message {error['message']!r}")
    check(error["retry_after"] and 1 <= error["retry_after"] <= 30, f"retry_after {error['retry_after']}")


@scenario(
    "`full`: 507. `unavailable`: 502, 503, 504. `server`: any other 5xx. All may be repeated.",
    "renames_server not_retryable",
)
async def server_errors(s: Stage) -> None:
    c = await s.client(retry_for=0)
    kinds = {
        507: "full",
        502: "unavailable",
        503: "unavailable",
        504: "unavailable",
        500: "server",
        501: "server",
        599: "server",
    }
    for status, kind in kinds.items():
        s.proxy.rule("publish", answers(status, {"error": f"error {status}"}, X_Request_ID="r-1", Retry_After="3"))
        error = await c.refused("publish", kind, queue="q", data=b"x")
        wanted = (status, f"error {status}", True, "r-1", 3)
        got = tuple(error[key] for key in ("status", "message", "retryable", "request_id", "retry_after"))
        equal(got, wanted, f"the error of {status}")


@scenario(
    "`timeout`: no answer in time, 408. `network`: refused, reset, broken off. May be repeated.", "renames_network"
)
async def network(s: Stage) -> None:
    c = await s.client(timeout=4, retry_for=0)
    faults = ((never, "timeout", None), (answers(408, {"error": "timeout while reading the body"}), "timeout", 408),
              (reset_before, "network", None), (reset_after, "network", None), (reset_within, "network", None))  # fmt: skip
    for fault, kind, status in faults:
        s.proxy.rule("publish", fault)
        error = await c.refused("publish", kind, queue="q", data=b"x")
        equal((error["status"], error["retryable"]), (status, True), f"status and retryable of {kind}")
        check(error["message"], "an error without a message")
    s.proxy.refuse()
    error = await c.refused("publish", "network", queue="q", data=b"x")
    equal((error["status"], error["retryable"]), (None, True), "status and retryable of a connection that is refused")


@scenario("`protocol`: a redirect; a 2xx that cannot be read; any other status. Not repeated.", "renames_protocol")
async def protocol(s: Stage) -> None:
    c = await s.client()
    odd = [
        answers(200, b"<html>hello</html>"), answers(200, b""), answers(200, {"other": 1}), answers(201, b"[1"),
        answers(418, {"error": "teapot"}), answers(405, b"no"), answers(302, b"", Location="http://127.0.0.1:1/"),
    ]  # fmt: skip
    for number, action in enumerate(odd):
        s.proxy.rule("", action)
        before = len(s.proxy.exchanges)
        error = await c.refused("publish", "protocol", queue="q", data=b"x")
        equal(error["retryable"], False, f"retryable of the answer {number}")
        check(error["status"] in (200, 201, 418, 405, 302), f"status {error['status']}")
        equal(len(s.proxy.exchanges) - before, 1, f"requests with the answer {number}")


@scenario(
    "All have status, message (the server's text, or the first 200 bytes), request_id, retryable.",
    "long_message no_request_id",
)
async def fields(s: Stage) -> None:
    c = await s.client(retry_for=0)
    text = "<html>.é" + "é" * 400
    s.proxy.rule("size", answers(502, text.encode(), X_Request_ID="abc.1"))
    error = await c.refused("size", "unavailable", queue="q")
    equal((error["status"], error["request_id"]), (502, "abc.1"), "status and request_id")
    absent = ("retry_after", "job_id", "index", "published")
    equal([error[name] for name in absent], [None] * 4, f"what there is none of: {absent}")
    message = error["message"]
    check(len(message.encode()) <= 230, f"a message of {len(message.encode())} bytes")
    check("<html>.éé" in message and "\ufffd" not in message, f"the message {message!r}")
    error = await c.refused("get", "not_found", queue="q", job_id=ID)
    equal(error["request_id"], s.proxy.exchanges[-1].answer.header("X-Request-ID"), "request_id")  # type: ignore[union-attr]
