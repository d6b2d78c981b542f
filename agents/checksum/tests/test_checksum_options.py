"""Parameters, read into what is to be checked."""

import pytest
from repoagent_checksum.checksum_options import parse_parameters

from repoagent.api import InvalidArgumentError, UnsafePathError, UnsupportedError

HEX = "ab" * 32


def test_triton_parameters_are_read_in_order_with_repeats() -> None:
    request = parse_parameters([("MD5:1/a", "x"), ("md5:1/b", "Y"), ("MD5:1/a", "z")])
    assert [(f.entry.algorithm.name, f.entry.path, f.value) for f in request.files] == [
        ("MD5", "1/a", "x"),
        ("MD5", "1/b", "Y"),
        ("MD5", "1/a", "z"),
    ]


@pytest.mark.parametrize("value", [HEX, HEX.upper(), f"sha256:{HEX}", f"SHA256:{HEX.upper()}", f" {HEX}\n"])
def test_a_digest_may_be_upper_case_and_may_name_its_algorithm(value: str) -> None:
    (file,) = parse_parameters([("SHA256:a", value)]).files
    assert file.entry.digest == HEX
    assert file.value == value


def test_a_value_can_choose_the_algorithm() -> None:
    (file,) = parse_parameters([("DIGEST:a", f"sha256:{HEX}")]).files
    assert (file.entry.algorithm.name, file.entry.digest) == ("SHA256", HEX)
    with pytest.raises(InvalidArgumentError, match="expected a digest like 'sha256:<hex>'"):
        parse_parameters([("DIGEST:a", HEX)])


def test_a_digest_of_another_algorithm_stays_different() -> None:
    (file,) = parse_parameters([("SHA256:a", f"blake3:{HEX}")]).files
    assert file.entry.digest != HEX


def test_the_other_parameters_are_read() -> None:
    request = parse_parameters(
        [
            ("manifest", "SHA256SUMS"),
            ("manifest", "./1/B3SUMS"),
            ("manifest", "SHA256SUMS"),
            ("algorithm", "blake3"),
            ("ignore", "2/"),
            ("safetensors_index", "*"),
        ]
    )
    assert request.manifests == ("SHA256SUMS", "1/B3SUMS")
    assert request.algorithm is not None
    assert request.algorithm.name == "BLAKE3"
    assert request.ignore == {"2"}
    assert request.indexes == ("*",)
    assert not request.is_empty


def test_nothing_asked_for_is_empty() -> None:
    assert parse_parameters([]).is_empty


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("1/model.py", "failed to parse key: 1/model.py"),
        ("mainfest", "failed to parse key: mainfest; did you mean 'manifest'?"),
    ],
)
def test_an_unknown_key_is_refused(key: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_parameters([(key, "x")])
    assert str(caught.value) == message


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"^Unsupported checksum algorithm: CRC32; there are "):
        parse_parameters([("CRC32:1/model.py", "x")])


@pytest.mark.parametrize("key", ["MD5:../a", "MD5:/a", "MD5:", "manifest", "ignore", "safetensors_index"])
def test_a_path_that_leaves_the_model_is_refused(key: str) -> None:
    with pytest.raises(UnsafePathError, match="parameter"):
        parse_parameters([(key, "../a")])
