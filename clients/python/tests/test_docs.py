"""Every block of Python in docs/clients/python.md is run, in order, in one namespace."""

from __future__ import annotations

import base64
import hmac
import http.client
import re
import threading
import time
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import dormouse_client
from dormouse_client import Worker, client
from dormouse_client.testing import Double

PAGE = Path(__file__).resolve().parents[3] / "docs" / "clients" / "python.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_each_block_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    double = Double("demo")

    class AnyToken(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert request.headers["x-token"] == "TOKEN"
            request.headers["x-token"] = "double"
            return await double.transport().handle_async_request(request)

    monkeypatch.setattr(client, "_http_transport", lambda url: AnyToken())
    monkeypatch.setattr(Worker, "run", Worker.run_until_idle)
    for name, value in {"URL": "http://127.0.0.1:7777", "NAMESPACE": "demo", "TOKEN": "TOKEN"}.items():
        monkeypatch.setenv(f"DORMOUSE_{name}", value)
    space: dict[str, Any] = {"__name__": "page"}
    clients: set[Any] = set()
    found = blocks()
    assert len(found) >= 9
    for number, block in enumerate(found):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), space)
        clients.update(value for value in space.values() if isinstance(value, dormouse_client.Client))
        for worker in [value for value in space.values() if isinstance(value, Worker)]:
            clients.add(worker._client)
    printed = capsys.readouterr().out
    for words in ("there is one already", "nobody knows what to do with it b'ben'"):
        assert words in printed, printed
    receiver(space["Receiver"], monkeypatch)
    middleware(space, double)
    for one in clients:
        if isinstance(one, dormouse_client.Client):
            one.close()


def middleware(space: dict[str, Any], double: Double) -> None:
    """The middleware of the page at work, with the libraries that it shows."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from prometheus_client import REGISTRY

    trace.set_tracer_provider(TracerProvider())
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with double.client() as client:
        worker = Worker(client, middleware=[space["traced"]], hooks=space["Metrics"]())

        @worker.handler("traced")
        def handler(job: dormouse_client.HeldJob) -> None:
            client.publish("below", "x")

        client.publish("traced", "x", traceparent=parent)
        worker.run_until_idle()
        (below,) = client.consume("below")
    assert below.traceparent is not None
    assert below.traceparent.split("-")[1] == parent.split("-")[1]
    assert below.traceparent.split("-")[2] != parent.split("-")[2]
    assert REGISTRY.get_sample_value("jobs_total", {"queue": "traced", "outcome": "acked"}) == 1


def receiver(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver of the page takes what was signed, and nothing else."""
    key = bytes(range(32))
    monkeypatch.setenv("SECRET", "whsec_" + base64.b64encode(key).decode())
    monkeypatch.setattr(handler, "log_message", lambda *_: None)
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stamp = str(int(time.time()))
        mac = base64.b64encode(hmac.digest(key, f"01M.{stamp}.to ann".encode(), "sha256")).decode()
        headers = {"Webhook-Id": "01M", "Webhook-Timestamp": stamp, "Webhook-Signature": f"v1,{mac}"}
        statuses = []
        for body in (b"to ann", b"to bob"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
            connection.request("POST", "/", body, headers)
            statuses.append(connection.getresponse().status)
            connection.close()
        server.shutdown()
        thread.join()
    assert statuses == [200, 401]
