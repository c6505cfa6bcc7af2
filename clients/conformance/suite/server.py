"""A server of the build, with a directory of its own that goes with it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode

from . import wire
from .wire import Answer, Request

ROOT = Path(__file__).resolve().parents[3]


def binary() -> Path:
    """`DORMOUSE_BIN`, or what cargo has built."""
    if named := os.environ.get("DORMOUSE_BIN"):
        return Path(named).resolve()
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for kind in ("debug", "release"):
        if (path := target / kind / "dormouse").exists():
            return path
    raise SystemExit("no server is built: cargo build, or DORMOUSE_BIN=/path/to/dormouse")


def scratch() -> str | None:
    """Memory, if there is enough: other tests write to the disk beside, and a busy disk makes a server late."""
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 2 << 30 else None
    except OSError:
        return None


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


class Server:
    """Started by `async with`."""

    api: tuple[str, int]
    admin: tuple[str, int]

    async def __aenter__(self) -> Self:
        self.directory = tempfile.mkdtemp(prefix="dormouse-conformance-", dir=scratch())
        await self.start({})
        return self

    async def start(self, more: dict[str, str]) -> None:
        """Starts it in its directory, with these variables too."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("DORMOUSE_")}
        env |= {
            "DORMOUSE_PORT": "0",
            "DORMOUSE_ADMIN_PORT": "0",
            "DORMOUSE_POOL_DEFAULT_PATH": f"{self.directory}/data",
            "DORMOUSE_POOL_DEFAULT_SYNC": "everysec",
        } | more
        self.process = await asyncio.create_subprocess_exec(
            binary(),
            cwd=self.directory,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert self.process.stderr is not None
        self.log: deque[str] = deque(maxlen=100)
        async for line in self.process.stderr:
            self.log.append(line.decode(errors="replace"))
            if found := re.search(r"api=(\S+) admin=(\S+)", self.log[-1]):
                self.api, self.admin = address(found[1]), address(found[2])
                self._reader = asyncio.create_task(self._read())
                return
        raise SystemExit("the server did not start:\n" + "".join(self.log))

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode(errors="replace"))

    async def __aexit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), 15)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        self._reader.cancel()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def token(self, namespace: str) -> str:
        answer = await wire.ask(self.admin, Request("POST", f"/token/{namespace}?description=conformance", []))
        token: str = answer.json()["token"]
        return token

    async def limit(self, namespace: str, token: str, **limit: int) -> None:
        request = Request("PUT", f"/token/{namespace}/{token}/limit", [])
        request.body = json.dumps(limit).encode()
        answer = await wire.ask(self.admin, request)
        assert answer.status == 200, answer


class Direct:
    """The server without proxy and library, for what a scenario prepares and looks at."""

    def __init__(self, server: Server, namespace: str, token: str) -> None:
        self.server = server
        self.namespace = namespace
        self.token = token

    async def ask(self, method: str, path: str, body: bytes = b"", **query: Any) -> Answer:
        target = f"/api/{self.namespace}/{path}"
        if query:
            target += "?" + urlencode(query)
        return await wire.ask(self.server.api, Request(method, target, [("X-Token", self.token)], body))

    async def put(self, queue: str, body: bytes | str, **query: Any) -> str:
        raw = body.encode() if isinstance(body, str) else body
        answer = await self.ask("POST", f"{queue}/jobs", raw, **query)
        assert answer.status == 201, answer
        job: str = answer.json()["job_id"]
        return job

    async def put_many(self, queue: str, bodies: Sequence[bytes | str]) -> list[str]:
        """In batches of 64."""
        ids: list[str] = []
        for start in range(0, len(bodies), 64):
            raw = (body.encode() if isinstance(body, str) else body for body in bodies[start : start + 64])
            jobs = [{"data": base64.b64encode(body).decode()} for body in raw]
            answer = await self.ask("POST", f"{queue}/jobs/batch", json.dumps(jobs).encode())
            assert answer.status == 201, answer
            ids += [job["job_id"] for job in answer.json()["jobs"]]
        return ids

    async def job(self, queue: str, job_id: str) -> dict[str, Any] | None:
        """The job, or None."""
        answer = await self.ask("GET", f"{queue}/job/{job_id}", verbose=1)
        assert answer.status in (200, 404), answer
        return answer.json() if answer.status == 200 else None

    async def jobs(self, queue: str, state: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"state": state, "limit": 100, "data": 1}
        while True:
            answer = await self.ask("GET", f"{queue}/jobs", **query)
            assert answer.status == 200, answer
            page = answer.json()
            found += page["jobs"]
            if page["cursor"] is None:
                return found
            query["cursor"] = page["cursor"]

    async def take(self, queue: str, **query: Any) -> dict[str, Any] | None:
        """A job with its receipt, as another worker would take it."""
        answer = await self.ask("GET", queue, receipt=1, **query)
        assert answer.status in (200, 404), answer
        return answer.json() if answer.status == 200 else None

    async def hold(self, verb: str, job: dict[str, Any], body: bytes = b"", **query: Any) -> Answer:
        path = f"{job['queue']}/job/{quote(job['job_id'])}/{verb}"
        return await self.ask("POST", path, body, receipt=job["receipt"], **query)
