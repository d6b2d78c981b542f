"""The changelog is for readers: by release, a few items under each heading."""

import re
from pathlib import Path
from typing import Final

CHANGELOG: Final = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
_MOST_ITEMS: Final = 10


def test_a_heading_has_ten_items_at_most() -> None:
    sections = re.split(r"^#{2,3} ", CHANGELOG.read_text(), flags=re.MULTILINE)[1:]
    items = {section.partition("\n")[0]: section.count("\n- ") for section in sections}
    assert sum(items.values()) > 20
    assert {name: count for name, count in items.items() if count > _MOST_ITEMS} == {}
