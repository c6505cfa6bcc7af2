"""The page of results, clients/conformance/scenarios.md. A run with --page writes its own part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .registry import SCENARIOS
from .server import ROOT

PAGE = ROOT / "clients" / "conformance" / "scenarios.md"
TITLES = {"go": "Go", "python": "Python", "rust": "Rust", "typescript": "TypeScript"}
HEAD = """# What holds in which language

The conformance suite has written this page. A run of all scenarios writes the first table, a run of the liar the second:

```
$ clients/conformance/run --page
$ clients/conformance/run --liar --of python --page
```
"""
#: The parts of the page, in their order: heading, and what is said before the table.
PARTS = {
    "scenarios": (
        "Scenario by language",
        "Each line is a sentence of [the contract](../../docs/clients.md), and the scenario that holds the libraries to it.",
    ),
    "breaks": (
        "Which scenario has seen which break",
        "A program that keeps every promise but one, and the scenarios that must see it. "
        "What they see it by is in `clients/conformance/liar`.",
    ),
}


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def of_languages(held: Mapping[tuple[str, str], str], why: Mapping[tuple[str, str], str], count: str) -> str:
    """`held`: a word for each scenario and language; `why`: of those that lack it."""
    names = [name for name in TITLES if any(language == name for _, language in held)]
    lines = [
        count,
        "",
        f"| scenario | sentence | {' | '.join(TITLES[name] for name in names)} |",
        "|---" * (len(names) + 2) + "|",
    ]
    for name, scenario in SCENARIOS.items():
        words = [held.get((name, language), "-") for language in names]
        lines.append(f"| `{name}` | {cell(scenario.sentence)} | {' | '.join(words)} |")
    if why:
        lines += ["", "| does not hold | why |", "|---|---|"]
        lines += [f"| {TITLES[language]}, `{name}` | {cell(text)} |" for (name, language), text in why.items()]
    return "\n".join(lines)


def of_breaks(seen: Mapping[str, Sequence[str]], count: str) -> str:
    """`seen`: the breaks that each scenario has seen."""
    lines = [count, "", "| scenario | has seen |", "|---|---|"]
    lines += [f"| `{name}` | {', '.join(seen[name])} |" for name in SCENARIOS if name in seen]
    return "\n".join(lines)


def write(part: str, text: str) -> None:
    """Puts the part into the page, and leaves the other as it is."""
    old = PAGE.read_text() if PAGE.exists() else ""
    texts = {}
    for name, (heading, intro) in PARTS.items():
        begin = f"## {heading}\n"
        kept = old.split(begin, 1)[1].split("\n## ", 1)[0].strip() if begin in old else ""
        texts[name] = f"{begin}\n{intro}\n\n{text}" if name == part else f"{begin}\n{kept}" if kept else ""
    PAGE.write_text("\n\n".join([HEAD.strip(), *filter(None, texts.values())]) + "\n")
