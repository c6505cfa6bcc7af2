"""Verification of pushes: whether a request is from the server, and fresh."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Literal

TOLERANCE = 300
"""Seconds that a signature may be old, or ahead of our clock."""


class SignatureError(Exception):
    """A rejected request; `wrong` tells why."""

    def __init__(self, wrong: Literal["missing", "timestamp", "signature", "secret"], text: str) -> None:
        super().__init__(f"{wrong}: {text}")
        self.wrong = wrong


def verify(secrets: str | Sequence[str], headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> None:
    """Verify a pushed request: raise `SignatureError` unless one of the secrets signed it within the last five minutes.

    :param secrets: the queue's, `whsec_…`; several during a change of the secret.
    :param headers: of the request, in any case.
    :param body: its raw bytes.
    :param now: Unix seconds, for tests.
    """
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise SignatureError("secret", "none was given")
    given = {name.lower(): value for name, value in headers.items() if value}
    try:
        job_id, stamp, signatures = (given[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as error:
        raise SignatureError("missing", f"the header {error.args[0]}") from None
    # Python rejects numbers of thousands of digits with another error.
    if not (stamp.isascii() and stamp.isdecimal() and len(stamp) < 20):
        raise SignatureError("timestamp", "it is no number of seconds")
    if abs((time.time() if now is None else now) - int(stamp)) > TOLERANCE:
        raise SignatureError("timestamp", f"it is more than {TOLERANCE} s from now")
    signed = b".".join((job_id.encode("latin-1", "replace"), stamp.encode(), body))
    rights = [b"v1," + base64.b64encode(hmac.digest(key, signed, "sha256")) for key in keys]
    ours = False
    for one in signatures.split():
        for right in rights:
            # No early exit: the duration must not reveal which one matched.
            ours |= hmac.compare_digest(one.encode(errors="replace"), right)
    if not ours:
        raise SignatureError("signature", "none of them is of our secrets")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not 24 <= len(key) <= 64:
        raise SignatureError("secret", "a secret is whsec_ and 24 to 64 bytes in base64")
    return key
