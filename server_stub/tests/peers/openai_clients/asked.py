"""What every client is asked, and how it reports what it got. The programs beside this run as ``PROGRAM URL MODEL``."""

import json
import sys
from typing import Any, Final, Literal

from pydantic import BaseModel

URL, MODEL = sys.argv[1:3]
QUESTION: Final = "Who is the baker?"
ORDER: Final = "Tell me about Ada."
Place = Literal["the mill", "the inn"]


class Villager(BaseModel):
    """A villager."""

    name: Literal["Ada", "Bruno"]
    job: Literal["smith", "baker"]


def visit(place: Place) -> str:
    """Visit a place."""
    return place


class Visit(BaseModel):
    """Visit a place."""

    place: Place


def report(**found: list[Any]) -> None:
    """Print lists with a member for each way of asking: ``texts`` and ``tokens`` (prompt and answer) for the question,
    ``finish``, ``visits`` (arguments of calls), and ``villagers`` (objects, for the order)."""
    print(json.dumps(found))
