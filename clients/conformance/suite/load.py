"""What the libraries do under load: rates and processor time, long handlers, servers that are killed, workers that are
replaced. `clients/conformance/load` says how it is run. Figures, not promises: only what is lost or done twice fails."""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import resource
import signal as signals
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import wire
from .main import LANGUAGES, build
from .program import Gone, Program, Refused
from .server import ROOT, Direct, Server
from .stage import data, do
from .wire import Request

TICK = os.sysconf("SC_CLK_TCK")
#: Jobs a second over all publishers, where servers are killed and workers replaced.
RATE = 200


def processor(pid: int) -> float:
    """Seconds of user and system time of this process, and of those in its group."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if pid in (int(entry.name), int(fields[2])):
                total += int(fields[11]) + int(fields[12])
    return total / TICK


async def metrics(server: Server) -> str:
    answer = await wire.ask(server.admin, Request("GET", "/metrics", []))
    return answer.body.decode()


async def requests(server: Server) -> int:
    """How many the API has answered."""
    lines = re.findall(r"^infra_lmstfy_http_http_codes\{.*api=\"/api.* (\d+)$", await metrics(server), re.M)
    return sum(map(int, lines))


async def connections(server: Server) -> int:
    """Of the public port."""
    found = re.search(r'^dormouse_connections\{port="public"\} (\d+)$', await metrics(server), re.M)
    assert found, "the server tells them"
    return int(found[1])


class Hand:
    """A program with one client and one worker of the queue `q`."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.program = Program([ROOT / "clients" / language / "conformance" / "run"])
        self._read = 0
        self._done = 0

    async def start(self, server: Server, token: str, **options: Any) -> None:
        await self.program.start()
        host, port = server.api
        url = f"http://{host}:{port}"
        await self.program.call("client", client="c", url=url, namespace="load", token=token, retry_for=60)
        await self.program.call("worker", worker="w", client="c", queues=["q"], **options)

    async def work(self) -> None:
        await self.program.call("start", worker="w")

    def done(self) -> int:
        """How many handlers have ended well."""
        new = self.program.events[self._read :]
        self._read += len(new)
        self._done += sum(event["event"] == "end" and event["result"] == "ok" for event in new)
        return self._done


@dataclass
class Meter:
    """What server and worker use from one moment on."""

    server: Server
    hand: Hand
    asked: int
    began: float
    used: tuple[float, float]

    @classmethod
    async def start(cls, server: Server, hand: Hand) -> Meter:
        return cls(server, hand, await requests(server), time.monotonic(), of_both(server, hand))

    async def stop(self) -> tuple[float, float, float, int]:
        """Seconds that passed, those of server and worker, and requests."""
        took = time.monotonic() - self.began
        of_server, of_worker = of_both(self.server, self.hand)
        asked = await requests(self.server) - self.asked
        return took, of_server - self.used[0], of_worker - self.used[1], asked


def of_both(server: Server, hand: Hand) -> tuple[float, float]:
    return processor(server.process.pid), processor(hand.program.process.pid)


async def until(look: Any, within: float) -> bool:
    end = time.monotonic() + within
    while not (found := look()) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return bool(found)


async def empty(language: str, jobs: int) -> None:
    """50 slots on jobs that do nothing."""
    async with Server() as server:
        token = await server.token("load")
        await Direct(server, "load", token).put_many("q", ["x"] * jobs)
        hand = Hand(language)
        await hand.start(server, token, concurrency=50)
        meter = await Meter.start(server, hand)
        await hand.work()
        whole = await until(lambda: hand.done() >= jobs, 300)
        took, of_server, of_worker, asked = await meter.stop()
        done, open_now = max(hand.done(), 1), await connections(server)
        print(
            f"empty {language}: {done} jobs{'' if whole else ' (NOT ALL)'}, {done / took:.0f} jobs/s, server "
            f"{of_server / done * 1e6:.0f} µs, worker {of_worker / done * 1e6:.0f} µs a job (its events as JSON lines "
            f"too), {asked / done:.2f} requests a job, {open_now} connections",
            flush=True,
        )
        await hand.program.end()


async def one_by_one(language: str, jobs: int) -> None:
    """The same by the library's calls: consume one, ack it, 50 at a time."""
    async with Server() as server:
        token = await server.token("load")
        await Direct(server, "load", token).put_many("q", ["x"] * jobs)
        hand = Hand(language)
        await hand.start(server, token, concurrency=50)
        meter, left = await Meter.start(server, hand), jobs

        async def one() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                found = await hand.program.call("consume", client="c", queues=["q"], count=1, ttr=60)
                for job in found["jobs"]:
                    await hand.program.call("ack", client="c", job_id=job["job_id"])

        await asyncio.gather(*(one() for _ in range(50)))
        took, of_server, of_worker, asked = await meter.stop()
        print(
            f"one by one {language}: {jobs / took:.0f} jobs/s, server {of_server / jobs * 1e6:.0f} µs, worker "
            f"{of_worker / jobs * 1e6:.0f} µs a job, {asked / jobs:.2f} requests a job, "
            f"{await connections(server)} connections",
            flush=True,
        )
        await hand.program.end()


CURL = """
while job=$(curl -fsS -H "X-Token: $TOKEN" "$BASE/q?receipt=1&ttr=60&timeout=0" 2>/dev/null); do
    id=${job#*\\"job_id\\":\\"} receipt=${job#*\\"receipt\\":\\"}
    curl -fsS -X DELETE -H "X-Token: $TOKEN" "$BASE/q/job/${id%%\\"*}?receipt=${receipt%%\\"*}"
done
"""


async def by_curl(jobs: int, loops: int = 8) -> None:
    """The same by curl in loops of a shell: a process and a connection for each request."""

    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    async with Server() as server:
        token = await server.token("load")
        await Direct(server, "load", token).put_many("q", ["x"] * jobs)
        host, port = server.api
        env = os.environ | {"TOKEN": token, "BASE": f"http://{host}:{port}/api/load"}
        asked, of_server, of_worker = await requests(server), processor(server.process.pid), children()
        began = time.monotonic()
        shells = [await asyncio.create_subprocess_exec("bash", "-c", CURL, env=env) for _ in range(loops)]
        for shell in shells:
            await shell.wait()
        took = time.monotonic() - began
        of_server, of_worker = processor(server.process.pid) - of_server, children() - of_worker
        asked = await requests(server) - asked
        left = len(await Direct(server, "load", token).jobs("q", "running"))
        print(
            f"curl: {jobs / took:.0f} jobs/s{f' ({left} NOT ACKED)' if left else ''}, server "
            f"{of_server / jobs * 1e6:.0f} µs, curl and its shell {of_worker / jobs * 1e6:.0f} µs a job, "
            f"{asked / jobs:.2f} requests a job, a connection each",
            flush=True,
        )


async def idle(language: str, seconds: float) -> None:
    async with Server() as server:
        token = await server.token("load")
        hand = Hand(language)
        await hand.start(server, token, concurrency=50)
        await hand.work()
        await asyncio.sleep(1)
        # A waiting poll is counted when it ends.
        meter = await Meter.start(server, hand)
        await asyncio.sleep(seconds)
        _, _, of_worker, asked = await meter.stop()
        print(
            f"idle {language}: {asked} requests in {seconds:.0f} s, {await connections(server)} connections, "
            f"worker {of_worker * 1000:.0f} ms",
            flush=True,
        )
        await hand.program.end()


async def held(language: str, handlers: int) -> int:
    """Handlers that take four times their `ttr`."""
    async with Server() as server:
        token = await server.token("load")
        hand = Hand(language)
        await hand.start(server, token, concurrency=handlers, ttr=15)
        await Direct(server, "load", token).put_many("q", [do({"sleep": 60})] * handlers)
        await hand.work()
        await until(lambda: len(hand.program.seen("start")) >= handlers, 30)
        meter = await Meter.start(server, hand)
        await until(lambda: hand.done() >= handlers, 120)
        took, of_server, _, asked = await meter.stop()
        starts = Counter(event["job"]["job_id"] for event in hand.program.seen("start"))
        twice = sum(count > 1 for count in starts.values())
        print(
            f"held {language}: {hand.done()} of {handlers} done, handed out twice {twice}, "
            f"{asked / took:.0f} requests a second, server {of_server / took * 100:.1f} % of a core",
            flush=True,
        )
        await hand.program.end()
        return twice + handlers - hand.done()


class Again(Server):
    """A server that can be killed, and begins again on its ports."""

    async def again(self) -> None:
        self.process.kill()
        await self.process.wait()
        self._reader.cancel()
        await self.start({"DORMOUSE_PORT": str(self.api[1]), "DORMOUSE_ADMIN_PORT": str(self.admin[1])})


async def publish(hand: Hand, numbers: list[int], rate: float, ids: dict[int, str], failed: list[int]) -> None:
    """Publishes these at a rate, each by a call of its own."""
    began, calls = time.monotonic(), set()

    async def one(number: int) -> None:
        try:
            body = data(json.dumps({"do": [{"sleep": 0.05}], "n": number}))
            answer = await hand.program.call("publish", client="c", queue="q", data=body, tries=50)
            ids[number] = answer["job_id"]
        except (Refused, Gone) as error:
            if not failed:
                print(f"the first that is refused, {number}: {error}", flush=True)
            failed.append(number)

    for n, number in enumerate(numbers):
        await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
        calls.add(asyncio.create_task(one(number)))
    await asyncio.gather(*calls)


def tell(name: str, hands: Sequence[Hand], ids: dict[int, str], failed: list[int]) -> int:
    """What was lost, done twice and tried again."""
    ends = Counter[str]()
    tries: dict[str, int] = {}
    times: list[float] = []
    numbers: dict[int, set[str]] = {}
    for hand in hands:
        for event in hand.program.seen("end", result="ok"):
            ends[event["job_id"]] += 1
            times.append(event["_at"])
        for event in hand.program.seen("start"):
            job = event["job"]
            tries[job["job_id"]] = min(tries.get(job["job_id"], 50), job["remain_tries"])
            numbers.setdefault(json.loads(base64.b64decode(job["data"]))["n"], set()).add(job["job_id"])
    lost = [number for number, job_id in ids.items() if not ends[job_id]]
    twice = [job_id for job_id, count in ends.items() if count > 1]
    doubles = sum(len(found) > 1 for found in numbers.values())
    burned = sum(49 - left for left in tries.values())
    times.sort()
    gap = max((after - before for before, after in itertools.pairwise(times)), default=0.0)
    print(
        f"{name}: {len(ids)} published, {len(failed)} refused, lost {len(lost)}, published twice {doubles}, done twice "
        f"{len(twice)}, tries burned {burned}, "
        f"nobody worked for {gap:.1f} s at most",
        flush=True,
    )
    return len(lost) + doubles


async def killed(languages: Sequence[str], seconds: int) -> int:
    """The server is killed each five seconds, under publishers and workers of all languages."""
    async with Again() as server:
        token = await server.token("load")
        hands = [Hand(language) for language in languages]
        for hand in hands:
            await hand.start(server, token, concurrency=10, ttr=10)
            await hand.work()
        ids: dict[int, str] = {}
        failed: list[int] = []
        count = RATE * seconds // len(hands)
        publishers = [
            asyncio.create_task(publish(hand, list(range(n * count, (n + 1) * count)), RATE / len(hands), ids, failed))
            for n, hand in enumerate(hands)
        ]
        for _ in range(seconds // 5):
            await asyncio.sleep(5)
            await server.again()
        await asyncio.gather(*publishers)
        await until(lambda: sum(hand.done() for hand in hands) >= len(ids), 60)
        # Duplicates arrive a little later.
        await asyncio.sleep(2)
        result = tell("killed " + "+".join(languages), hands, ids, failed)
        for hand in hands:
            await hand.program.end()
        return result


async def rolling(languages: Sequence[str], seconds: int) -> int:
    """Workers of all languages are replaced, one each second, by SIGTERM."""
    async with Again() as server:
        token = await server.token("load")
        publisher = Hand(languages[0])
        await publisher.start(server, token, concurrency=1)
        hands: list[Hand] = []

        async def begin(language: str) -> Hand:
            hand = Hand(language)
            await hand.start(server, token, concurrency=10, ttr=10)
            await hand.work()
            hands.append(hand)
            return hand

        now = [await begin(language) for language in languages]
        ids: dict[int, str] = {}
        failed: list[int] = []
        publishing = asyncio.create_task(publish(publisher, list(range(RATE * seconds)), RATE, ids, failed))
        codes = Counter[int]()
        for turn in range(seconds):
            await asyncio.sleep(1)
            old = now[turn % len(now)]
            now[turn % len(now)] = await begin(old.language)
            old.program.kill(signals.SIGTERM)
            codes[await old.program.exit_code(40)] += 1
        await publishing
        await until(lambda: sum(hand.done() for hand in hands) >= len(ids), 60)
        # Duplicates arrive a little later.
        await asyncio.sleep(2)
        result = tell("rolling " + "+".join(languages), hands, ids, failed)
        print(f"rolling: exit codes {dict(codes)}", flush=True)
        for hand in [*now, publisher]:
            await hand.program.end()
        return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="load", description=__doc__)
    parser.add_argument("--language", metavar="A,B", default=",".join(LANGUAGES))
    parser.add_argument("--only", metavar="A,B", default="empty,single,curl,idle,held,killed,rolling")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--handlers", type=int, default=1000)
    parser.add_argument("--no-build", action="store_true", help="the programs are built already")
    args = parser.parse_args()
    names, only, bad = args.language.split(","), args.only.split(","), 0
    for name in names:
        if not args.no_build:
            build(name)
    for name in names:
        if "empty" in only:
            asyncio.run(empty(name, args.jobs))
        if "single" in only:
            asyncio.run(one_by_one(name, min(args.jobs, 3000)))
        if "idle" in only:
            asyncio.run(idle(name, args.seconds))
        if "held" in only:
            bad += asyncio.run(held(name, args.handlers))
    if "curl" in only:
        asyncio.run(by_curl(min(args.jobs, 1000)))
    if "killed" in only:
        bad += asyncio.run(killed(names, args.seconds))
    if "rolling" in only:
        bad += asyncio.run(rolling(names, args.seconds))
    return 1 if bad else 0
