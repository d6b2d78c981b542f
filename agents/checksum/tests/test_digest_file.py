"""Digest files, against the programs that write and read them."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from repoagent_checksum.digest_file import (
    ALGORITHMS,
    GIT_SHA1,
    Entry,
    algorithm_of_length,
    find_algorithm,
    format_digest_file,
    parse_digest_file,
)

from repoagent.api import InvalidArgumentError, UnsafePathError, UnsupportedError
from repoagent.beneath.digests import new_hasher

SHA256 = ALGORITHMS["SHA256"]
HEX = hashlib.sha256(b"").hexdigest()

file_names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)


def one(line: str, source: str = "SHA256SUMS") -> Entry:
    (entry,) = parse_digest_file(line.encode(), source)
    return entry


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (f"{HEX}  1/model.onnx", "1/model.onnx"),
        (f"{HEX} *1/model.onnx", "1/model.onnx"),
        (f"{HEX.upper()}  ./1/model.onnx", "1/model.onnx"),
        (f"{HEX}   leading space", " leading space"),
        (f"{HEX}  a (b) = cc", "a (b) = cc"),
        (f"\\{HEX}  a\\\\b\\nc\\rd", "a\\b\nc\rd"),
        (f"{HEX}  a\\nb", "a\\nb"),
        (f"SHA256 (1/model.onnx) = {HEX}", "1/model.onnx"),
        (f"SHA256(1/model.onnx)= {HEX}", "1/model.onnx"),
        (f"SHA256 (a) = (b) = {HEX}", "a) = (b"),
        (f"\\SHA256 (a\\nb) = {HEX}", "a\nb"),
        (f"{HEX}  model.onnx\r", "model.onnx"),
    ],
)
def test_both_forms_are_read(line: str, path: str) -> None:
    assert one(line) == Entry(path, SHA256, HEX)


def test_comments_and_blank_lines_say_nothing() -> None:
    text = f"# made by hand\n\n{HEX}  a\r\n\r\n{HEX}  b"
    assert [entry.path for entry in parse_digest_file(text.encode(), "SHA256SUMS")] == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "length", "name"),
    [
        ("SHA256SUMS", 64, "SHA256"),
        ("1/B3SUMS", 64, "BLAKE3"),
        ("model.b3", 64, "BLAKE3"),
        ("model.blake3", 64, "BLAKE3"),
        ("B2SUMS", 128, "BLAKE2B"),
        ("sums.txt", 128, "SHA512"),
        ("web2.sums", 128, "SHA512"),
        ("MD5SUMS", 32, "MD5"),
    ],
)
def test_the_name_of_the_file_tells_digests_of_one_length_apart(source: str, length: int, name: str) -> None:
    assert one("0" * length + "  a", source).algorithm.name == name


def test_a_tag_counts_more_than_the_name_of_the_file() -> None:
    assert one(f"BLAKE3 (a) = {HEX}").algorithm.name == "BLAKE3"
    assert one("BLAKE2b (a) = " + "0" * 128).algorithm.name == "BLAKE2B"


def test_the_given_algorithm_counts_more_than_the_name_of_the_file() -> None:
    (entry,) = parse_digest_file(f"{HEX}  a".encode(), "SHA256SUMS", ALGORITHMS["BLAKE3"])
    assert entry.algorithm.name == "BLAKE3"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello", "SHA256SUMS:2: expected 'digest  name'"),
        (HEX, "expected 'digest  name'"),
        (f"{HEX} a", "expected 'digest  name'"),
        (f"{HEX[:-1]}  a", "no known digest has 63"),
        (f"SHA256 (a) = {HEX[:-2]}", "62 hexadecimal digits; a SHA256 digest has 64"),
        (f"\\{HEX}  a\\tb", "unknown escape"),
        (f"\\{HEX}  a\\", "unknown escape"),
        ("0" * 64 + "  first", "two different SHA256 digests for first"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_with_its_place(line: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_digest_file(f"{HEX}  first\n{line}\n".encode(), "SHA256SUMS")


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "1/../../a", "1//a", "1/"])
def test_a_name_that_leaves_the_directory_is_refused(name: str) -> None:
    with pytest.raises(UnsafePathError, match="SHA256SUMS:1"):
        one(f"{HEX}  {name}")


def test_an_escaped_name_is_checked_after_unescaping() -> None:
    with pytest.raises(UnsafePathError):
        one(f"\\{HEX}  a\0b\\n")


def test_an_unknown_tag_is_refused_with_its_place() -> None:
    with pytest.raises(UnsupportedError, match="SHA256SUMS:1: Unsupported checksum algorithm: BLAKE2b-256"):
        one(f"BLAKE2b-256 (a) = {HEX}")


def test_a_repeated_line_is_no_contradiction() -> None:
    assert len(parse_digest_file(f"{HEX}  a\n{HEX}  ./a\n".encode(), "SHA256SUMS")) == 1


@pytest.mark.parametrize("text", [b"", b"\n", b"# nothing\n"])
def test_a_file_without_digests_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="no digest in it"):
        parse_digest_file(text, "SHA256SUMS")


@pytest.mark.slow
@given(st.dictionaries(file_names, st.binary(min_size=32, max_size=32), min_size=1), st.booleans())
def test_what_is_written_is_read_back(digests: dict[str, bytes], tagged: bool) -> None:
    wanted = {name: digest.hex() for name, digest in digests.items()}
    entries = parse_digest_file(format_digest_file(wanted, SHA256, tagged=tagged), "SUMS")
    assert {entry.path: entry.digest for entry in entries} == wanted


@pytest.mark.slow
@settings(max_examples=25)
@given(st.sets(file_names, min_size=1, max_size=4), st.booleans())
@example({"a\nb", "c\\d", "\\", " ", "e\rf", "#g", "(h) = i"}, False)
@example({"a\nb", "c\\d", "\\", " ", "(h) = i"}, True)
def test_coreutils_reads_what_we_write_and_we_read_what_it_writes(names: set[str], tagged: bool) -> None:
    program = shutil.which("sha256sum")
    if program is None:
        pytest.skip("sha256sum is not installed")
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            (Path(directory) / name).write_bytes(name.encode())
        digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
        ours = format_digest_file(digests, SHA256, tagged=tagged)
        check = [program, "--check", "--strict", "--status", "-"]
        subprocess.run(check, input=ours, cwd=directory, check=True)
        options = ["--tag"] if tagged else []
        theirs = subprocess.run(
            [program, *options, "--", *names], cwd=directory, capture_output=True, check=True
        ).stdout
        assert {entry.path: entry.digest for entry in parse_digest_file(theirs, "SUMS")} == digests


@pytest.mark.parametrize("options", [[], ["--tag"]])
def test_the_blake3_program_agrees_both_ways(tmp_path: Path, options: list[str]) -> None:
    program = shutil.which("b3sum")
    if program is None:
        pytest.skip("b3sum is not installed")
    pytest.importorskip("blake3")
    if options and "--tag" not in subprocess.run([program, "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this b3sum does not know --tag")
    digests = {}
    for name in ("plain", "with space", "back\\slash", "line\nend"):
        (tmp_path / name).write_bytes(name.encode())
        hasher = new_hasher("blake3")
        hasher.update(name.encode())
        digests[name] = hasher.hexdigest()
    theirs = subprocess.run([program, *options, *digests], cwd=tmp_path, capture_output=True, check=True).stdout
    assert {entry.path: entry.digest for entry in parse_digest_file(theirs, "B3SUMS")} == digests
    (tmp_path / "B3SUMS").write_bytes(format_digest_file(digests, ALGORITHMS["BLAKE3"], tagged=bool(options)))
    subprocess.run([program, "--check", "B3SUMS"], cwd=tmp_path, capture_output=True, check=True)


PIECES = st.sampled_from(
    [HEX.encode(), b"0" * 128, b"  ", b" *", b"\\", b"SHA256 (", b") = ", b"\n", b"../", b"a", b"\xff"]
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=300), st.lists(PIECES, max_size=12).map(b"".join)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        entries = parse_digest_file(data, "SUMS")
    except (InvalidArgumentError, UnsupportedError):
        return
    for entry in entries:
        assert len(entry.digest) == entry.algorithm.hex_length
        assert not entry.path.startswith(("/", "../"))


def test_every_algorithm_gives_digests_of_its_length() -> None:
    for algorithm in (*ALGORITHMS.values(), GIT_SHA1):
        assert len(new_hasher(algorithm.key).hexdigest()) == algorithm.hex_length


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("MD5", "md5sum"),
        ("SHA1", "sha1sum"),
        ("SHA224", "sha224sum"),
        ("SHA256", "sha256sum"),
        ("SHA384", "sha384sum"),
        ("SHA512", "sha512sum"),
        ("BLAKE2B", "b2sum"),
    ],
)
def test_digests_are_those_of_coreutils(name: str, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    content = b"content of a model\n" * 1000
    printed = subprocess.run([program], input=content, capture_output=True, check=True).stdout.split()[0].decode()
    hasher = new_hasher(find_algorithm(name).key)
    hasher.update(content)
    assert hasher.hexdigest() == printed


@pytest.mark.parametrize("name", ["md5", "Md5", "sha-256", "SHA256", "blake2b"])
def test_names_are_found_in_any_case_and_with_a_dash(name: str) -> None:
    assert find_algorithm(name).name == name.upper().replace("-", "")


def test_an_unknown_name_is_refused_with_tritons_text() -> None:
    with pytest.raises(UnsupportedError, match=r"^Unsupported checksum algorithm: CRC32; there are MD5, .*, BLAKE3$"):
        find_algorithm("CRC32")


def test_a_length_alone_means_md5_or_a_sha() -> None:
    found = [algorithm_of_length(length) for length in (32, 40, 56, 64, 96, 128)]
    assert [a.name for a in found if a] == ["MD5", "SHA1", "SHA224", "SHA256", "SHA384", "SHA512"]
    assert algorithm_of_length(33) is None


@pytest.mark.slow
def test_the_package_imports_without_any_algorithm(tmp_path: Path) -> None:
    code = "import sys, repoagent_checksum; sys.exit('hashlib' in sys.modules or 'click' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
