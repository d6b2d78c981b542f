"""Draw the README's first picture: ``python docs/img/draw_flow.py`` writes ``flow.svg`` beside it.

A model on its way: boxes from left to right for the repository, the agents, the backend and the core, with the steps of
a load above and below them. Standard library only.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

IMAGE: Final = Path(__file__).resolve().parent / "flow.svg"
TITLE: Final = "From a repository through the agents to the answer"
HEIGHT, TOP, BOX_HEIGHT, GAP, MARGIN = 250, 70, 74, 26, 12
GREY: Final = ("#f3f5f8", "#8795a8")
BLUE: Final = ("#eaf4ff", "#3b82c4")
YELLOW: Final = ("#fff6e5", "#c98a1b")


class Box(NamedTuple):
    """One stage: its name, two lines about it, and how it looks."""

    name: str
    first: str
    second: str
    width: int
    colours: tuple[str, str]
    agent: bool = False


BOXES: Final = (
    Box("repository", "disk, S3, ...", "config.pbtxt", 108, GREY),
    Box("fetch", "from hubs,", "registries, buckets", 106, BLUE, agent=True),
    Box("verify", "signed by a key", "you trust", 100, BLUE, agent=True),
    Box("decrypt", "plaintext only", "in memory", 100, BLUE, agent=True),
    Box("convert", "optimised for", "this machine", 100, BLUE, agent=True),
    Box("backend", "loads the last", "location", 96, YELLOW),
    Box("serving core", "HTTP, gRPC,", "OpenAI's API", 128, GREY),
)
WIDTH: Final = 2 * MARGIN + sum(box.width for box in BOXES) + GAP * (len(BOXES) - 1)


def draw() -> str:
    """The picture as SVG text."""
    style = 'font-family="Helvetica, Arial, sans-serif" font-size="14"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>',
        f"<title>{TITLE}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f"<defs>{_arrow('a', '#444')}{_arrow('b', '#2a7')}</defs>",
        *_boxes(),
        *_forward(),
        *_other_server(),
        *_backward(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _arrow(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
    )


def _places() -> Iterator[tuple[Box, int]]:
    """Each box and its left edge."""
    left = MARGIN
    for box in BOXES:
        yield box, left
        left += box.width + GAP


def _boxes() -> Iterator[str]:
    for box, left in _places():
        fill, stroke = box.colours
        size = f'x="{left}" y="{TOP}" width="{box.width}" height="{BOX_HEIGHT}"'
        yield f'<rect {size} rx="8" fill="{fill}" stroke="{stroke}"/>'
        middle = left + box.width // 2
        for y, text, style in (
            (98, box.name, 'font-weight="bold"'),
            (118, box.first, 'font-size="12"'),
            (135, box.second, 'font-size="12"' if len(box.second) < 18 else 'font-size="11"'),
        ):
            yield _text(middle, y, text, f'{style} fill="#1c2733"')


def _text(x: int, y: int, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" {style}>{escape(text, quote=False)}</text>'


def _forward() -> Iterator[str]:
    """From each box to the next."""
    yield _text(WIDTH // 2, 52, "LOAD, in the order of config.pbtxt; the first refusal stops the load", 'fill="#444"')
    middle = TOP + BOX_HEIGHT // 2
    lines = "".join(f"M{left + box.width} {middle}h{GAP - 4}" for box, left in list(_places())[:-1])
    for line in lines.split("M")[1:]:
        yield f'<path d="M{line}" stroke="#444" stroke-width="1.6" fill="none" marker-end="url(#a)"/>'


def _other_server() -> Iterator[str]:
    """From the last agent to a server that knows nothing of agents, in place of the backend."""
    left, right = (next(left for box, left in _places() if box.name == name) for name in ("backend", "serving core"))
    width, fork = right + BOXES[-1].width - left, left - GAP // 2 - 2
    fill, stroke = GREY
    yield f'<rect x="{left}" y="8" width="{width}" height="46" rx="8" fill="{fill}" stroke="{stroke}"/>'
    middle = left + width // 2
    yield _text(middle, 27, "or any other server", 'font-weight="bold" fill="#1c2733"')
    yield _text(middle, 44, "vLLM, llama.cpp, Triton: prepare, run", 'font-size="12" fill="#1c2733"')
    line = f"M{fork} {TOP + BOX_HEIGHT // 2}V31H{left - 2}"
    yield f'<path d="{line}" stroke="#444" stroke-width="1.6" fill="none" marker-end="url(#a)"/>'


def _backward() -> Iterator[str]:
    """From the backend to each agent."""
    centres = [left + box.width // 2 for box, left in _places() if box.agent]
    backend = next(left + box.width // 2 for box, left in _places() if box.name == "backend")
    bottom, rail = TOP + BOX_HEIGHT, 190
    style = 'stroke="#2a7" stroke-width="1.6" fill="none"'
    yield f'<path d="M{backend} {bottom + 4}V{rail}H{centres[0]}" {style}/>'
    for centre in centres:
        yield f'<path d="M{centre} {rail}V{bottom + 6}" {style} marker-end="url(#b)"/>'
    text = "LOAD_COMPLETE or LOAD_FAIL, in reverse order, to every agent that ran"
    yield _text(WIDTH // 2, 212, text, 'fill="#1d7a50"')
    text = "later, in the same way: UNLOAD forward, then UNLOAD_COMPLETE in reverse; every private directory is removed"
    yield _text(WIDTH // 2, 234, text, 'fill="#667" font-size="12"')


if __name__ == "__main__":
    IMAGE.write_text(draw(), encoding="utf-8")
