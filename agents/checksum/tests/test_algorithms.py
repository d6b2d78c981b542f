"""Every algorithm against a published value or another program."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repoagent_checksum.algorithms import ALGORITHMS, GIT_SHA1, algorithm_of_length, find_algorithm

from repoagent.api import UnsupportedError


def test_every_algorithm_gives_digests_of_its_length() -> None:
    for algorithm in (*ALGORITHMS.values(), GIT_SHA1):
        assert len(algorithm.new().hexdigest()) == algorithm.hex_length


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
    hasher = find_algorithm(name).new()
    hasher.update(content)
    assert hasher.hexdigest() == printed


def test_blake3_gives_the_value_of_the_official_test_vectors() -> None:
    pytest.importorskip("blake3")
    # Case input_len 0 of test_vectors.json in the BLAKE3 repository, and 1025 bytes of its repeating pattern.
    empty = find_algorithm("BLAKE3").new()
    assert empty.hexdigest() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    pattern = bytes(i % 251 for i in range(1025))
    for threads in (False, True):
        hasher = find_algorithm("blake3").new(threads=threads)
        hasher.update(pattern)
        assert hasher.hexdigest() == "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"


def test_git_sha1_is_the_name_of_a_blob() -> None:
    assert GIT_SHA1.new(0).hexdigest() == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    hello = GIT_SHA1.new(6)
    hello.update(b"hello\n")
    assert hello.hexdigest() == "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.mark.parametrize("name", ["md5", "Md5", "sha-256", "SHA256", "blake2b"])
def test_names_are_found_in_any_case_and_with_a_dash(name: str) -> None:
    assert find_algorithm(name).name == name.upper().replace("-", "")


def test_an_unknown_name_is_refused_with_tritons_text() -> None:
    with pytest.raises(UnsupportedError, match=r"^Unsupported checksum algorithm: CRC32; there are MD5, .*, BLAKE3$"):
        find_algorithm("CRC32")


def test_a_missing_blake3_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(UnsupportedError, match=r"\./agents/checksum\[blake3\]"):
        find_algorithm("BLAKE3").new()


def test_a_length_alone_means_md5_or_a_sha() -> None:
    found = [algorithm_of_length(length) for length in (32, 40, 56, 64, 96, 128)]
    assert [a.name for a in found if a] == ["MD5", "SHA1", "SHA224", "SHA256", "SHA384", "SHA512"]
    assert algorithm_of_length(33) is None


@pytest.mark.slow
def test_the_package_imports_without_any_algorithm(tmp_path: Path) -> None:
    code = "import sys, repoagent_checksum.plugin; sys.exit('hashlib' in sys.modules or 'click' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
