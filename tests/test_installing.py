"""Nothing in the tree sends anyone to a package index for a name that this project does not own there."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

from repoagent.converters import BUILT_IN_CONVERTERS
from repoagent.installing import install_hint, missing_format

ROOT = Path(__file__).parents[1]
BARE = re.compile(r"pip install [^\n\\`]*?(?<![\w./-])repoagent(-[a-z]+)?(?![\w.-]*/)")


@pytest.mark.parametrize(
    ("distribution", "extras", "hint"),
    [
        ("repoagent-core", ("onnx", "s3"), "from a checkout: pip install '.[onnx,s3]'"),
        ("repoagent-server", (), "from a checkout: pip install ./server_stub"),
        ("repoagent-checksum", (), "from a checkout: pip install ./agents/checksum"),
        ("repoagent-decrypt", ("pyrage",), "from a checkout: pip install './agents/decrypt[pyrage]'"),
    ],
)
def test_a_hint_names_a_place_in_the_checkout(distribution: str, extras: tuple[str, ...], hint: str) -> None:
    assert install_hint(distribution, *extras) == hint
    place = hint.rpartition("pip install ")[2].strip("'").partition("[")[0]
    assert f'name = "{distribution}"' in (ROOT / place / "pyproject.toml").read_text()


@pytest.mark.parametrize("distribution", ["repoagent-convert", "repoagent-llm"])
def test_each_format_that_a_package_registers_leads_to_it(distribution: str) -> None:
    (entry,) = importlib.metadata.distribution(distribution).entry_points.select(group="repoagent.plugins")
    built_in = {form for pair in BUILT_IN_CONVERTERS for form in pair}
    formats = {form for form, _ in entry.load().register_converters()} - built_in
    assert [form for form in sorted(formats) if distribution not in missing_format(form)] == []


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("pip install repoagent-checksum", True),
        ("pip install 'repoagent-core[llm]'", True),
        ("pip install -U repoagent", True),
        ("pip install . ./agents/checksum", False),
        ("pip install -e ./repoagent-agent-digest", False),
    ],
)
def test_the_pattern_knows_a_bare_name(text: str, bare: bool) -> None:
    assert bool(BARE.search(text)) is bare


def test_no_file_tells_anyone_to_install_a_bare_name() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    read = [name for name in filter(None, listed.split("\0")) if "tests/" not in name]
    found = [name for name in read if _is_bare(name)]
    assert found == []


def _is_bare(name: str) -> bool:
    path = ROOT / name
    return path.is_file() and bool(BARE.search(path.read_bytes().decode("utf-8", "replace")))
