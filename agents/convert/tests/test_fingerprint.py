"""The name of a result depends on all that the result does, and on nothing else."""

from pathlib import Path
from typing import Any

import pytest
from repoagent_convert.fingerprint import cache_key, digest_parts, machine

from repoagent.api import CancelledError


def test_the_digest_depends_on_contents_and_names_but_not_on_the_version(tmp_path: Path, make_load: Any) -> None:
    model = make_load()
    for name, content in (("1/a", b"x"), ("1/b", b""), ("2/a", b"x"), ("3/a", b"y"), ("4/c", b"x")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    first = digest_parts(tmp_path, ["1/a"], model)
    assert digest_parts(tmp_path, ["2/a"], model) == first
    assert len({first, *(digest_parts(tmp_path, parts, model) for parts in (["3/a"], ["4/c"], ["1/a", "1/b"]))}) == 4


def test_a_cancelled_load_is_given_up(tmp_path: Path, make_load: Any) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(CancelledError):
        digest_parts(tmp_path, ["a"], make_load(cancelled=True))


def test_keys_differ_by_every_value_and_do_not_depend_on_order() -> None:
    key = cache_key(level="all", digest="aa")
    assert key == cache_key(digest="aa", level="all")
    assert key.startswith("convert-")
    assert len({key, cache_key(level="basic", digest="aa"), cache_key(level="all", digest="ab")}) == 3


def test_the_machine_is_described_the_same_way_twice() -> None:
    assert machine() == machine()
    assert machine()[0]
