"""The protocol: requests, replies and errors. This file does no I/O and reads no clock.

`Requests` makes a `Request` of each verb; `client` sends it, with retries, and passes the reply to the request's own
`read`. Error replies are mapped by `error_of`.
"""

from __future__ import annotations

import base64
import contextvars
import json
import math
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

T = TypeVar("T")

Seconds = float | timedelta
"""A duration: seconds, or a `timedelta`."""
When = datetime | float | str
"""An instant: a `datetime` with a zone, Unix seconds, or a text in RFC 3339."""
State = Literal["ready", "delayed", "running", "dead"]

MAX_BATCH_JOBS = 64
MAX_BATCH_BYTES = 8 << 20
MAX_ACKS = 100
MAX_COUNT = 100
MAX_REASON = 4096

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 4_294_967_295
_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_KEY = re.compile(r"[!-~]{1,255}")
_HEADER_NAME = re.compile(r"[0-9a-z-]+")  # Proxies drop headers with other characters, such as `_`.
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_TOLD_ATTEMPT = re.compile(r"attempt (\d{1,9}):")

current_traceparent: contextvars.ContextVar[str | None] = contextvars.ContextVar("dormouse_traceparent", default=None)
"""The trace that a publish carries on when it is given none; the worker sets it around a handler."""


# Errors


class DormouseError(Exception):
    """Error of a request. `type` is its kind, `retryable` tells whether a retry may help."""

    type: ClassVar[str] = "protocol"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        job_id: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after
        """Seconds after which the server asks us to come back."""
        self.job_id = job_id
        """The job that has the key, or that is not dead."""
        self.index = index
        """Which job of the call it was, counted from 0."""
        self.published: list[Published] | None = None
        """What a `publish_many` had published before; None of other calls."""

    def __str__(self) -> str:
        return self.message if self.status is None else f"{self.message} ({self.status})"

    def unanswered(self) -> bool:
        """Whether the server may have executed the request all the same."""
        return self.in_doubt()

    def in_doubt(self) -> bool:
        """Whether an idempotent request is retried after it."""
        return self.retryable and (self.status is None or self.status in _IN_DOUBT)


class Invalid(DormouseError, ValueError):
    """400, or rejected before it was sent: then `status` is None."""

    type = "invalid"


class Unauthorized(DormouseError):
    """401: the token is not valid for this namespace."""

    type = "unauthorized"


class Forbidden(DormouseError):
    """403."""

    type = "forbidden"


class NotFound(DormouseError):
    """404: no such job, no job with this key."""

    type = "not_found"


class Unsupported(DormouseError):
    """The server is too old, or lmstfy's: it does not know this verb, or sends no receipts."""

    type = "unsupported"


class Lost(DormouseError):
    """409: the job is no longer yours."""

    type = "lost"


class Conflict(DormouseError):
    """409: the key is taken, or the job is not dead or not delayed; `job_id` is the job that has the key."""

    type = "conflict"


class Busy(DormouseError):
    """409: a request with this idempotency key is in flight."""

    type = "busy"
    retryable = True


class TooLarge(DormouseError):
    """413."""

    type = "too_large"


class KeyReused(DormouseError):
    """422: the idempotency key was used for another request."""

    type = "key_reused"


class Limited(DormouseError):
    """429: over the token's limit."""

    type = "limited"
    retryable = True


class Full(DormouseError):
    """507: the disk is almost full, or the namespace's quota is used up."""

    type = "full"
    retryable = True


class Unavailable(DormouseError):
    """502, 503, 504."""

    type = "unavailable"
    retryable = True


class ServerError(DormouseError):
    """Any other 5xx."""

    type = "server"
    retryable = True


class RequestTimeout(DormouseError):
    """No response in time, or 408."""

    type = "timeout"
    retryable = True


class NetworkError(DormouseError):
    """The connection was refused, reset or aborted."""

    type = "network"
    retryable = True
    unsent = False
    """There was not even a connection."""

    def unanswered(self) -> bool:
        return not self.unsent


class ProtocolError(DormouseError):
    """A redirect, an unreadable response, or a status that the API does not have."""

    type = "protocol"

    def unanswered(self) -> bool:
        return self.status is None or 200 <= self.status < 300


_IN_DOUBT = frozenset((408, 500, 502, 504, 507))
"""Statuses that leave open whether the request was done."""

_BY_STATUS: dict[int, type[DormouseError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: RequestTimeout,
    409: Conflict,
    413: TooLarge,
    422: KeyReused,
    429: Limited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Full,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response whose body was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def said(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is not one."""
        try:
            said = self.json()
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def message(self) -> str:
        """The server's text, or the body that a proxy sent instead."""
        said = self.said()
        text = said.get("error") or said.get("msg")
        return text if isinstance(text, str) else self.body[:200].decode(errors="ignore")


def error_of(answer: Answer, indexed: bool = False) -> DormouseError:
    """Return the error in this response. `index` applies if the request was about several jobs."""
    kind = _BY_STATUS.get(answer.status, ServerError if 500 <= answer.status < 600 else ProtocolError)
    said, message = answer.said(), answer.message()
    if kind is NotFound and message == "api not found":
        kind = Unsupported
    elif kind is Conflict and message == "the job is not yours any more":
        kind = Lost
    elif kind is Conflict and "under way" in message:
        kind = Busy
    job_id, index = said.get("job_id"), said.get("index")
    return kind(
        message or f"an empty answer with status {answer.status}",
        status=answer.status,
        request_id=answer.headers.get("x-request-id"),
        retry_after=_retry_after(answer.headers),
        job_id=job_id if isinstance(job_id, str) else None,
        index=index if indexed and isinstance(index, int) else None,
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse seconds or a date, relative to the response's own `Date`."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text) or None
    try:
        pause = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
    except (TypeError, ValueError):
        return None
    return max(pause.total_seconds(), 0.0) or None


# Arguments


class JobOptions(TypedDict, total=False):
    """Options of a publish. Omitted ones get the server's defaults."""

    delay: Seconds | None
    """Until it is ready; parts of a millisecond are rounded up."""
    at: When | None
    """Instead of `delay`. An instant that has passed is now."""
    ttl: Seconds | None
    """Until it disappears, from the publish; 0 is forever."""
    tries: int | None
    """How many times it may be handed out."""
    key: str | None
    """The producer's own name for the job in its queue."""
    on_conflict: Literal["keep", "replace", "fail"] | None
    """What a taken key means."""
    attributes: Mapping[str, str] | None
    """16 at most; names of 32 bytes without capitals, values of 128. Neither may be empty."""
    traceparent: str | None
    """The attribute of that name. Within a handler it is the job's own, if none is given."""


class Message:
    """A job to be published: its body and options."""

    __slots__ = ("attributes", "body", "options")

    def __init__(self, data: bytes | str, **options: Unpack[JobOptions]) -> None:
        try:
            # Not `bytes(data)`: for an integer n that would be n zeros.
            self.body = data.encode() if isinstance(data, str) else bytes(memoryview(data))
        except (TypeError, UnicodeEncodeError) as error:
            raise Invalid(f"the body is bytes, or a text that can be UTF-8: {error}") from error
        self.options = _options(options)
        self.attributes = _attributes(options)

    @classmethod
    def of_json(cls, value: Any, **options: Unpack[JobOptions]) -> Message:
        """Return a message whose body is the JSON of `value`."""
        return cls(to_json(value), **options)

    def element(self) -> bytes:
        """The job as an element of a batch."""
        said = {"data": base64.b64encode(self.body).decode(), **self.options}
        if self.attributes:
            said["attributes"] = self.attributes
        return to_json(said)


def to_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Invalid(f"the value cannot be written as JSON: {error}") from error


def _options(given: JobOptions) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if given.get("delay") is not None and given.get("at") is not None:
        raise Invalid("only one of delay and at can be given")
    for name in ("delay", "ttl"):
        duration = given.get(name)
        if duration is not None:
            said[name] = seconds(name, duration)  # type: ignore[arg-type]
    at = given.get("at")
    if isinstance(at, str):
        said["at"] = at
    elif at is not None:
        said["at_ms"] = _instant(at)
    for name in ("tries", "key", "on_conflict"):
        if given.get(name) is not None:
            said[name] = given.get(name)
    return said


def _instant(at: datetime | float) -> int:
    """Return Unix milliseconds, rounded up, so that no job is early."""
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise Invalid("at is a datetime without a zone: give it one, as in datetime.now(UTC)")
        return max(-((_EPOCH - at) // timedelta(milliseconds=1)), 0)
    if not math.isfinite(at):
        raise Invalid("invalid at")
    return max(math.ceil(round(at * 1000, 3)), 0)


def seconds(name: str, duration: Seconds) -> float:
    """Return seconds with at most three decimals, rounded up. A whole number is an `int`, which is written without a
    point."""
    value = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= value <= _LONGEST:
        raise Invalid(f"invalid {name}")
    milliseconds = math.ceil(round(value * 1000, 3))
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def whole_seconds(name: str, duration: Seconds) -> int:
    """Return whole seconds, rounded up, for parameters without decimals."""
    return math.ceil(seconds(name, duration))


def _attributes(given: JobOptions) -> dict[str, str]:
    attributes = dict(given.get("attributes") or {})
    traceparent = given.get("traceparent")
    if traceparent is not None:
        attributes["traceparent"] = traceparent
    elif "traceparent" not in attributes and len(attributes) < 16 and (current := current_traceparent.get()):
        attributes["traceparent"] = current
    if len(attributes) > 16:
        raise Invalid("too many attributes, cannot exceed 16")
    for name, value in attributes.items():
        if not name or not value:
            raise Invalid(f"attribute {name!r}: neither name nor value can be empty")
        if name != name.lower():
            raise Invalid(f"attribute {name!r}: the server keeps no capitals in names")
        try:
            name_bytes, value_bytes = len(name.encode()), len(value.encode())
        except UnicodeEncodeError as error:
            raise Invalid(f"attribute {name!r}: it cannot be written as UTF-8") from error
        if name_bytes > 32:
            raise Invalid(f"attribute {name!r}: the name is longer than 32 bytes")
        if value_bytes > 128:
            raise Invalid(f"attribute {name!r}: the value is longer than 128 bytes")
    return attributes


def cut_reason(text: str) -> bytes:
    """Truncate to 4 KiB, in whole characters."""
    return text.encode(errors="replace")[:MAX_REASON].decode(errors="ignore").encode()


# Results


@dataclass(frozen=True, slots=True)
class Published:
    """A published job."""

    job_id: str
    due_at: datetime | None
    """None only for a duplicate whose store does not know."""
    duplicate: bool
    """Nothing was stored: the key was taken, and this is the job that has it."""
    replaced: str | None
    """The job that had the key, and went."""
    replayed: bool
    """The server had answered a request with this idempotency key before."""


@dataclass(slots=True, eq=False)
class Job:
    """A job. A consumed job has a `receipt`, which proves that it is still yours."""

    job_id: str
    queue: str
    namespace: str
    data: bytes
    remain_tries: int
    """How many more times it may be handed out."""
    ttl: int
    """Seconds until it disappears; 0 is forever."""
    elapsed_ms: int
    """Since the publish."""
    attributes: dict[str, str]
    receipt: str | None = field(default=None, repr=False)

    @property
    def traceparent(self) -> str | None:
        return self.attributes.get("traceparent")

    def json(self) -> Any:
        """Parse the body as JSON. Raise `UnreadableBody` if it is invalid: a worker's job is then buried."""
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise UnreadableBody(f"the body is no JSON: {error}") from error


class Permanent(Exception):
    """Raised by a handler: the job can never succeed. It is moved to the dead letter, with this text as its reason."""


class UnreadableBody(Permanent, ValueError):
    """The body is not JSON."""


@dataclass(slots=True, eq=False)
class JobDetails(Job):
    """A job with its state. Fields are None if the store does not know them."""

    state: State | None = None
    due_at: datetime | None = None
    key: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list. `data` and `attributes` are present if the list includes bodies."""

    job_id: str
    state: State
    due_at: datetime | None
    published_at: datetime | None
    remain_tries: int | None
    ttl: int
    key: str | None
    reason: str | None
    size: int
    data: bytes | None
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue of a namespace. Numbers are None if the store does not know them."""

    queue: str
    ready: int | None
    delayed: int | None
    running: int | None
    dead: int | None
    oldest_ready_age: float | None
    paused: bool
    paused_until: datetime | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Released:
    """Result of a release."""

    dead: bool
    """No try was left."""
    remain_tries: int | None
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Acked:
    acked: int
    stale: list[str]
    """Those that are there and not yours any more."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    size: int
    head: str | None
    """The oldest dead job."""


@dataclass(frozen=True, slots=True)
class Respawned:
    respawned: int
    missing: list[str]
    """Those that are not dead, or not there."""


def told_attempt(reason: str | None) -> int:
    """Return the number of the attempt in a job's reason; 0 if there is none."""
    told = _TOLD_ATTEMPT.match(reason or "")
    return int(told[1]) if told else 0


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _job_fields(said: dict[str, Any]) -> dict[str, Any]:
    return {
        "job_id": str(said["job_id"]),
        "queue": str(said["queue"]),
        "namespace": str(said["namespace"]),
        "data": base64.b64decode(said["data"], validate=True),
        "remain_tries": said.get("remain_tries") or 0,
        "ttl": int(said["ttl"]),
        "elapsed_ms": int(said["elapsed_ms"]),
        "attributes": dict(said.get("attributes") or {}),
        "receipt": said.get("receipt"),
    }


def _read_nothing(answer: Answer) -> None:
    """Read a reply that is only a status."""


def _read_published(answer: Answer, said: dict[str, Any]) -> Published:
    return Published(
        job_id=str(said["job_id"]),
        due_at=_time(said["due_at"]),
        duplicate=bool(said.get("duplicate", False)),
        replaced=said.get("replaced"),
        replayed=answer.headers.get("idempotency-replayed", "").lower() == "true",
    )


def _read_batch(answer: Answer) -> list[Published]:
    return [_read_published(answer, said) for said in answer.json()["jobs"]]


def _read_jobs(answer: Answer) -> list[Job]:
    if answer.status == 404:
        return []
    said = answer.json()
    jobs = [Job(**_job_fields(one)) for one in (said if isinstance(said, list) else [said])]
    if any(job.receipt is None for job in jobs):
        raise Unsupported("the server shows no receipts: it is lmstfy's, or an older one", status=answer.status)
    return jobs


def _read_details(answer: Answer) -> JobDetails:
    said = answer.json()
    where = {"state": said.get("state"), "key": said.get("key"), "reason": said.get("reason")}
    return JobDetails(**_job_fields(said), due_at=_time(said.get("due_at")), **where)


def _read_listed(answer: Answer) -> Page[ListedJob]:
    said = answer.json()
    jobs = [
        ListedJob(
            job_id=str(one["job_id"]),
            state=one["state"],
            due_at=_time(one["due_at"]),
            published_at=_time(one["published_at"]),
            remain_tries=one["remain_tries"],
            ttl=one["ttl"],
            key=one["key"],
            reason=one["reason"],
            size=one["size"],
            data=base64.b64decode(one["data"], validate=True) if "data" in one else None,
            attributes=dict(one.get("attributes") or {}),
        )
        for one in said["jobs"]
    ]
    return Page(jobs, said["cursor"])


def _read_queues(answer: Answer) -> Page[QueueInfo]:
    said = answer.json()
    figures = ("ready", "delayed", "running", "dead", "oldest_ready_age")
    queues = [
        QueueInfo(
            queue=str(one["queue"]),
            paused=bool(one["paused"]),
            paused_until=_time(one.get("paused_until")),
            **{name: one[name] for name in figures},
        )
        for one in said["queues"]
    ]
    return Page(queues, said["cursor"])


# Requests


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A request, and how its reply is read."""

    method: str
    path: str
    """Below `/api`, escaped, with its query."""
    read: Callable[[Answer], T]
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    repeat: bool = False
    """Whether it does no harm to send it again when nobody knows whether it was done."""
    waits: float = 0
    """How long the server may hold it, beside the time-out of a request."""
    nothing: str | None = None
    """The text of a 404 that is no error: there is nothing to show."""
    gone_is_done: bool = False
    """A 404 to a repeat says that the first one was done."""
    indexed: bool = False
    """Its errors name a job of several."""

    def result(self, answer: Answer) -> T:
        """Return the result in the reply, or raise its error."""
        fine = 200 <= answer.status < 300 or (answer.status == 404 and answer.message() == self.nothing)
        if not fine:
            raise error_of(answer, self.indexed)
        try:
            return self.read(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DormouseError):
                raise
            request_id = answer.headers.get("x-request-id")
            raise ProtocolError(
                f"the answer cannot be read: {answer.body[:200].decode(errors='replace')}",
                status=answer.status,
                request_id=request_id,
            ) from error


Flow = Generator[Request[Any], Any, T]
"""A verb of several requests: it yields each, is sent what the answer says, and returns its own result."""


class Requests:
    """The verbs of one namespace. Each method describes its request; both clients have all of them."""

    def __init__(self, namespace: str) -> None:
        self.namespace = _checked_name("namespace", namespace)

    def _path(self, queue: str, *rest: str, **query: Any) -> str:
        return self._paths([queue], *rest, **query)

    def _paths(self, queues: Sequence[str], *rest: str, **query: Any) -> str:
        names = ",".join(_checked_name("queue", queue) for queue in queues)
        path = "/".join((self.namespace, names, *(quote(part, safe="").replace(".", "%2E") for part in rest)))
        said = urlencode({name: value for name, value in query.items() if value is not None})
        return f"{path}?{said}" if said else path

    def _held(self, job: Job, *rest: str, **query: Any) -> str:
        if not job.receipt:
            raise Invalid("the job has no receipt: it was not consumed")
        return self._path(job.queue, "job", _checked_id(job.job_id), *rest, receipt=job.receipt, **query)

    # Producers

    def publish(
        self,
        queue: str,
        data: bytes | str,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Request[Published]:
        """Publish a job. A str is stored as UTF-8."""
        return self._publish(queue, Message(data, **options), idempotency_key)

    def publish_json(
        self,
        queue: str,
        value: Any,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Request[Published]:
        """Publish a job whose body is the JSON of `value`."""
        return self._publish(queue, Message.of_json(value, **options), idempotency_key)

    def _publish(self, queue: str, message: Message, idempotency_key: str | None) -> Request[Published]:
        headers = _idempotent(idempotency_key)
        attributes = message.attributes
        if not all(_HEADER_NAME.fullmatch(n) and _HEADER_VALUE.fullmatch(v) for n, v in attributes.items()):
            # Attributes that a header cannot carry are sent as JSON: a batch of one.
            return Request(
                "POST",
                self._path(queue, "jobs", "batch"),
                lambda answer: _read_batch(answer)[0],
                content=b"[" + message.element() + b"]",
                headers={**headers, "content-type": "application/json"},
                repeat=True,
            )
        if attributes:
            headers["enable-job-version"] = "yes"
            headers.update({f"job-attr-{name}": value for name, value in attributes.items()})
        return Request(
            "POST",
            self._path(queue, "jobs", **message.options),
            lambda answer: _read_published(answer, answer.json()),
            content=message.body,
            headers={**headers, "content-type": "application/octet-stream"},
            repeat=True,
        )

    def publish_many(
        self, queue: str, jobs: Iterable[Message | bytes | str], *, idempotency_key: str | None = None
    ) -> Flow[list[Published]]:
        """Publish any number of jobs in order, in batches of up to 64 jobs and 8 MiB, each all or none.

        An error has the jobs `published` before; its `index` counts from the first job of the call. All jobs are
        checked before anything is sent.
        """
        base = idempotency_key or secrets.token_hex(16)
        elements: list[bytes] = []
        try:
            for job in jobs:
                elements.append((job if isinstance(job, Message) else Message(job)).element())
        except DormouseError as error:
            error.index, error.published = len(elements), []
            raise
        published: list[Published] = []
        while (start := len(published)) < len(elements):
            end, size = start, 2
            while end < len(elements) and end - start < MAX_BATCH_JOBS:
                size += len(elements[end]) + 1
                if end > start and size > MAX_BATCH_BYTES:
                    break
                end += 1
            try:
                published += yield self._batch(queue, elements[start:end], f"{base}-{start}")
            except DormouseError as error:
                error.published = published
                if error.index is not None:
                    error.index += start
                raise
        return published

    def _batch(self, queue: str, elements: list[bytes], idempotency_key: str) -> Request[list[Published]]:
        def read(answer: Answer) -> list[Published]:
            published = _read_batch(answer)
            if len(published) != len(elements):
                raise ValueError(f"{len(elements)} jobs were sent, and {len(published)} answered")
            return published

        return Request(
            "POST",
            self._path(queue, "jobs", "batch"),
            read,
            content=b"[" + b",".join(elements) + b"]",
            headers={**_idempotent(idempotency_key), "content-type": "application/json"},
            repeat=True,
            indexed=True,
        )

    def cancel(self, queue: str, job_id: str) -> Request[None]:
        """Delete a job, in any state. Succeeds if there is none."""
        path = self._path(queue, "job", _checked_id(job_id))
        return Request("DELETE", path, _read_nothing, repeat=True)

    def cancel_key(self, queue: str, key: str) -> Request[None]:
        """Delete the job with this key; `NotFound` if there is none."""
        path = self._path(queue, "key", _checked_key(key))
        return Request("DELETE", path, _read_nothing, repeat=True, gone_is_done=True)

    def promote(self, queue: str, job_id: str) -> Request[None]:
        """Make a delayed job ready now, after other ready jobs; `Conflict` if it is not delayed."""
        return Request("POST", self._path(queue, "job", _checked_id(job_id), "promote"), _read_nothing)

    def promote_key(self, queue: str, key: str) -> Request[None]:
        """Make the delayed job with this key ready now; `NotFound` if no job has it."""
        return Request("POST", self._path(queue, "key", _checked_key(key), "promote"), _read_nothing)

    # Reading

    def get(self, queue: str, job_id: str) -> Request[JobDetails]:
        """Return a job by id, in any state."""
        return Request("GET", self._path(queue, "job", _checked_id(job_id), verbose=1), _read_details, repeat=True)

    def get_key(self, queue: str, key: str) -> Request[JobDetails]:
        """Return the job with this key."""
        return Request("GET", self._path(queue, "key", _checked_key(key), verbose=1), _read_details, repeat=True)

    def valid_receipt(self, job: Job) -> Request[str | None]:
        """Return the current receipt, if the delivery of `job` has not ended."""

        def read(answer: Answer) -> str | None:
            receipt = answer.json().get("receipt")
            return receipt if isinstance(receipt, str) else None

        return Request("GET", self._held(job, verbose=1), read, repeat=True)

    def peek(self, queue: str) -> Request[Job | None]:
        """Return the job that the next consume would get, or None."""

        def read(answer: Answer) -> Job | None:
            return None if answer.status == 404 else Job(**_job_fields(answer.json()))

        return Request("GET", self._path(queue, "peek"), read, repeat=True, nothing="the queue is empty")

    def size(self, queue: str) -> Request[int]:
        """Return the number of ready jobs."""
        return Request("GET", self._path(queue, "size"), lambda answer: int(answer.json()["size"]), repeat=True)

    def queues_page(self, cursor: str | None = None, limit: int = 100) -> Request[Page[QueueInfo]]:
        """Return a page of the namespace's queues."""
        query = urlencode({"limit": limit, **({} if cursor is None else {"cursor": cursor})})
        return Request("GET", f"{self.namespace}?{query}", _read_queues, repeat=True)

    def jobs_page(
        self, queue: str, state: State = "ready", *, data: bool = False, cursor: str | None = None, limit: int = 100
    ) -> Request[Page[ListedJob]]:
        """Return a page of a queue's jobs in one state."""
        path = self._path(queue, "jobs", state=state, limit=limit, data=int(data), cursor=cursor)
        return Request("GET", path, _read_listed, repeat=True)

    # Without a worker

    def consume(
        self,
        queues: str | Sequence[str],
        *,
        weights: Sequence[int] | None = None,
        count: int = 1,
        ttr: Seconds | None = None,
        timeout: Seconds = 0,
    ) -> Request[list[Job]]:
        """Consume up to `count` jobs, each for `ttr` whole seconds; wait up to `timeout` for the first."""
        waits = whole_seconds("timeout", timeout)
        path = self._paths(
            [queues] if isinstance(queues, str) else queues,
            receipt=1,
            count=count,
            ttr=None if ttr is None else whole_seconds("ttr", ttr),
            timeout=waits,
            weights=None if weights is None else ",".join(map(str, weights)),
        )
        return Request("GET", path, _read_jobs, waits=waits, nothing="no job available")

    def touch(self, job: Job, *, ttr: Seconds | None = None) -> Request[datetime]:
        """Extend the delivery to `ttr` from now. Return when it ends; `job` gets the new receipt."""

        def read(answer: Answer) -> datetime:
            said = answer.json()
            until, job.receipt = datetime.fromisoformat(said["until"]), str(said["receipt"])
            return until

        path = self._held(job, "touch", ttr=None if ttr is None else seconds("ttr", ttr))
        return Request("POST", path, read)

    def release(
        self, job: Job, *, delay: Seconds | None = None, spend: bool = True, reason: str | None = None
    ) -> Request[Released]:
        """Return the job to its queue, due after `delay`. `spend=False` restores the try."""

        def read(answer: Answer) -> Released:
            said = answer.json()
            dead = said["msg"] == "dead"
            return Released(dead, 0 if dead else int(said["remain_tries"]), _time(said.get("due_at")))

        wait = None if delay is None else seconds("delay", delay)
        path = self._held(job, "release", delay=wait, spend=None if spend else 0)
        return Request("POST", path, read, content=cut_reason(reason or ""))

    def bury(self, job: Job, *, reason: str | None = None) -> Request[None]:
        """Move the job to the dead letter, even if tries are left."""
        return Request("POST", self._held(job, "bury"), _read_nothing, content=cut_reason(reason or ""))

    def ack(self, job: Job) -> Request[None]:
        """Ack a job; `Lost` if it is no longer yours."""
        return Request("DELETE", self._held(job), _read_nothing, repeat=True)

    def ack_many(self, queue: str, jobs: Iterable[Job | str]) -> Flow[Acked]:
        """Ack any number of jobs, each independently: jobs with their receipt, ids without one."""
        every, acked, stale = list(jobs), 0, list[str]()
        for index, job in enumerate(every):
            if isinstance(job, Job) and job.queue != queue:
                raise Invalid("the job is of another queue", index=index)
        for start in range(0, len(every), MAX_ACKS):
            try:
                one = yield self.ack_batch(queue, every[start : start + MAX_ACKS])
            except DormouseError as error:
                if error.index is not None:
                    error.index += start
                raise
            acked += one.acked
            stale += one.stale
        return Acked(acked, stale)

    def ack_batch(self, queue: str, jobs: Sequence[Job | str]) -> Request[Acked]:
        """Ack up to 100 jobs with one request."""

        def named(job: Job | str) -> object:
            if isinstance(job, str) or not job.receipt:
                return job if isinstance(job, str) else job.job_id
            return {"id": job.job_id, "receipt": job.receipt}

        def read(answer: Answer) -> Acked:
            said = answer.json()
            return Acked(int(said["acked"]), [str(one) for one in said["stale"]])

        content = to_json({"jobs": [named(job) for job in jobs]})
        return Request("POST", self._path(queue, "ack"), read, content=content, repeat=True, indexed=True)

    # Operators

    def pause(self, queue: str, duration: Seconds | None = None) -> Request[datetime | None]:
        """Stop deliveries from this queue, for a number of seconds or until `resume`. Return when the pause ends."""
        path = self._path(queue, "pause", **{"for": None if duration is None else seconds("for", duration)})
        return Request("POST", path, lambda answer: _time(answer.json()["until"]), repeat=True)

    def resume(self, queue: str) -> Request[None]:
        """End a pause."""
        return Request("POST", self._path(queue, "resume"), _read_nothing, repeat=True)

    def destroy(self, queue: str) -> Request[None]:
        """Delete the ready jobs; delayed, running and dead ones stay."""
        return Request("DELETE", self._path(queue), _read_nothing)

    def dead(self, queue: str) -> Request[DeadLetter]:
        """Return the number of dead jobs, and the oldest."""

        def read(answer: Answer) -> DeadLetter:
            said = answer.json()
            return DeadLetter(int(said["deadletter_size"]), said["deadletter_head"] or None)

        return Request("GET", self._path(queue, "deadletter"), read, repeat=True)

    def respawn(
        self,
        queue: str,
        job_ids: Iterable[str],
        *,
        tries: int | None = None,
        delay: Seconds | None = None,
        ttl: Seconds | None = None,
    ) -> Flow[Respawned]:
        """Make any number of dead jobs ready or delayed again: 100 per request."""
        path = self._path(
            queue,
            "deadletter",
            "respawn",
            tries=tries,
            delay=None if delay is None else seconds("delay", delay),
            ttl=None if ttl is None else seconds("ttl", ttl),
        )

        def read(answer: Answer) -> Respawned:
            said = answer.json()
            return Respawned(int(said["respawned"]), [str(one) for one in said["missing"]])

        every, respawned, missing = list(job_ids), 0, list[str]()
        for start in range(0, len(every), MAX_ACKS):
            content = to_json({"jobs": every[start : start + MAX_ACKS]})
            one = yield Request("POST", path, read, content=content)
            respawned += one.respawned
            missing += one.missing
        return Respawned(respawned, missing)

    def respawn_oldest(self, queue: str, limit: int = 1, *, ttl: Seconds | None = None) -> Request[int]:
        """Make the oldest dead jobs ready again, with one try each. Return how many."""
        lives = None if ttl is None else whole_seconds("ttl", ttl)
        path = self._path(queue, "deadletter", limit=limit, ttl=lives)
        return Request("PUT", path, lambda answer: int(answer.json()["count"]))

    def delete_dead(self, queue: str, oldest: int = 1) -> Request[None]:
        """Delete the oldest dead jobs."""
        return Request("DELETE", self._path(queue, "deadletter", limit=oldest), _read_nothing)


def _checked_name(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"{what} {name!r}: a name is 1 to 255 letters, digits, - and _")
    return name


def _checked_id(job_id: str) -> str:
    if not _NAME.fullmatch(job_id):
        raise Invalid(f"{job_id!r} is no id of a job")
    return job_id


def _checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise Invalid("invalid key")
    return key


def _idempotent(key: str | None) -> dict[str, str]:
    """Give each publish an idempotency key, the same for each retry, so that it is executed once."""
    if key is None:
        key = secrets.token_hex(16)
    if len(key) > 255 or not _HEADER_VALUE.fullmatch(key):
        raise Invalid("an idempotency key is 1 to 255 ASCII characters, with no blank at an end")
    return {"idempotency-key": key}
