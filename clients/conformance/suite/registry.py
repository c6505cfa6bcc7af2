"""The list of scenarios. Each names the sentence of the contract that it holds, and the promises whose break it sees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stage import Stage

Play = Callable[["Stage"], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    name: str
    sentence: str
    play: Play
    #: Breaks of the liar that it sees.
    breaks: tuple[str, ...]
    #: It gets a program of its own, since it ends it, blocks it, or reads all that it says.
    own: bool
    #: Steps that not every language has.
    needs: tuple[str, ...]
    seconds: float


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    sentence: str, breaks: str, *, own: bool = False, needs: str = "", seconds: float = 30.0
) -> Callable[[Play], Play]:
    """Puts a function into the list, under the name of its module and its own."""

    def add(play: Play) -> Play:
        name = f"{play.__module__.rsplit('.', 1)[-1]}.{play.__name__}"
        assert name not in SCENARIOS, f"two scenarios are called {name}"
        assert breaks, f"{name} has never been seen to fail"
        SCENARIOS[name] = Scenario(name, sentence, play, tuple(breaks.split()), own, tuple(needs.split()), seconds)
        return play

    return add
