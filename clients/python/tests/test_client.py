"""How requests are sent, and when they are sent again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from dormouse_client import (
    AsyncClient,
    Busy,
    Client,
    Conflict,
    Full,
    Invalid,
    KeyReused,
    Lost,
    Message,
    NetworkError,
    NotFound,
    ProtocolError,
    RequestTimeout,
    ServerError,
    Unauthorized,
    Unavailable,
)
from dormouse_client._thread import LoopThread
from dormouse_client.testing import Double

from .conftest import Fault, JumpingLoop, Server, after, answers, before, never, slow

REPEATED: dict[str, Callable[[AsyncClient], Coroutine[Any, Any, Any]]] = {
    "publish": lambda c: c.publish("q", b"x"),
    "publish_many": lambda c: c.publish_many("q", [b"x", b"y"]),
    "cancel": lambda c: c.cancel("q", "01M"),
    "size": lambda c: c.size("q"),
    "peek": lambda c: c.peek("q"),
    "dead": lambda c: c.dead("q"),
    "pause": lambda c: c.pause("q"),
    "resume": lambda c: c.resume("q"),
    "ack_many": lambda c: c.ack_many("q", ["01M"]),
}
NOT_REPEATED: dict[str, Callable[[AsyncClient], Coroutine[Any, Any, Any]]] = {
    "consume": lambda c: c.consume("q"),
    "respawn_oldest": lambda c: c.respawn_oldest("q"),
    "delete_dead": lambda c: c.delete_dead("q"),
    "destroy": lambda c: c.destroy("q"),
}
ALL = {**REPEATED, **NOT_REPEATED}
FAULTS: list[tuple[Fault, type[Exception]]] = [
    (before, NetworkError),
    (after, NetworkError),
    (never, RequestTimeout),
    (answers(408), RequestTimeout),
    (answers(500), ServerError),
    (answers(502), Unavailable),
    (answers(504), Unavailable),
    (answers(507), Full),
]


@pytest.mark.parametrize("verb", REPEATED)
@pytest.mark.parametrize("fault", [fault for fault, _ in FAULTS])
def test_what_does_no_harm_is_repeated(loop: JumpingLoop, server: Server, verb: str, fault: Fault) -> None:
    server.spoil("", fault)
    loop.run_until_complete(REPEATED[verb](server.client()))
    first, second = server.sent
    assert first.request.url == second.request.url
    assert first.request.headers == second.request.headers
    assert first.request.content == second.request.content


@pytest.mark.parametrize("verb", NOT_REPEATED)
@pytest.mark.parametrize(("fault", "error"), FAULTS)
def test_what_might_be_done_twice_is_not(
    loop: JumpingLoop, server: Server, verb: str, fault: Fault, error: type[Exception]
) -> None:
    server.spoil("", fault)
    with pytest.raises(error):
        loop.run_until_complete(NOT_REPEATED[verb](server.client()))
    assert len(server.sent) == 1


@pytest.mark.parametrize("verb", ALL)
@pytest.mark.parametrize("status", [429, 503])
def test_what_has_done_nothing_is_repeated_always(loop: JumpingLoop, server: Server, verb: str, status: int) -> None:
    server.spoil("", answers(status, retry_after="7"))
    loop.run_until_complete(ALL[verb](server.client()))
    first, second = server.sent
    assert second.at - first.at >= 7


def test_another_5xx_is_not_repeated(loop: JumpingLoop, server: Server) -> None:
    """Nobody knows what a server means by it. `retryable` says that the caller may try."""
    server.spoil("", answers(501))
    with pytest.raises(ServerError) as error:
        loop.run_until_complete(server.client().publish("q", "x"))
    assert (len(server.sent), error.value.retryable) == (1, True)


def test_what_proxies_drop_from_headers_goes_as_json(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        published = await client.publish("q", "x", attributes={"under_score": "v"})
        assert (await client.get("q", published.job_id)).attributes == {"under_score": "v"}
        assert [sent.verb for sent in server.sent] == ["publish_many", "get"]
        await client.publish("q", "x", attributes={"trace-id": "v"})
        assert server.sent[-1].verb == "publish"

    loop.run_until_complete(test())


def test_a_request_that_is_under_way_is_waited_for(loop: JumpingLoop, server: Server) -> None:
    server.spoil("", answers(409, "a request with this idempotency key is under way", retry_after="1"))
    loop.run_until_complete(server.client().publish("q", "x"))
    server.spoil("", answers(409, "a request with this idempotency key is under way"))
    with pytest.raises(Busy):
        loop.run_until_complete(server.client(retry_for=0).publish("q", "x"))


def test_a_publish_whose_answer_was_lost_happens_once(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        server.spoil("publish", after)
        assert (await client.publish("q", "x")).replayed
        server.spoil("publish_many", after)
        assert [one.replayed for one in await client.publish_many("q", ["a", "b"])] == [True, True]
        assert await client.size("q") == 3

    loop.run_until_complete(test())


def test_pauses_grow_and_end_with_retry_for(loop: JumpingLoop, server: Server) -> None:
    server.spoil("", answers(502), times=100)
    with pytest.raises(Unavailable):
        loop.run_until_complete(server.client(retry_for=30).publish("q", "x"))
    gaps = [later.at - sooner.at for sooner, later in zip(server.sent, server.sent[1:], strict=False)]
    for n, gap in enumerate(gaps):
        longest = min(5, 0.1 * 2**n)
        assert longest / 2 <= gap <= longest
    assert server.sent[-1].at - server.sent[0].at < 30
    assert len(gaps) >= 8


def test_a_request_has_a_time_of_its_own_and_a_call_has_all_of_it(loop: JumpingLoop, server: Server) -> None:
    server.spoil("", never, times=100)
    began = loop.time()
    with pytest.raises(RequestTimeout):
        loop.run_until_complete(server.client(timeout=4, retry_for=10).size("q"))
    assert loop.time() - began <= 10
    assert len(server.sent) == 3


def test_a_repeat_has_the_time_that_was_planned(loop: JumpingLoop, server: Server) -> None:
    server.spoil("", answers(502))

    async def test() -> None:
        loop.call_later(0.01, loop.stand_still, 60)
        assert await server.client(retry_for=1).size("q") == 0

    loop.run_until_complete(test())
    assert len(server.sent) == 2


def test_retry_after_beyond_retry_for_is_not_waited_for(loop: JumpingLoop, server: Server) -> None:
    server.spoil("", answers(503, retry_after="60"))
    began = loop.time()
    with pytest.raises(Unavailable) as error:
        loop.run_until_complete(server.client().size("q"))
    assert error.value.retry_after == 60
    assert loop.time() == began


def test_a_consume_may_wait_longer_than_a_request(loop: JumpingLoop, server: Server) -> None:
    assert loop.run_until_complete(server.client(timeout=1).consume("q", timeout=20)) == []


def test_a_key_that_is_gone_after_a_lost_answer_was_cancelled(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        await client.publish("q", "x", key="k")
        server.spoil("DELETE key k", after)
        await client.cancel_key("q", "k")
        with pytest.raises(NotFound):
            await client.cancel_key("q", "k")

    loop.run_until_complete(test())


def test_redirects_are_not_followed(loop: JumpingLoop, server: Server) -> None:
    server.spoil("", answers(307, b"", location="http://elsewhere/"))
    with pytest.raises(ProtocolError) as error:
        loop.run_until_complete(server.client().size("q"))
    assert error.value.status == 307
    assert len(server.sent) == 1


def test_publish_many_goes_in_batches(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        published = await client.publish_many("q", (str(i) for i in range(150)))
        assert len(published) == 150
        assert [job.data async for job in client.jobs("q", data=True)] == [str(i).encode() for i in range(150)]
        assert [len(sent.request.content) > 0 for sent in server.seen("publish_many")] == [True] * 3
        await client.publish_many("large", [b"x" * 900_000] * 9)
        assert len(server.seen("publish_many")) == 5
        assert all(len(sent.request.content) <= 8 << 20 for sent in server.sent)
        assert await client.publish_many("q", []) == []

    loop.run_until_complete(test())


def test_publish_many_that_fails_says_where_and_what_was_published(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        there = await client.publish("q", "x", key="k", delay=60)
        jobs = [Message(str(i), key="k" if i == 130 else None, on_conflict="fail") for i in range(150)]
        with pytest.raises(Conflict) as taken:
            await client.publish_many("q", jobs)
        assert (taken.value.index, len(taken.value.published or []), taken.value.job_id) == (130, 128, there.job_id)
        with pytest.raises(Invalid) as refused:
            await client.publish_many("r", (Message("x", delay=-1 if i == 70 else 0) for i in range(150)))
        assert (refused.value.index, refused.value.published, refused.value.status) == (70, [], None)
        assert await client.size("r") == 0, "the first batch was sent, though a later job is refused"
        server.spoil("", answers(401))
        with pytest.raises(Unauthorized) as stopped:
            await client.publish_many("q", jobs)
        assert (stopped.value.index, stopped.value.published) == (None, [])

    loop.run_until_complete(test())


def test_lists_are_lazy_and_go_on_after_an_empty_page(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        await client.publish_many("q", (str(i) for i in range(250)))
        listed = client.jobs("q")
        before = len(server.sent)
        first = await anext(listed)
        assert (first.size, len(server.sent) - before) == (1, 1)
        assert len([job async for job in listed]) == 249
        assert len(server.sent) - before == 3
        server.spoil("", answers_with({"jobs": [], "cursor": "0", "scanned": 0}))
        assert len([job async for job in client.jobs("q")]) == 250
        assert [(queue.queue, queue.ready) async for queue in client.queues()] == [("q", 250)]

    loop.run_until_complete(test())


def answers_with(said: object) -> Fault:
    async def fault(request: httpx.Request, go: object) -> httpx.Response:
        return httpx.Response(200, json=said)

    return fault


def test_idempotency_keys_are_of_one_request(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        first = await client.publish("q", "x", idempotency_key="mine")
        again = await client.publish("q", "x", idempotency_key="mine")
        assert (again.job_id, again.replayed, first.replayed) == (first.job_id, True, False)
        with pytest.raises(KeyReused):
            await client.publish("q", "y", idempotency_key="mine")

    loop.run_until_complete(test())


def test_a_job_by_hand(loop: JumpingLoop, server: Server) -> None:
    async def test() -> None:
        client = server.client()
        await client.publish_many("q", [Message(str(i), tries=2) for i in range(4)])
        first, second, third, fourth = await client.consume("q", count=4, ttr=30)
        old = first.receipt
        await client.touch(first, ttr=50)
        assert first.receipt != old
        await client.ack(first)
        released = await client.release(second, delay=5, spend=False, reason="later")
        assert (released.dead, released.remain_tries) == (False, 2)
        assert (await client.get("q", second.job_id)).reason == "later"
        await client.bury(third, reason="never")
        assert (await client.dead("q")).head == third.job_id
        with pytest.raises(Lost):
            await client.touch(third)
        assert (await client.ack_many("q", [fourth, third.job_id])).acked == 2

    loop.run_until_complete(test())


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:7777", "ftp://h", "http://", "http://user:secret@h", "http://h/?token=secret", "http://h:x"]
)
def test_a_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(Invalid) as error:
        AsyncClient(url, "demo", "t")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"retry_for": 541}, {"retry_for": -1}])
def test_options_have_bounds(options: Any) -> None:
    with pytest.raises(Invalid):
        Client("http://h", "demo", "t", **options)


def test_the_token_is_shown_nowhere(loop: JumpingLoop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[httpx.Request] = []

    async def refuse(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        raise httpx.ConnectError("All connection attempts failed")

    transport = httpx.MockTransport(refuse)
    client = AsyncClient("http://h/behind/", "demo", "s3cret", retry_for=0, transport=lambda: transport)
    with pytest.raises(NetworkError) as error:
        loop.run_until_complete(client.size("q"))
    assert "s3cret" not in f"{error.value!r} {client!r} {caplog.text} {seen[0].url}"
    assert seen[0].headers["x-token"] == "s3cret"
    assert seen[0].headers["user-agent"] == "dormouse-python/0.1.0"
    assert seen[0].url.path == "/behind/api/demo/q/size"
    with pytest.raises(Invalid) as refused:
        Client("http://h", "demo", "s3cret\n")
    assert "s3cret" not in str(refused.value)


def test_a_client_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "NAMESPACE", "TOKEN"):
        monkeypatch.delenv(f"DORMOUSE_{name}", raising=False)
    with pytest.raises(Invalid, match="DORMOUSE_NAMESPACE"):
        Client.from_env()
    monkeypatch.setenv("DORMOUSE_NAMESPACE", "shop")
    monkeypatch.setenv("DORMOUSE_TOKEN", "t")
    assert repr(AsyncClient.from_env(timeout=3)) == "AsyncClient('http://127.0.0.1:7777', namespace='shop')"
    monkeypatch.setenv("DORMOUSE_URL", "https://jobs.example/x/")
    assert repr(Client.from_env()) == "Client('https://jobs.example/x', namespace='shop')"


def test_the_blocking_client_is_shared_between_threads() -> None:
    double = Double()
    with double.client() as client:

        def publish(n: int) -> None:
            assert client.get("q", client.publish("q", str(n)).job_id).data == str(n).encode()

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.size("q") == 20
        assert sorted(int(job.data or b"") for job in client.jobs("q", data=True)) == list(range(20))
        assert [queue.ready for queue in client.queues()] == [20]


def test_the_jobs_of_publish_many_are_drawn_in_the_callers_thread() -> None:
    drawn_in: set[threading.Thread] = set()

    def jobs() -> Any:
        for i in range(100):
            drawn_in.add(threading.current_thread())
            yield str(i)

    with Double().client() as client:
        assert len(client.publish_many("q", jobs())) == 100
    assert drawn_in == {threading.current_thread()}


def test_the_async_client_is_shared_between_loops() -> None:
    client = Double().async_client()

    async def publish() -> int:
        await client.publish("q", "x")
        async with client:
            return await client.size("q")

    assert [asyncio.run(publish()) for _ in range(3)] == [1, 2, 3]


def test_a_blocking_call_on_the_clients_own_thread_is_refused() -> None:
    with Double().client() as client:

        async def wrong() -> None:
            client.size("q")

        with pytest.raises(RuntimeError, match="wait for itself"):
            client.thread.run(wrong())


def test_a_slow_answer_is_taken_while_it_lasts(loop: JumpingLoop, server: Server) -> None:
    server.spoil("", slow(9))
    loop.run_until_complete(server.client(retry_for=0).publish("q", "x"))


def test_an_answer_that_trickles_has_one_time_out() -> None:
    """Each byte comes in time, all of them do not: a time-out of each read would never end it."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b" " * 100:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

    async def listen() -> tuple[asyncio.Server, int]:
        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    async def close(server: asyncio.Server) -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    thread = LoopThread("trickle")
    server, port = thread.run(listen())
    with (
        Client(f"http://127.0.0.1:{port}", "demo", "t", timeout=0.5, retry_for=0) as client,
        pytest.raises(RequestTimeout),
    ):
        client.size("q")
    thread.run(close(server))
    thread.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_a_client_goes_on_in_a_child_and_in_its_parent() -> None:
    script = """
import os, sys
from dormouse_client.testing import Double
client = Double().client()
client.publish("q", "x")
child = os.fork()
if not child:
    client.publish("q", "y")
    os._exit(0 if client.size("q") == 2 else 1)
_, status = os.waitpid(child, 0)
client.publish("q", "z")
sys.exit(status or client.size("q") - 2)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
