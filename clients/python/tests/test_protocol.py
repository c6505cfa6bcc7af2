"""Requests, answers and errors, without I/O."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dormouse_client import Acked, Invalid, Message, NetworkError, ProtocolError, UnreadableBody, Unsupported
from dormouse_client.protocol import Answer, Job, Requests, cut_reason, error_of, seconds, told_attempt

REQUESTS = Requests("demo")


def job(**fields: Any) -> Job:
    usual = {"job_id": "01M", "queue": "q", "namespace": "demo", "data": b"", "remain_tries": 1, "ttl": 0}
    return Job(**{**usual, "elapsed_ms": 0, "attributes": {}, "receipt": "R", **fields})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delay": 1.5}, {"delay": 1.5}),
        ({"delay": 0.0001}, {"delay": 0.001}),
        ({"delay": 0.1}, {"delay": 0.1}),
        ({"delay": timedelta(minutes=1)}, {"delay": 60}),
        ({"at": datetime(2030, 1, 1, 12, 0, 0, 1, tzinfo=UTC)}, {"at_ms": 1893499200001}),
        ({"at": datetime(2030, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))}, {"at_ms": 1893499200000}),
        ({"at": 1795315200.123}, {"at_ms": 1795315200123}),
        ({"at": 0}, {"at_ms": 0}),
        ({"at": datetime(1960, 1, 1, tzinfo=UTC)}, {"at_ms": 0}),
        ({"at": "2030-01-01T12:00:00+02:00"}, {"at": "2030-01-01T12:00:00+02:00"}),
        (
            {"ttl": 0, "tries": 3, "key": "k", "on_conflict": "fail"},
            {"ttl": 0, "tries": 3, "key": "k", "on_conflict": "fail"},
        ),
    ],
)
def test_what_a_publish_says_of_its_job(given: Any, said: dict[str, Any]) -> None:
    assert Message(b"", **given).options == said


@pytest.mark.parametrize(
    "given",
    [
        {"at": datetime(2030, 1, 1)},
        {"at": float("nan")},
        {"delay": -1},
        {"delay": float("inf")},
        {"delay": 1, "at": 1},
        {"ttl": 5e9},
        {"attributes": {str(i): "v" for i in range(17)}},
        {"attributes": {"ü" * 17: "v"}},
        {"attributes": {"n": "ü" * 65}},
        {"attributes": {"Trace": "v"}},
        {"attributes": {"n": ""}},
        {"attributes": {"n": "\ud800"}},
    ],
)
def test_what_cannot_be_meant_is_refused_before_it_is_sent(given: Any) -> None:
    with pytest.raises(Invalid) as refused:
        Message(b"", **given)
    assert refused.value.status is None
    assert isinstance(refused.value, ValueError)


def test_attributes_go_in_headers_where_they_can() -> None:
    request = REQUESTS.publish("q", "x", attributes={"a": "b c"}, traceparent="00-1")
    assert request.path == "demo/q/jobs"
    assert request.headers["job-attr-a"] == "b c"
    assert request.headers["job-attr-traceparent"] == "00-1"
    assert request.headers["enable-job-version"] == "yes"


@pytest.mark.parametrize("attributes", [{"a": " b"}, {"a": "ü"}, {"ü": "b"}, {"a": "1\n2"}, {"a b": "c"}])
def test_attributes_that_no_header_can_carry_go_as_json(attributes: dict[str, str]) -> None:
    request = REQUESTS.publish("q", b"\xff", attributes=attributes, delay=1.25)
    assert request.path == "demo/q/jobs/batch"
    assert json.loads(request.content) == [{"data": "/w==", "delay": 1.25, "attributes": attributes}]


def test_each_publish_has_an_idempotency_key() -> None:
    mine = REQUESTS.publish("q", "x", idempotency_key="mine 1")
    assert mine.headers["idempotency-key"] == "mine 1"
    keys = {REQUESTS.publish("q", "x").headers["idempotency-key"] for _ in range(3)}
    assert len(keys) == 3
    with pytest.raises(Invalid):
        REQUESTS.publish("q", "x", idempotency_key="a\nb")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ü", "x" * 256])
def test_a_name_that_would_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        REQUESTS.size(name)
    with pytest.raises(Invalid):
        REQUESTS.cancel("q", name)


def test_keys_are_escaped() -> None:
    assert REQUESTS.get_key("q", "order:1/2?%..").path == "demo/q/key/order%3A1%2F2%3F%25%2E%2E?verbose=1"


@pytest.mark.parametrize(
    ("status", "said", "kind", "retryable"),
    [
        (400, {"error": "invalid delay"}, "invalid", False),
        (401, {"error": "invalid token"}, "unauthorized", False),
        (403, {"error": "no"}, "forbidden", False),
        (404, {"error": "job not found"}, "not_found", False),
        (404, {"error": "api not found"}, "unsupported", False),
        (408, {"error": "timeout while reading the body"}, "timeout", True),
        (409, {"error": "the job is not yours any more"}, "lost", False),
        (409, {"error": "the key is taken", "job_id": "01M"}, "conflict", False),
        (409, {"error": "the job is not dead"}, "conflict", False),
        (409, {"error": "a request with this idempotency key is under way"}, "busy", True),
        (413, {"error": "body too large"}, "too_large", False),
        (422, {"error": "the idempotency key was used for another request"}, "key_reused", False),
        (429, {"msg": "token(..) produce reach the limit rate, please retry later"}, "limited", True),
        (500, {"error": "internal error"}, "server", True),
        (501, {}, "server", True),
        (502, {}, "unavailable", True),
        (503, {}, "unavailable", True),
        (504, {}, "unavailable", True),
        (507, {"error": "full"}, "full", True),
        (302, {}, "protocol", False),
        (418, {}, "protocol", False),
    ],
)
def test_each_error_has_its_name(status: int, said: dict[str, Any], kind: str, retryable: bool) -> None:
    error = error_of(Answer(status, {"x-request-id": "r1", "retry-after": "3"}, json.dumps(said).encode()))
    assert (error.type, error.status, error.retryable) == (kind, status, retryable)
    assert (error.request_id, error.retry_after, error.job_id) == ("r1", 3, said.get("job_id"))
    assert error.message == said.get("error", said.get("msg", "{}"))


def test_of_what_a_proxy_sends_the_first_200_bytes_are_kept_in_whole_characters() -> None:
    error = error_of(Answer(502, {}, b"<html>" + "é".encode() * 300))
    assert error.message == "<html>" + "é" * 97


def test_a_date_in_retry_after_counts_from_the_answers_own() -> None:
    headers = {"retry-after": "Sun, 22 Nov 2026 12:01:00 GMT", "date": "Sun, 22 Nov 2026 12:00:00 GMT"}
    assert error_of(Answer(503, headers, b"")).retry_after == 60
    assert error_of(Answer(503, {"retry-after": "soon"}, b"")).retry_after is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b'{"other": 1}', b'{"job_id": "x", "due_at": "no"}'])
def test_a_2xx_that_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(ProtocolError) as error:
        REQUESTS.publish("q", "x").result(Answer(201, {}, body))
    assert error.value.status == 201


def test_a_job_without_receipt_comes_from_a_server_that_is_too_old() -> None:
    said = {"attributes": None, "data": "", "elapsed_ms": 1, "job_id": "01M", "namespace": "demo", "queue": "q"}
    body = json.dumps({**said, "remain_tries": 1, "ttl": 1}).encode()
    with pytest.raises(Unsupported):
        REQUESTS.consume("q").result(Answer(200, {}, body))


def test_a_job_without_a_receipt_cannot_be_held() -> None:
    with pytest.raises(Invalid):
        REQUESTS.touch(job(receipt=None))


def test_a_touch_puts_the_new_receipt_into_the_job() -> None:
    held = job()
    body = b'{"msg":"touched","receipt":"S","until":"2026-11-22T12:00:00.000Z"}'
    assert REQUESTS.touch(held).result(Answer(200, {}, body)) == datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert held.receipt == "S"
    assert "S" not in repr(held).split("attributes")[1]


def test_a_reason_is_cut_in_whole_characters() -> None:
    assert cut_reason("x" + "é" * 3000) == b"x" + "é".encode() * 2047
    assert cut_reason("\ud800") == b"?"


def test_the_attempt_that_a_reason_tells_of() -> None:
    assert [told_attempt(text) for text in (None, "", "boom", "attempt 3: no", "attempt x: no")] == [0, 0, 0, 3, 0]


def test_seconds_are_rounded_up() -> None:
    assert [seconds("s", one) for one in (1, 1.0, 0.3, 0.0004, 2.9999)] == [1, 1, 0.3, 0.001, 3]


def test_json_that_cannot_be_read_or_written() -> None:
    with pytest.raises(UnreadableBody):
        job(data=b"\xff\xfe").json()
    with pytest.raises(Invalid):
        REQUESTS.publish_json("q", float("nan"))
    with pytest.raises(Invalid):
        REQUESTS.publish_json("q", object())
    assert REQUESTS.publish_json("q", {"ü": [1, None]}).content == '{"ü":[1,null]}'.encode()


def test_an_error_says_whether_the_request_was_perhaps_done() -> None:
    assert [error_of(Answer(status, {}, b"")).unanswered() for status in (400, 404, 408, 409, 500, 502, 503)] == [
        False, False, True, False, True, True, False,
    ]  # fmt: skip
    assert NetworkError("reset").unanswered()
    assert ProtocolError("half an answer", status=200).unanswered()
    assert not ProtocolError("a redirect", status=302).unanswered()
    assert not Invalid("x").unanswered()


@pytest.mark.parametrize("body", [5, None, {"a": 1}, [1, 2], "\ud800"])
def test_a_body_that_is_no_bytes_is_refused(body: Any) -> None:
    """`bytes(5)` would be five zeros."""
    with pytest.raises(Invalid):
        Message(body)


def test_a_body_may_be_any_buffer() -> None:
    bodies: list[Any] = [b"a", bytearray(b"a"), memoryview(b"xa")[1:], "a"]
    assert [Message(body).body for body in bodies] == [b"a"] * 4


def test_json_that_is_too_deep_cannot_be_read() -> None:
    """It is buried at the first attempt, as other bodies are that no attempt can read."""
    with pytest.raises(UnreadableBody):
        job(data=b"[" * 100_000).json()


def test_the_index_of_acks_counts_from_the_first_job() -> None:
    jobs = [job(job_id=f"J{n}") for n in range(150)]
    flow = REQUESTS.ack_many("q", jobs)
    assert len(json.loads(next(flow).content)["jobs"]) == 100
    assert len(json.loads(flow.send(Acked(100, [])).content)["jobs"]) == 50
    with pytest.raises(Invalid) as caught:
        flow.throw(Invalid("invalid receipt", status=400, index=7))
    assert caught.value.index == 107


def test_a_job_of_another_queue_is_not_acked() -> None:
    with pytest.raises(Invalid) as caught:
        next(REQUESTS.ack_many("q", [job(), job(queue="other")]))
    assert caught.value.index == 1
