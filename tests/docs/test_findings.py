"""Each finding of the second review is named by the test that it cannot come back without failing.

T is trust, L life cycles, P Python models, F front ends, M language models, C the C interfaces, U use.
"""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FINDINGS: Final = {
    "T": range(17, 30),
    "L": range(17, 32),
    "P": range(18, 28),
    "F": range(14, 24),
    "M": (*range(1, 6), 7, *range(9, 14)),
    "C": range(1, 13),
    "U": range(1, 18),
}
PLACES: Final = ("tests", "agents", "capi/tests", "deploy/ray/tests", "llm/tests", "server_stub/tests")
_NUMBERS: Final = re.compile(r'(?:"""|# )((?:[CFLMPTU]\d+, )*[CFLMPTU]\d+)(?=[:.]|$)', re.MULTILINE)


def test_every_finding_is_named_by_a_test() -> None:
    """A docstring or a comment begins with its number, or with several: ``U1, U2: ...``."""
    named: set[str] = set()
    for place in PLACES:
        for file in (ROOT / place).rglob("test_*.py"):
            for numbers in _NUMBERS.findall(file.read_text()):
                named.update(numbers.split(", "))
    findings = {f"{kind}{number}" for kind, numbers in FINDINGS.items() for number in numbers}
    assert findings - named == set()
