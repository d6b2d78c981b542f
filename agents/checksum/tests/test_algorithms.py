"""Every algorithm against a published value or another program."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repoagent_checksum.algorithms import ALGORITHMS, GIT_SHA1, algorithm_of_length, find_algorithm

from repoagent.api import UnsupportedError
from repoagent.beneath.digests import new_hasher


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
    code = "import sys, repoagent_checksum.plugin; sys.exit('hashlib' in sys.modules or 'click' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
