"""Whatever is done to the lines of a log shows, and where."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from repoagent.audit.lines import BrokenChain, verify
from tests.audit.conftest import NewLog

COUNT: Final = 6


@pytest.fixture
def lines(path: Path, new_log: NewLog) -> list[bytes]:
    log = new_log()
    for number in range(COUNT):
        log.record("load", "loaded", {"model": f"m{number}"})
    log.close()
    return path.read_bytes().splitlines(keepends=True)


def test_a_chain_that_was_left_alone_is_sound(path: Path, lines: list[bytes]) -> None:
    verdict = verify([path])
    assert (verdict.first, verdict.head.seq, verdict.torn) == (1, COUNT, {})


@pytest.mark.parametrize("which", range(COUNT - 1))
def test_a_changed_line_is_named(path: Path, lines: list[bytes], which: int) -> None:
    lines[which] = lines[which].replace(b'"loaded"', b'"failed"')
    path.write_bytes(b"".join(lines))
    with pytest.raises(BrokenChain, match=rf"audit.log:{which + 1}: it was changed"):
        verify([path])


@pytest.mark.parametrize("which", range(1, COUNT))
def test_a_line_whose_hash_of_the_former_was_changed_is_named(path: Path, lines: list[bytes], which: int) -> None:
    at = lines[which].index(b'"prev":"') + 8
    lines[which] = lines[which][:at] + b"0" * 64 + lines[which][at + 64 :]
    path.write_bytes(b"".join(lines))
    blamed = which + 1 if which < COUNT - 1 else which  # of the last two lines either may be the wrong one
    with pytest.raises(BrokenChain, match=rf"audit.log:{blamed}: it was changed"):
        verify([path])


def _remove(lines: list[bytes]) -> None:
    del lines[2]


def _swap(lines: list[bytes]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def _repeat(lines: list[bytes]) -> None:
    lines.insert(3, lines[2])


def _insert(lines: list[bytes]) -> None:
    lines.insert(2, b'{"anything":1}\n')


def _blank(lines: list[bytes]) -> None:
    lines.insert(2, b"\n")


def _tear(lines: list[bytes]) -> None:
    lines[2] = lines[2][:50]


def _lengthen(lines: list[bytes]) -> None:
    lines.insert(2, b"x" * 1_000_000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_remove, ":3: it has the number 4, and 3 should come here: lines were removed"),
        (_swap, ":3: it has the number 4"),
        (_repeat, ":4: it has the number 3, and 4 should come here: it was moved or repeated"),
        (_insert, ":3: it is not a line of an audit log"),
        (_blank, ":3: it is not a line of an audit log"),
        (_tear, ":3: it is not a line of an audit log"),
        (_lengthen, ":3: it is too long"),
    ],
)
def test_lines_that_were_removed_moved_added_or_cut_are_named(
    path: Path, lines: list[bytes], change: Callable[[list[bytes]], Any], said: str
) -> None:
    change(lines)
    path.write_bytes(b"".join(lines))
    with pytest.raises(BrokenChain) as error:
        verify([path])
    assert said in str(error.value)


@pytest.mark.parametrize("gone", range(1, COUNT + 1))
def test_lines_missing_at_the_end_show_against_a_head(path: Path, lines: list[bytes], gone: int) -> None:
    head = verify([path]).head.hash
    path.write_bytes(b"".join(lines[:-gone]))
    verdict = verify([path], [head])
    assert verdict.head.seq == COUNT - gone
    assert not verdict.heads_found


def test_a_changed_last_line_shows_against_a_head(path: Path, lines: list[bytes]) -> None:
    head = verify([path]).head.hash
    path.write_bytes(b"".join(lines).replace(b'"m5"', b'"m6"'))
    assert not verify([path], [head]).heads_found


def test_a_head_that_was_kept_earlier_is_found_again(path: Path, lines: list[bytes], new_log: NewLog) -> None:
    head = verify([path]).head
    log = new_log()
    log.record("load", "loaded", {})
    assert verify([path], [head.hash]).heads_found == {head.hash: head.seq}


@pytest.mark.parametrize("left", [1, 10, 100])
def test_a_torn_last_line_is_reported_and_is_no_fault(path: Path, lines: list[bytes], left: int) -> None:
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
    verdict = verify([path])
    assert verdict.torn == {path: left}
    assert verdict.head.seq == COUNT - 1


def test_a_file_that_repeats_the_beginning_of_another_is_found(path: Path, lines: list[bytes]) -> None:
    other = path.with_name("other.log")
    other.write_bytes(b"".join(lines[:2]))
    with pytest.raises(BrokenChain, match="should come here"):
        verify([path, other])


def test_files_are_put_in_order(path: Path, lines: list[bytes]) -> None:
    parts = [path.with_name(f"part{n}") for n in range(3)]
    for n, part in enumerate(parts):
        part.write_bytes(b"".join(lines[2 * n : 2 * n + 2]))
    verdict = verify([parts[2], parts[0], parts[1]])
    assert (verdict.first, verdict.head.seq) == (1, COUNT)
    assert verify(parts[1:]).first == 3
    with pytest.raises(BrokenChain, match="part2:1: it has the number 5, and 3 should come here"):
        verify([parts[0], parts[2]])


def test_a_key_finds_a_chain_that_someone_made_again_from_scratch(path: Path, new_log: NewLog) -> None:
    for key in (b"k" * 16, None, b"other key of someone"):
        path.unlink(missing_ok=True)
        path.with_name("audit.log.head").unlink(missing_ok=True)
        log = new_log(key=key)
        log.record("load", "loaded", {})
        log.close()
        if key == b"k" * 16:
            assert verify([path], key=key).head.seq == 1
        else:
            with pytest.raises(BrokenChain, match="HMAC"):
                verify([path], key=b"k" * 16)
