"""Whether a pushed request is ours."""

from __future__ import annotations

import base64
import hmac

import pytest

from dormouse_client import SignatureError, verify

NOW = 1_795_315_200
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(32)).decode()
BODY = b"to ann\xff"


def signed(secret: str = SECRET, stamp: str = str(NOW), body: bytes = BODY) -> dict[str, str]:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.digest(key, f"01M.{stamp}.".encode() + body, "sha256")
    signature = "v1," + base64.b64encode(mac).decode()
    return {"webhook-id": "01M", "webhook-timestamp": stamp, "webhook-signature": signature}


def wrong(
    expected: str, secrets: str | list[str], headers: dict[str, str], body: bytes = BODY, now: float = NOW
) -> None:
    with pytest.raises(SignatureError) as error:
        verify(secrets, headers, body, now=now)
    assert error.value.wrong == expected
    assert str(error.value).startswith(expected)


def test_the_example_of_standard_webhooks() -> None:
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    verify("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", headers, b'{"test": 2432232314}', now=1614265330)


def test_what_is_right_is_taken() -> None:
    verify(SECRET, signed(), BODY, now=NOW)
    verify([OTHER, SECRET], signed(), BODY, now=NOW)
    verify(SECRET, {name.upper(): value for name, value in signed().items()}, BODY, now=NOW)
    for shift in (-300, 300):
        verify(SECRET, signed(), BODY, now=NOW + shift)
    many = {**signed(), "webhook-signature": f"v1a,xx v2,yy v1,zz {signed()['webhook-signature']}"}
    verify(SECRET, many, BODY, now=NOW)


def test_what_is_wrong_is_named() -> None:
    for name in signed():
        wrong("missing", SECRET, {key: value for key, value in signed().items() if key != name})
        wrong("missing", SECRET, {**signed(), name: ""})
    for shift in (-301, 301):
        wrong("timestamp", SECRET, signed(), now=NOW + shift)
    for stamp in ("x", "1e9", f"{NOW}.5", f"-{NOW}", "٣" * 10, "9" * 26):
        wrong("timestamp", SECRET, signed(stamp=stamp))
    wrong("signature", SECRET, signed(), body=b"to bob")
    wrong("signature", OTHER, signed())
    wrong("signature", SECRET, {**signed(), "webhook-id": "01N"})
    wrong("signature", SECRET, {**signed(), "webhook-signature": signed()["webhook-signature"].replace("v1,", "v2,")})
    for secret in ("", "whsec_", "whsec_!!", SECRET[:-16], "whsec_" + "A" * 200):
        wrong("secret", secret, signed())
    wrong("secret", [], signed())
