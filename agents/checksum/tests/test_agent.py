"""The agent as a server calls it: Triton's parameters with Triton's texts, and whole trees."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repoagent_checksum.agent import ChecksumAgent

from repoagent.api import (
    Action,
    ArtifactType,
    CancelledError,
    InvalidArgumentError,
    Parameters,
    RepoAgentError,
    UnsafePathError,
    UnsupportedError,
)

MakeTree = Callable[[dict[str, bytes]], Path]
CONTENT = b"import triton_python_backend_utils\n"
KNOWN = "; there are MD5, SHA1, SHA224, SHA256, SHA384, SHA512, BLAKE2B, BLAKE3"
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def load(make_tree: MakeTree, fake_model: Any) -> Callable[..., Any]:
    """Call LOAD for a model with ``1/model.py``, other files and these parameters; gives the model back."""

    def call(*parameters: tuple[str, str], files: dict[str, bytes] | None = None, **attributes: Any) -> Any:
        root = make_tree({"1/model.py": CONTENT} | (files or {}))
        model = fake_model(root, Parameters(parameters), **attributes)
        ChecksumAgent().model_action(model.as_model(), Action.LOAD)
        return model

    return call


def test_the_agent_is_a_guard_so_that_what_it_judged_is_what_is_loaded() -> None:
    assert ChecksumAgent.guard
    assert ChecksumAgent.api_version == 1


def test_a_right_md5_loads_and_is_reported(load: Callable[..., Any]) -> None:
    (report,) = load(("MD5:1/model.py", MD5)).reports
    assert report == {
        "bytes_read": len(CONTENT),
        "digests": {"1/model.py": f"md5:{MD5}"},
        "note": "1 file verified; MD5: enough against accidents, not against an attacker",
    }


TRITON = [
    (
        ("MD5:1/model.py", "0" * 32),
        InvalidArgumentError,
        f"Mismatched MD5 hash for file 1/model.py, expect: {'0' * 32}, got: {MD5}",
    ),
    (("md5:1/model.py", ""), InvalidArgumentError, f"Mismatched MD5 hash for file 1/model.py, expect: , got: {MD5}"),
    (
        ("MD5:1/nope.bin", MD5),
        InvalidArgumentError,
        "failed to open text file for read 1/nope.bin: No such file or directory",
    ),
    (("1/model.py", MD5), InvalidArgumentError, "failed to parse key: 1/model.py"),
    (("CRC32:1/model.py", MD5), UnsupportedError, "Unsupported checksum algorithm: CRC32" + KNOWN),
]


@pytest.mark.parametrize(("parameter", "kind", "text"), TRITON)
def test_a_refusal_has_tritons_text(
    load: Callable[..., Any], parameter: tuple[str, str], kind: type[RepoAgentError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        load(parameter)
    assert str(caught.value) == text


def test_upper_case_digits_are_accepted_unlike_in_triton(load: Callable[..., Any]) -> None:
    load(("MD5:1/model.py", MD5.upper()))


@pytest.mark.parametrize("name", ["SHA1", "SHA256", "SHA512", "BLAKE2B"])
def test_other_algorithms_have_the_same_form(load: Callable[..., Any], name: str) -> None:
    digest = hashlib.new(name.lower(), CONTENT).hexdigest()
    load((f"{name}:1/model.py", digest))
    with pytest.raises(InvalidArgumentError, match=f"^Mismatched {name} hash for file 1/model.py, expect: 00, got: "):
        load((f"{name}:1/model.py", "00"))


def test_several_wrong_files_are_named_in_order(load: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"1/model.py, expect: x, .*; Mismatched SHA256 .* a, expect: y"):
        load(("MD5:1/model.py", "x"), ("SHA256:a", "y"), files={"a": b""})


def test_without_parameters_a_model_without_digest_file_loads_and_the_report_says_so(load: Callable[..., Any]) -> None:
    (report,) = load().reports
    assert report["note"] == "nothing was checked: no parameter, and no digest file in the model's directory"


def test_without_parameters_a_digest_file_is_found_and_strict(load: Callable[..., Any]) -> None:
    sums = {"SHA256SUMS": f"{SHA256}  1/model.py\n".encode()}
    (report,) = load(files=sums).reports
    assert report["note"] == "1 file verified"
    assert report["digests"]["tree"].startswith("sha256:")
    with pytest.raises(InvalidArgumentError, match=r"^not listed: extra$"):
        load(files=sums | {"extra": b""})


def test_a_digest_file_that_is_asked_for_must_be_there(load: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="manifest SHA256SUMS cannot be read"):
        load(("manifest", "SHA256SUMS"))


def test_the_algorithm_of_plain_lines_can_be_said(load: Callable[..., Any]) -> None:
    blake3 = pytest.importorskip("blake3").blake3
    sums = {"sums": f"{blake3(CONTENT).hexdigest()}  1/model.py\n".encode()}
    load(("manifest", "sums"), ("algorithm", "blake3"), files=sums)
    with pytest.raises(InvalidArgumentError, match=r"^changed: 1/model.py"):
        load(("manifest", "sums"), files=sums)


def test_a_name_that_leaves_the_model_is_refused(load: Callable[..., Any]) -> None:
    with pytest.raises(UnsafePathError, match="SUMS:1"):
        load(("manifest", "SUMS"), files={"SUMS": f"{SHA256}  ../1/model.py\n".encode()})


def test_the_local_copy_of_a_remote_model_is_what_goes_on(load: Callable[..., Any]) -> None:
    model = load(("MD5:1/model.py", MD5), artifact_type=ArtifactType.REMOTE_FILESYSTEM)
    assert model.updated == [model.directory]
    assert load(("MD5:1/model.py", MD5)).updated == []


def test_progress_is_told_in_bytes(load: Callable[..., Any]) -> None:
    assert load(("MD5:1/model.py", MD5)).progressed[-1] == (len(CONTENT), len(CONTENT))


def test_a_cancelled_load_is_given_up(load: Callable[..., Any]) -> None:
    with pytest.raises(CancelledError):
        load(("MD5:1/model.py", MD5), cancelled=True)


@pytest.mark.parametrize("action", [action for action in Action if action is not Action.LOAD])
def test_every_other_action_does_nothing(tmp_path: Path, fake_model: Any, action: Action) -> None:
    model = fake_model(tmp_path / "gone", Parameters([("nonsense", "")]))
    ChecksumAgent().model_action(model.as_model(), action)
    assert model.reports == []


def test_a_demanded_check_with_nothing_to_check_refuses(load: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="demands this check, and there is nothing to check"):
        load(demanded=True)
    assert "nothing was checked" in load().reports[0]["note"]
    sums = f"{SHA256}  1/model.py\n".encode()
    load(demanded=True, files={"SHA256SUMS": sums})


class TestTrustedManifest:
    """A digest file that lies with the operator's policy."""

    @pytest.fixture
    def roots(self, tmp_path: Path) -> dict[str, Path]:
        path = tmp_path / "operator.sums"
        path.write_text(f"{SHA256}  1/model.py\n")
        return {"sums": path}

    def test_it_covers_the_whole_model(self, load: Callable[..., Any], roots: dict[str, Path]) -> None:
        (report,) = load(("trusted_manifest", "sums"), trust_roots=roots).reports
        assert report["note"] == "1 file verified"
        with pytest.raises(InvalidArgumentError, match=r"not listed: 2/model\.py"):
            load(("trusted_manifest", "sums"), trust_roots=roots, files={"2/model.py": b"mine"})

    def test_a_digest_file_of_the_owner_counts_for_nothing(
        self, load: Callable[..., Any], roots: dict[str, Path]
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="not listed: SHA256SUMS"):
            load(("trusted_manifest", "sums"), trust_roots=roots, files={"SHA256SUMS": b"x"})

    def test_a_name_that_the_policy_does_not_have_is_refused(
        self, load: Callable[..., Any], roots: dict[str, Path]
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="'other' is not a trust root of the policy's rule"):
            load(("trusted_manifest", "other"), trust_roots=roots)

    def test_a_file_that_is_gone_refuses_and_shows_no_path(
        self, load: Callable[..., Any], roots: dict[str, Path]
    ) -> None:
        roots["sums"].unlink()
        with pytest.raises(InvalidArgumentError, match="the trust root 'sums' cannot be read: No such file") as error:
            load(("trusted_manifest", "sums"), trust_roots=roots)
        assert str(roots["sums"].parent) not in str(error.value)
