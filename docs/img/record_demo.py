"""Record the demo as a picture of a terminal: ``python docs/img/record_demo.py`` writes ``demo.svg`` beside it.

Runs the programs of ``make demo`` and draws what they print with Rich, which the packages for development bring along.
What differs from run to run (ports, seconds, keys, the version of ONNX Runtime) is replaced, so that two recordings
are the same file.
"""

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

HERE: Final = Path(__file__).resolve().parent
EXAMPLES: Final = HERE.parents[1] / "examples"
DEMOS: Final = (EXAMPLES / "digits" / "demo.py", EXAMPLES / "chat" / "demo.py")
IMAGE: Final = HERE / "demo.svg"
WIDTH: Final = 126
STEADY: Final = (
    (r"127\.0\.0\.1:\d+", "127.0.0.1:8000"),
    (r"\b\d+\.\d{3} s\b", "-.--- s"),
    (r"ONNX Runtime [\d.]+", "ONNX Runtime"),
    (r"\b[0-9a-f]{64}\b", "0123456789abcdef" * 4),
)
"""Patterns of what changes, and what stands in the picture instead; as wide, so that columns stay in line."""
STYLES: Final = (
    (r"^\$ .*", "bold"),
    (r"^(?:checksum|fetch|decrypt|convert|verify) +", "cyan"),
    (r"(?<=  )ok +", "green"),
    (r"(?<=  )failed +", "red"),
    (r"^The load report.*", "bold"),
    (r"^(?:you|elmbrook): ", "yellow"),
)
"""With the spaces that follow: a piece of text that begins with spaces loses them in some viewers."""


def recorded() -> str:
    """What the demo prints, without what differs from run to run."""
    texts = []
    for demo in DEMOS:
        command = [sys.executable, str(demo)]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)  # noqa: S603 - our own
        texts.append(run.stdout)
    return steady("\n".join(texts))


def steady(text: str) -> str:
    """``text`` with values in place of those that change."""
    for pattern, value in STEADY:
        text = re.sub(pattern, value, text)
    return text


def draw(text: str) -> str:
    """An SVG terminal that shows ``text`` below the command that prints it."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in ["$ make demo", *text.splitlines()]:
        shown = Text(line, overflow="ellipsis", no_wrap=True)
        for pattern, style in STYLES:
            shown.highlight_regex(pattern, style)
        console.print(shown, overflow="ellipsis", no_wrap=True, crop=True)
    image = console.export_svg(title="make demo", unique_id="demo")
    image = re.sub(r"@font-face \{.*?\n    \}\n", "", image, flags=re.DOTALL)  # nothing is fetched to show the picture
    return "\n".join(line.rstrip() for line in image.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    IMAGE.write_text(draw(recorded()), encoding="utf-8")
