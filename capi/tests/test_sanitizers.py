"""The C layer under the sanitizers of the compiler; ``make capi-sanitize`` runs a hundred times more."""

import runpy
from pathlib import Path

import pytest

SANITIZE = runpy.run_path(str(Path(__file__).parent / "sanitize.py"))


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", SANITIZE["SANITIZERS"])
def test_a_sanitizer_finds_nothing(compiler: str, sanitizer: str, tmp_path: Path) -> None:
    build = SANITIZE["Build"](compiler, sanitizer, tmp_path)
    if not build.works():
        pytest.skip(f"{compiler} does not offer {SANITIZE['SANITIZERS'][sanitizer]} on this machine")
    for name, printed, last in SANITIZE["runs"](build, sanitizer, 10):
        lines = printed.splitlines()
        assert len(lines) == 1, f"{name}: {printed}"
        assert lines[0].startswith(last), f"{name}: {printed}"
