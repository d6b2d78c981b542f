"""The check of a whole tree: what is left alone passes, and any one change is refused."""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repoagent_checksum.check import Finding, Kind, check, describe, digests_of, find_digest_files, scan_tree
from repoagent_checksum.checksum_options import Request, parse_parameters
from repoagent_checksum.digest_file import ALGORITHMS, Algorithm, format_digest_file

from repoagent.api import InvalidArgumentError, UnsafePathError

SHA256 = ALGORITHMS["SHA256"]
SUMS = Request(manifests=("SHA256SUMS",))
MakeTree = Callable[[dict[str, bytes]], Path]

FILES = {"config.pbtxt": b"name: 'm'", "1/model.onnx": b"weights", "labels.txt": b"a\nb\n"}


def seal(root: Path, algorithm: Algorithm = SHA256, name: str = "SHA256SUMS") -> None:
    """Write the digest file of ``root``."""
    files = [path for path in scan_tree(root).files if path != name]
    digests = digests_of(root, {path: [algorithm] for path in files})
    (root / name).write_bytes(format_digest_file({path: digests[path][algorithm.key] for path in files}, algorithm))


@pytest.fixture
def model(make_tree: MakeTree) -> Path:
    root = make_tree(FILES)
    seal(root)
    return root


def kinds(root: Path, request: Request = SUMS) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.path) for finding in check(root, request).findings]


def test_an_untouched_model_passes_and_has_a_tree_digest(model: Path) -> None:
    verdict = check(model, SUMS)
    assert verdict.findings == ()
    assert verdict.files == 3
    assert verdict.bytes_read == sum(map(len, FILES.values()))
    # From `sha256sum --tag FILES | LC_ALL=C sort | sha256sum`.
    assert verdict.tree_digest == "sha256:1ead24b90304f2f5bf7ad2706f81e3cfe51f0ec64447d07e35e53da09d3bf4d3"


def test_the_tree_digest_depends_on_content_and_names_only(model: Path) -> None:
    before = check(model, SUMS).tree_digest
    os.utime(model / "labels.txt", (0, 0))
    lines = (model / "SHA256SUMS").read_text().splitlines(keepends=True)
    (model / "SHA256SUMS").write_text("# moved\n" + "".join(reversed(lines)))
    assert check(model, SUMS).tree_digest == before
    (model / "labels.txt").write_bytes(b"other")
    seal(model)
    assert check(model, SUMS).tree_digest != before


def test_every_kind_of_change_is_found_at_once(model: Path) -> None:
    (model / "1" / "model.onnx").write_bytes(b"Weights")
    (model / "labels.txt").unlink()
    (model / "extra").write_bytes(b"")
    (model / "link").symlink_to("extra")
    os.mkfifo(model / "pipe")
    (model / "2").mkdir()
    assert kinds(model) == [
        (Kind.CHANGED, "1/model.onnx"),
        (Kind.MISSING, "labels.txt"),
        (Kind.LINK, "link"),
        (Kind.SPECIAL, "pipe"),
        (Kind.UNLISTED, "extra"),
        (Kind.EMPTY, "2"),
    ]


def test_a_file_replaced_by_a_link_to_the_same_content_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "labels.txt").rename(tmp_path / "labels.txt")
    (model / "labels.txt").symlink_to(tmp_path / "labels.txt")
    assert kinds(model) == [(Kind.LINK, "labels.txt")]


def test_a_directory_replaced_by_a_link_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "1").rename(tmp_path / "1")
    (model / "1").symlink_to(tmp_path / "1")
    assert kinds(model) == [(Kind.MISSING, "1/model.onnx"), (Kind.LINK, "1")]


def test_without_being_thorough_nothing_is_hashed_once_the_structure_is_wrong(model: Path) -> None:
    (model / "labels.txt").unlink()
    verdict = check(model, SUMS, thorough=False)
    assert [finding.kind for finding in verdict.findings] == [Kind.MISSING]
    assert verdict.files == 0


def test_ignored_files_and_directories_need_not_be_listed(model: Path) -> None:
    (model / "SHA256SUMS.sig").write_bytes(b"")
    (model / "2").mkdir()
    request = parse_parameters([("manifest", "SHA256SUMS"), ("ignore", "SHA256SUMS.sig"), ("ignore", "2/")])
    assert kinds(model, request) == []


def test_an_ignored_file_that_is_listed_is_still_compared(model: Path) -> None:
    (model / "labels.txt").write_bytes(b"other")
    request = parse_parameters([("manifest", "SHA256SUMS"), ("ignore", "labels.txt")])
    assert kinds(model, request) == [(Kind.CHANGED, "labels.txt")]


def test_a_manifest_covers_the_directory_it_lies_in(make_tree: MakeTree) -> None:
    root = make_tree(FILES | {"1/labels.txt": b"c"})
    digests = digests_of(root / "1", {name: [SHA256] for name in ("model.onnx", "labels.txt")})
    text = format_digest_file({name: found["sha256"] for name, found in digests.items()}, SHA256)
    (root / "1" / "SHA256SUMS").write_bytes(text)
    request = Request(manifests=("1/SHA256SUMS",))
    assert kinds(root, request) == []
    (root / "10").mkdir()
    (root / "1" / "extra").write_bytes(b"")
    assert kinds(root, request) == [(Kind.UNLISTED, "1/extra")]


def test_two_manifests_of_one_tree_need_not_list_each_other(model: Path) -> None:
    pytest.importorskip("blake3")
    files = list(FILES)
    digests = digests_of(model, {path: [ALGORITHMS["BLAKE3"]] for path in files})
    text = format_digest_file({path: digests[path]["blake3"] for path in files}, ALGORITHMS["BLAKE3"])
    (model / "B3SUMS").write_bytes(text)
    assert find_digest_files(model) == ("SHA256SUMS", "B3SUMS")
    assert kinds(model, Request(manifests=find_digest_files(model))) == []


def test_a_listing_with_sizes_is_compared_before_reading(make_tree: MakeTree) -> None:
    root = make_tree({"config.json": b"{}"})
    blob = "9e26dfeeb6e641a33dae4961196235bdb965b21b"  # `git hash-object` of {}
    (root / "tree.json").write_text(f'[{{"type": "file", "path": "config.json", "size": 2, "oid": "{blob}"}}]')
    request = Request(manifests=("tree.json",))
    assert kinds(root, request) == []
    assert check(root, request).weak == ("GIT-SHA1",)
    (root / "config.json").write_bytes(b"{ }")
    (finding,) = check(root, request, thorough=False).findings
    assert str(finding) == "config.json (expect: 2 bytes, got: 3)"


def test_a_digest_file_can_be_pinned_by_a_parameter(model: Path) -> None:
    pin = digests_of(model, {"SHA256SUMS": [SHA256]})["SHA256SUMS"]["sha256"]
    request = parse_parameters([("SHA256:SHA256SUMS", pin), ("manifest", "SHA256SUMS")])
    assert kinds(model, request) == []
    (model / "labels.txt").write_bytes(b"other")
    seal(model)
    assert kinds(model, request) == [(Kind.MISMATCH, "SHA256SUMS")]


def test_a_missing_manifest_is_refused(model: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="manifest B3SUMS cannot be read: No such file"):
        check(model, Request(manifests=("B3SUMS",)))


def test_a_manifest_that_is_a_link_is_refused(model: Path) -> None:
    (model / "SHA256SUMS").rename(model / "real")
    (model / "SHA256SUMS").symlink_to("real")
    assert find_digest_files(model) == ("SHA256SUMS",)
    with pytest.raises(UnsafePathError, match="symbolic link"):
        check(model, SUMS)


def test_an_incomplete_safetensors_index_is_found(make_tree: MakeTree) -> None:
    root = make_tree({"1/m.safetensors.index.json": b'{"weight_map": {"x": "a.safetensors"}}'})
    (finding,) = check(root, Request(indexes=("*",))).findings
    assert describe([finding]) == (
        "incomplete: 1/m.safetensors.index.json (shard 1/a.safetensors: No such file or directory)"
    )


def test_asking_for_all_indexes_where_there_is_none_is_refused(make_tree: MakeTree) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no file \*.safetensors.index.json"):
        check(make_tree(FILES), Request(indexes=("*",)))


# What a careless or hostile hand can do to one file of a tree. Each gets the files and random numbers.


def flip_a_bit(root: Path, names: list[str], rng: random.Random) -> None:
    path = root / rng.choice([name for name in names if (root / name).stat().st_size])
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(root: Path, names: list[str], rng: random.Random) -> None:
    path = root / rng.choice([name for name in names if (root / name).stat().st_size])
    os.truncate(path, rng.randrange(path.stat().st_size))


def append(root: Path, names: list[str], rng: random.Random) -> None:
    with (root / rng.choice(names)).open("ab") as file:
        file.write(rng.randbytes(rng.randint(1, 9)))


def swap(root: Path, names: list[str], rng: random.Random) -> None:
    first = root / rng.choice(names)
    second = root / rng.choice([name for name in names if (root / name).read_bytes() != first.read_bytes()])
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def rename(root: Path, names: list[str], rng: random.Random) -> None:
    (root / rng.choice(names)).rename(root / "renamed")


def add(root: Path, names: list[str], rng: random.Random) -> None:
    (root / rng.choice(names)).with_name("added").write_bytes(b"")


def remove(root: Path, names: list[str], rng: random.Random) -> None:
    (root / rng.choice(names)).unlink()


def link(root: Path, names: list[str], rng: random.Random) -> None:
    path = root / rng.choice(names)
    path.rename(root.parent / "moved")
    path.symlink_to(root.parent / "moved")


CHANGES = [flip_a_bit, truncate, append, swap, rename, add, remove, link]
paths = st.from_regex(r"(?:[a-c]/){0,2}[d-h]{1,3}", fullmatch=True)
trees = st.dictionaries(paths, st.binary(max_size=50), min_size=2, max_size=6).filter(
    lambda tree: len(set(tree.values())) > 1
)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@settings(max_examples=30)
@given(tree=trees, seed=st.integers(0, 2**32))
def test_any_single_change_of_any_tree_is_refused(
    change: Callable[[Path, list[str], random.Random], None], tree: dict[str, bytes], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "model"
        for name, data in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        seal(root)
        assert check(root, SUMS).findings == ()
        change(root, sorted(tree), random.Random(seed))
        assert check(root, SUMS).findings
        assert check(root, SUMS, thorough=False).findings


def test_everything_below_a_directory_is_sorted_in(tmp_path: Path) -> None:
    (tmp_path / "1" / "deep").mkdir(parents=True)
    (tmp_path / "2").mkdir()
    (tmp_path / "config.pbtxt").write_bytes(b"name: 'a'")
    (tmp_path / "1" / "deep" / ".hidden").write_bytes(b"")
    (tmp_path / "1" / "link").symlink_to("deep")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "1" / "pipe")
    tree = scan_tree(tmp_path)
    assert tree.files == {"config.pbtxt": 9, "1/deep/.hidden": 0}
    assert tree.links == ["1/link", "broken"]
    assert tree.special == ["1/pipe"]
    assert tree.empty == ["2"]


def test_an_empty_model_has_no_empty_directory(tmp_path: Path) -> None:
    assert scan_tree(tmp_path).empty == []


def test_each_kind_names_its_first_few() -> None:
    findings = [
        *(Finding(Kind.UNLISTED, f"extra{i}") for i in range(5)),
        Finding(Kind.CHANGED, "1/model.onnx", "SHA256 expect: aa, got: bb"),
        Finding(Kind.MISSING, "line\nend"),
    ]
    assert describe(findings) == (
        "changed: 1/model.onnx (SHA256 expect: aa, got: bb); missing: line\\nend; "
        "not listed: extra0, extra1, extra2, and 2 more"
    )


def test_a_single_mismatch_is_tritons_text_alone() -> None:
    text = "Mismatched MD5 hash for file 1/model.py, expect: 00, got: 11"
    assert describe([Finding(Kind.MISMATCH, "1/model.py", text)]) == text
