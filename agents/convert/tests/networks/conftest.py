"""Models and environments that ``make models`` has made; without them, the tests of recorded graphs are what runs."""

import os
from pathlib import Path
from typing import Final

import pytest

from repoagent.beneath import jail

MADE: Final = Path(os.environ.get("REPOAGENT_TESTS_MODELS") or "/nonexistent")
needs_models = pytest.mark.skipif(
    not MADE.is_dir() or bool(jail.problem()), reason="`make models` makes what it needs, or there is no jail here"
)
