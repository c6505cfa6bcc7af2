"""Runs scenarios × languages, and prints a table of what holds."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import pkgutil
import random
import string
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import page, scenarios
from .program import Gone, NotReady, Program, Refused
from .registry import SCENARIOS, Scenario
from .server import ROOT, Server
from .signal import Late
from .stage import Broken, Stage

HERE = Path(__file__).resolve().parents[1]
LANGUAGES = ("python", "go", "typescript", "rust")
#: Known to have no such step.
REASONS = {"block": "a handler that blocks its thread blocks the whole program there"}


@dataclass
class Language:
    """A program that scenarios run with."""

    name: str
    command: list[str | Path]
    shared: Program | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> Program:
        program = Program(self.command)
        await program.start()
        return program

    async def share(self) -> Program:
        """The program that most scenarios share. One that has ended has a successor."""
        async with self.lock:
            if self.shared is None or self.shared.ended:
                self.shared = await self.start()
            return self.shared


@dataclass
class Outcome:
    scenario: Scenario
    language: str
    #: `holds`, `again` (it held at the second time), `broken` or `lacks`.
    word: str
    why: str = ""
    ready: bool = True
    seconds: float = 0.0
    conversation: list[str] = field(default_factory=list)


def load() -> None:
    for module in sorted(pkgutil.iter_modules(scenarios.__path__), key=lambda m: m.name):
        importlib.import_module(f"{scenarios.__name__}.{module.name}")


def letters() -> str:
    return "".join(random.choices(string.ascii_lowercase + string.digits, k=8))


async def play(server: Server, language: Language, scenario: Scenario) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(scenario, language.name, "holds")
    stage: Stage | None = None
    program: Program | None = None
    try:
        program = await language.start() if scenario.own else await language.share()
        said = program.hello.get("lacks", [])
        lacks = [step for step in scenario.needs if step in said]
        if lacks:
            outcome.word, outcome.why = (
                "lacks",
                "; ".join(f"{step}: {REASONS.get(step, 'not in this language')}" for step in lacks),
            )
            return outcome
        namespace = f"{scenario.name.replace('.', '-')}-{letters()}"
        stage = Stage(server, program, namespace, await server.token(namespace), namespace)
        await stage.proxy.listen()
        began = time.monotonic()
        async with asyncio.timeout(scenario.seconds):
            await scenario.play(stage)
        # Output beyond the protocol would confuse any reader of it.
        if program.bad_lines:
            raise Broken(f"lines that are no JSON on standard output: {program.bad_lines[:3]}")
    except TimeoutError:
        outcome.word, outcome.why = "broken", f"has not ended within {scenario.seconds:.0f} s"
    except NotReady as broken:
        outcome.word, outcome.why, outcome.ready = "broken", str(broken), False
    except (Broken, Gone, Late) as broken:
        outcome.word, outcome.why = "broken", str(broken)
    except Exception as error:  # whatever comes, the other scenarios go on
        outcome.word = "broken"
        last = traceback.extract_tb(error.__traceback__)
        where = next((f"{f.name}:{f.lineno}" for f in reversed(last) if "scenarios" in f.filename), "")
        outcome.why = f"{type(error).__name__}: {error} {where}"
    finally:
        if program is not None and (faults := [line for line in program.bad_lines if line.startswith("liar:")]):
            outcome.word, outcome.why, outcome.ready = "broken", faults[0], False
        outcome.seconds = time.monotonic() - began
        if stage is not None:
            if outcome.word == "broken":
                outcome.conversation = [str(exchange) for exchange in stage.proxy.exchanges[-25:]]
                names = {worker.name for worker in stage.workers}
                assert program is not None, "a stage has a program"
                outcome.conversation += [str(e)[:300] for e in program.events if e.get("worker") in names][-25:]
            await stage.close()
        if program is not None and (scenario.own or program.bad_lines):
            await program.end()
    return outcome


async def play_all(
    server: Server, pairs: Sequence[tuple[Language, Scenario]], jobs: int, quiet: bool = False
) -> list[Outcome]:
    """All of them, the longest first, `jobs` at a time."""
    room = asyncio.Semaphore(jobs)

    async def one(language: Language, scenario: Scenario) -> Outcome:
        async with room:
            outcome = await play(server, language, scenario)
        if not quiet and outcome.word == "broken":
            print(f"{outcome.language} {scenario.name}: {outcome.why}", flush=True)
        return outcome

    ordered = sorted(pairs, key=lambda pair: -pair[1].seconds)
    outcomes = await asyncio.gather(*(one(language, scenario) for language, scenario in ordered))
    for program in {language.shared for language, _ in pairs if language.shared is not None}:
        await program.end()
    return list(outcomes)


async def again(server: Server, outcomes: list[Outcome], languages: Sequence[Language]) -> list[Outcome]:
    """Runs what is broken once more, with little beside it: a machine that is busy makes answers late. What holds only
    then is told apart."""
    broken = [outcome for outcome in outcomes if outcome.word == "broken"]
    by_name = {language.name: language for language in languages}
    second = await play_all(server, [(by_name[o.language], o.scenario) for o in broken], 4, quiet=True)
    held = {(o.language, o.scenario.name) for o in second if o.word == "holds"}
    for outcome in broken:
        if (outcome.language, outcome.scenario.name) in held:
            outcome.word = "again"
    return outcomes


def table(outcomes: Sequence[Outcome], columns: Sequence[str]) -> None:
    words = {"holds": "holds", "again": "2nd time", "broken": "BROKEN", "lacks": "lacks"}
    cells = {(outcome.scenario.name, outcome.language): outcome for outcome in outcomes}
    names = [name for name in SCENARIOS if any((name, column) in cells for column in columns)]
    width = max(map(len, names), default=8)
    print(f"\n{'scenario':{width}}  " + "  ".join(f"{column:10}" for column in columns))
    for name in names:
        row = [words[cells[name, c].word] if (name, c) in cells else "-" for c in columns]
        print(f"{name:{width}}  " + "  ".join(f"{word:10}" for word in row).rstrip())
    for outcome in outcomes:
        if outcome.word == "lacks":
            print(f"{outcome.language} lacks {outcome.scenario.name}: {outcome.why}")


def details(outcomes: Sequence[Outcome], conversations: bool) -> None:
    for outcome in outcomes:
        if outcome.word in ("broken", "again"):
            print(f"\n{outcome.language} {outcome.scenario.name}: {outcome.word} ({outcome.seconds:.1f} s)")
            print(f"  promised: {outcome.scenario.sentence}\n  seen: {outcome.why}")
            if conversations:
                print("".join(f"    {line}\n" for line in outcome.conversation), end="")


def build(name: str) -> None:
    script = ROOT / "clients" / name / "conformance" / "build"
    if script.exists():
        subprocess.run([script], check=True, stdout=sys.stderr)


def chosen(only: Sequence[str]) -> list[Scenario]:
    found = [s for s in SCENARIOS.values() if not only or any(part in s.name for part in only)]
    if not found:
        raise SystemExit(f"no scenario has one of these in its name: {', '.join(only)}")
    return found


def forgive_left_requests() -> None:
    """A scenario that is broken leaves requests behind, which end with it: nobody is to hear of that."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), (Refused, Gone, OSError)):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)


async def run_languages(
    names: Sequence[str], picked: Sequence[Scenario], jobs: int, verbose: bool, paged: bool = False
) -> int:
    began = time.monotonic()
    forgive_left_requests()
    languages = [Language(name, [ROOT / "clients" / name / "conformance" / "run"]) for name in names]
    async with Server() as server:
        outcomes = await play_all(server, [(la, sc) for sc in picked for la in languages], jobs)
        outcomes = await again(server, outcomes, languages)
    table(outcomes, names)
    details(outcomes, verbose)
    broken = [outcome for outcome in outcomes if outcome.word == "broken"]
    kept = sum(outcome.word == "holds" for outcome in outcomes)
    late = sum(outcome.word == "again" for outcome in outcomes)
    lacks = len(outcomes) - kept - late - len(broken)
    count = f"{kept} hold, {late} at the second time, {len(broken)} broken, {lacks} lacking"
    print(f"\n{count}, in {time.monotonic() - began:.0f} s")
    if paged:
        words = {"holds": "holds", "again": "holds", "broken": "**broken**", "lacks": "lacks"}
        held = {(o.scenario.name, o.language): words[o.word] for o in outcomes}
        why = {(o.scenario.name, o.language): o.why for o in outcomes if o.word in ("lacks", "broken")}
        page.write("scenarios", page.of_languages(held, why, f"{len(picked)} scenarios; {count}."))
    return 1 if broken else 0


async def run_liar(
    of: str, picked: Sequence[Scenario], jobs: int, verbose: bool, breaks: Sequence[str], paged: bool = False
) -> int:
    """Each scenario must hold with a program that keeps its promises, and see each break that it names."""
    began = time.monotonic()
    forgive_left_requests()
    liar = HERE / "liar" / "run"
    liars = {"": Language("keeps", [liar, "--of", of])}
    pairs = [(liars[""], scenario) for scenario in picked] if not breaks else []
    for scenario in picked:
        for name in scenario.breaks:
            if breaks and name not in breaks:
                continue
            liars.setdefault(name, Language(name, [liar, "--of", of, "--break", name]))
            pairs.append((liars[name], scenario))
    async with Server() as server:
        outcomes = await play_all(server, pairs, jobs, quiet=True)
        await again(server, [outcome for outcome in outcomes if outcome.language == "keeps"], [liars[""]])
    failed = 0
    found: dict[str, list[str]] = {}
    width = max(len(scenario.name) for scenario in picked)
    for scenario in picked:
        cells = []
        for outcome in sorted((o for o in outcomes if o.scenario is scenario), key=lambda o: o.language != "keeps"):
            kept, honest = outcome.word in ("holds", "again"), outcome.language == "keeps"
            # A liar that does not start, or fails by itself, proves nothing.
            fine = (kept == honest and outcome.ready) or outcome.word == "lacks"
            failed += not fine
            if not honest and outcome.word != "lacks":
                found.setdefault(scenario.name, []).append(
                    outcome.language if fine else f"{outcome.language} **not seen**"
                )
            word = (outcome.word if kept else "BROKEN") if honest else ("NOT SEEN" if kept else "seen")
            word = word if outcome.ready else "A FAULT OF THE LIAR'S"
            cells.append(f"{outcome.language}: {'lacks' if outcome.word == 'lacks' else word}")
            if verbose or (honest and not kept):
                cells[-1] += f" ({outcome.why})"
        print(f"{scenario.name:{width}}  " + ", ".join(cells))
    if verbose:
        details([o for o in outcomes if o.language == "keeps"], True)
    count = f"{len(picked)} scenarios, {len(liars) - 1} breaks, {failed} not as they should be"
    print(f"\n{count}, in {time.monotonic() - began:.0f} s")
    if paged:
        page.write("breaks", page.of_breaks(found, f"With the program of {page.TITLES[of]}: {count}."))
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="run", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="X",
        help="scenarios that have this in their name; again for more",
    )
    parser.add_argument("--language", metavar="A,B", help=f"of {', '.join(LANGUAGES)}; by default those that are there")
    parser.add_argument(
        "--list", action="store_true", help="the scenarios, their sentences, and the breaks that they see"
    )
    parser.add_argument("--liar", action="store_true", help="runs scenarios against a program that breaks promises")
    parser.add_argument("--of", default="python", metavar="LANGUAGE", help="the program that the liar is made of")
    parser.add_argument(
        "--break", action="append", default=[], dest="breaks", metavar="NAME", help="with --liar: these breaks alone"
    )
    parser.add_argument("--jobs", type=int, default=16, help="how many scenarios at a time (%(default)s)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs each scenario so often, side by side")
    parser.add_argument("--no-build", action="store_true", help="the programs are built already")
    parser.add_argument("--page", action="store_true", help=f"writes {page.PAGE.relative_to(ROOT)}: of whole runs")
    parser.add_argument("--verbose", action="store_true", help="shows requests and events of what is broken")
    args = parser.parse_args()
    load()
    picked = chosen(args.only)
    if args.page and (args.only or args.breaks):
        raise SystemExit("the page is of whole runs")
    if args.list:
        for scenario in picked:
            print(f"{scenario.name}: {scenario.sentence} [{', '.join(scenario.breaks)}]")
        return 0
    there = [name for name in LANGUAGES if (ROOT / "clients" / name / "conformance" / "run").exists()]
    names = args.language.split(",") if args.language else there
    if unknown := [name for name in names if name not in there]:
        raise SystemExit(f"no conformance program: {', '.join(unknown)}")
    for name in [args.of] if args.liar else names:
        if not args.no_build:
            build(name)
    if args.liar:
        return asyncio.run(run_liar(args.of, picked, args.jobs, args.verbose, args.breaks, args.page))
    return asyncio.run(run_languages(names, picked * args.repeat, args.jobs, args.verbose, args.page))
