"""How a request of push is told from others."""

import base64
import hashlib
import hmac
from typing import Any

from ..program import Refused
from ..registry import scenario
from ..stage import Broken, Stage, check, data, equal

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
OTHER = "whsec_" + base64.b64encode(bytes(32)).decode()
NOW = 1_795_315_200
BODY = b'{"n": 1}\r\n\xff\x00'


def sign(
    body: bytes = BODY, secret: str = SECRET, stamp: int | str = NOW, name: str = "01M80D5J4VCPC2AJTPM8000000"
) -> dict[str, str]:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{name}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": name,
        "webhook-timestamp": str(stamp),
        "webhook-signature": "v1," + base64.b64encode(mac).decode(),
    }


async def verify(
    s: Stage, headers: dict[str, str], *, secrets: Any = (SECRET,), body: bytes = BODY, now: float = NOW
) -> None:
    await s.program.call("verify", secrets=list(secrets), headers=headers, data=data(body), now=int(now * 1000))


async def wrong(s: Stage, word: str, headers: dict[str, str], **fields: Any) -> None:
    try:
        await verify(s, headers, **fields)
    except Refused as refused:
        error = refused.error
    else:
        raise Broken(f"a request is taken whose {word} is wrong: {headers} {fields}")
    equal(error["type"], "signature", "the type of the error")
    check(error["message"].startswith(word), f"an error that begins with {word!r} was expected: {error['message']!r}")


@scenario("A request that was signed with the secret is taken: raw bytes.", "refuses_all")
async def right(s: Stage) -> None:
    for body in (BODY, b"", b"x" * 100_000):
        await verify(s, sign(body), body=body)


@scenario("One secret or several.", "refuses_all takes_all")
async def several_secrets(s: Stage) -> None:
    await verify(s, sign(), secrets=[OTHER, SECRET])
    await verify(s, sign(secret=OTHER), secrets=[SECRET, OTHER])
    both = sign()
    both["webhook-signature"] = sign(secret=OTHER)["webhook-signature"] + " " + both["webhook-signature"]
    await verify(s, both)
    await verify(s, both, secrets=[OTHER])
    await wrong(s, "signature", sign(), secrets=[OTHER])


@scenario("A signature must be of this body, this id and this time.", "takes_all")
async def signature(s: Stage) -> None:
    await wrong(s, "signature", sign(), body=BODY + b" ")
    await wrong(s, "signature", sign() | {"webhook-id": "another"})
    await wrong(s, "signature", sign() | {"webhook-timestamp": str(NOW + 1)})
    for odd in ("v1,", "v1", "v1,AAAA", "x", "v1,☕", sign()["webhook-signature"][:-2]):
        await wrong(s, "signature", sign() | {"webhook-signature": odd})


@scenario("Only `v1,` counts; others beside it are passed over.", "takes_all refuses_all")
async def versions(s: Stage) -> None:
    real = sign()["webhook-signature"]
    await verify(s, sign() | {"webhook-signature": f"v1a,AAAA v2,{real[3:]} {real} v0,x"})
    await wrong(s, "signature", sign() | {"webhook-signature": f"v2,{real[3:]}"})
    await wrong(s, "signature", sign() | {"webhook-signature": f"v1a,{real[3:]}"})
    await wrong(s, "signature", sign() | {"webhook-signature": real[3:]})


@scenario("±300 s.", "takes_all refuses_all")
async def timestamp(s: Stage) -> None:
    for shift in (-299, 299, 300, -300):
        await verify(s, sign(), now=NOW + shift)
    for beyond in (-302, 302, -300.5, 300.5, 86400):
        await wrong(s, "timestamp", sign(), now=NOW + beyond)
    for odd in ("", "x", "1e9", f"{NOW}.5", "99999999999999999999999999", "9" * 5000, f"-{NOW}"):
        await wrong(s, "missing" if odd == "" else "timestamp", sign(stamp=odd))


@scenario("Headers in any case.", "refuses_all")
async def cases(s: Stage) -> None:
    await verify(s, {key.upper(): value for key, value in sign().items()})
    await verify(s, {key.title(): value for key, value in sign().items()})


@scenario("A typed error that says which is wrong: missing.", "takes_all")
async def missing(s: Stage) -> None:
    for key in sign():
        await wrong(s, "missing", {name: value for name, value in sign().items() if name != key})
    await wrong(s, "missing", {})


@scenario("A typed error that says which is wrong: secret.", "takes_all")
async def secret(s: Stage) -> None:
    for odd in (["whsec_!!"], [""], ["whsec_"], ["whsec_c2hvcnQ="], []):
        await wrong(s, "secret", sign(), secrets=odd)
