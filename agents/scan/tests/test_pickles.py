"""Pickles of every protocol are recognised; text and weights that look similar are not."""

import collections
import datetime as dt
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_scan.formats.pickles import looks_like_pickle


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("true",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [Command(), collections.OrderedDict(a=1), dt.date(2026, 1, 1), np.zeros(4), os.system, Command],
    ids=lambda value: type(value).__name__,
)
def test_what_imports_is_a_pickle_in_every_protocol(value: object, protocol: int) -> None:
    assert looks_like_pickle(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_a_pickle_where_a_header_says_so(protocol: int) -> None:
    assert looks_like_pickle(pickle.dumps({"a": [1, 2.5]}, protocol))


def test_a_pickle_that_goes_on_after_the_head_is_one() -> None:
    assert looks_like_pickle(pickle.dumps(np.zeros(1_000_000), 4)[: 1 << 16])


def test_code_that_runs_before_a_stream_breaks_is_a_pickle() -> None:
    assert looks_like_pickle(pickle.dumps(Command(), 0)[:-1] + b"\0broken")


@pytest.mark.parametrize("text", [b"cat\ndog\nRabbit\n", b"config: 1\nname\n", b"i1\n2\n.", b"", b"I1\n.", b"(lp0\n."])
def test_text_that_begins_with_an_opcode_is_not_a_pickle(text: bytes) -> None:
    assert not looks_like_pickle(text)


def test_safetensors_whose_size_reads_as_a_header_is_not_a_pickle() -> None:
    assert not looks_like_pickle((0x0480).to_bytes(8, "little") + b"{" + b" " * 0x480)


def test_no_text_of_this_project_is_taken_for_a_pickle() -> None:
    pages = list((Path(__file__).parents[3] / "docs").rglob("*.md"))
    assert pages
    assert [page for page in pages if looks_like_pickle(page.read_bytes())] == []


@pytest.mark.parametrize("filler", [b"N0", b"(0", b"I1\n0"])
def test_an_import_behind_any_amount_of_filler_is_a_pickle(filler: bytes) -> None:
    assert looks_like_pickle(filler * 1_000_000 + pickle.dumps(Command(), 0))
