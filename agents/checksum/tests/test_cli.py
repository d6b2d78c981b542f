"""The command line, together with the program whose files it shares."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from repoagent_checksum import cli
from repoagent_checksum.check import Observer
from repoagent_checksum.cli import checksum

MakeTree = Callable[[dict[str, bytes]], Path]
FILES = {"config.pbtxt": b"name: 'm'", "1/model.onnx": b"weights", "back\\slash": b"a"}


@pytest.fixture
def model(make_tree: MakeTree) -> Path:
    return make_tree(FILES)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(checksum, [str(argument) for argument in arguments])


def coreutils(program: str, model: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    return subprocess.run([program, *arguments], cwd=model, capture_output=True, check=False)


@pytest.mark.parametrize("tag", [(), ("--tag",)])
@pytest.mark.parametrize(
    ("algorithm", "name", "program"),
    [
        ("sha256", "SHA256SUMS", "sha256sum"),
        ("sha512", "SHA512SUMS", "sha512sum"),
        ("blake2b", "B2SUMS", "b2sum"),
        ("md5", "MD5SUMS", "md5sum"),
        ("sha1", "SHA1SUMS", "sha1sum"),
    ],
)
def test_coreutils_accepts_what_write_wrote_and_refuses_a_change(
    model: Path, algorithm: str, name: str, program: str, tag: tuple[str, ...]
) -> None:
    result = run("write", model, "--algorithm", algorithm, *tag)
    assert (result.exit_code, result.output) == (0, f"{name}: 3 files, 17 bytes\n")
    assert coreutils(program, model, "--check", "--strict", name).returncode == 0
    assert run("verify", model, "--manifest", name).exit_code == 0
    (model / "1" / "model.onnx").write_bytes(b"Weights")
    assert coreutils(program, model, "--check", name).returncode == 1
    assert run("verify", model, "--manifest", name).exit_code == 1


def test_verify_accepts_what_sha256sum_wrote(model: Path) -> None:
    written = coreutils("sh", model, "-c", "find . -type f -exec sha256sum {} + > /tmp/$$ && mv /tmp/$$ SHA256SUMS")
    assert written.returncode == 0
    result = run("verify", model)
    assert result.exit_code == 0
    assert result.output.startswith("SHA256SUMS: 3 files, 17 bytes: OK, tree sha256:")


def test_b3sum_accepts_what_write_wrote(model: Path) -> None:
    pytest.importorskip("blake3")
    assert run("write", model, "--algorithm", "blake3").exit_code == 0
    assert coreutils("b3sum", model, "--check", "B3SUMS").returncode == 0
    assert run("verify", model, "--quiet").output == ""


def test_write_again_replaces_the_digest_file_and_leaves_nothing_else(model: Path) -> None:
    run("write", model)
    before = (model / "SHA256SUMS").read_bytes()
    run("write", model)
    assert (model / "SHA256SUMS").read_bytes() == before
    assert sorted(path.name for path in model.iterdir()) == ["1", "SHA256SUMS", "back\\slash", "config.pbtxt"]


def test_a_digest_file_outside_covers_all_of_the_model(model: Path, tmp_path: Path) -> None:
    """U1: a page's command, which did not work."""
    run("write", model)
    trusted = tmp_path / "etc" / "fraud.SHA256SUMS"
    trusted.parent.mkdir()
    assert run("write", model, "-o", trusted).output == f"{trusted}: 4 files, 254 bytes\n"
    assert run("verify", model, "--trusted-manifest", trusted).output.startswith(f"{trusted}: 4 files")
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes(b"of another")
    run("write", model)
    result = run("verify", model, "--trusted-manifest", trusted)
    assert (result.exit_code, "2/model.onnx: NOT LISTED" in result.output) == (1, True)


def test_a_path_into_the_model_itself_is_its_own_digest_file(model: Path) -> None:
    assert run("write", model, "-o", model / "SHA256SUMS").exit_code == 0
    assert "SHA256SUMS" not in (model / "SHA256SUMS").read_text()


def test_verify_prints_a_line_for_everything_that_is_wrong(model: Path) -> None:
    run("write", model)
    (model / "1" / "model.onnx").unlink()
    (model / "extra").write_bytes(b"")
    (model / "link").symlink_to("extra")
    result = run("verify", model)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["1/model.onnx: MISSING", "link: LINK", "extra: NOT LISTED"]
    assert result.stderr == "SHA256SUMS: 3 found wrong, the agent would refuse this model\n"


def test_ignore_lets_an_unlisted_file_be(model: Path) -> None:
    run("write", model)
    (model / "SHA256SUMS.sig").write_bytes(b"")
    assert run("verify", model).exit_code == 1
    assert run("verify", model, "--ignore", "SHA256SUMS.sig").exit_code == 0


def test_write_warns_of_an_empty_directory_and_refuses_a_link(model: Path) -> None:
    (model / "2").mkdir()
    assert "warning: 2 is an empty directory" in run("write", model).stderr
    (model / "link").symlink_to("1")
    result = run("write", model, "--output", "OTHER")
    assert result.exit_code == 1
    assert "link is a symbolic link; a digest file cannot describe that" in result.stderr
    assert not (model / "OTHER").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("verify", "MODEL"), 1, "no digest file in"),
        (("verify", "MODEL", "--manifest", "config.pbtxt"), 1, "config.pbtxt:1: expected 'digest  name'"),
        (("verify", "MODEL", "--manifest", "../x"), 1, "not a plain relative path"),
        (("write", "MODEL", "--output", "MODEL/1/x"), 2, "lies in a directory of the model"),
        (("write", "MODEL", "--output", "MODEL/../none/x"), 2, "No such file or directory"),
        (("verify", "MODEL", "--trusted-manifest", "nowhere"), 2, "does not exist"),
        (("write", "MODEL", "--algorithm", "crc32"), 2, "crc32"),
        (("verify", "nowhere"), 2, "does not exist"),
        (("write",), 2, "Missing argument"),
    ],
)
def test_faults_have_an_exit_status_and_one_clear_line(
    model: Path, arguments: tuple[str, ...], status: int, text: str
) -> None:
    result = run(*(argument.replace("MODEL", str(model)) for argument in arguments))
    assert result.exit_code == status
    assert text in result.output


def test_a_directory_that_cannot_be_written_is_told(model: Path) -> None:
    (model / "SHA256SUMS").mkdir()
    (model / "SHA256SUMS" / "a").write_bytes(b"")
    result = run("write", model)
    assert result.exit_code == 2
    assert "Is a directory" in result.output


def test_a_person_sees_a_bar_on_stderr(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        written = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            self.written += text
            return len(text)

        def flush(self) -> None:
            return None

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with cli._progress_bar() as observer:
        observer.progress(50, 100)
        observer.progress(100, 100)
    assert "checksum" in terminal.written
    assert "100%" in terminal.written


def test_a_script_sees_none(capsys: pytest.CaptureFixture[str]) -> None:
    with cli._progress_bar() as observer:
        assert isinstance(observer, Observer)
        observer.progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_the_plug_in_offers_the_command() -> None:
    from repoagent_checksum import register_commands

    assert register_commands()["checksum"].target == "repoagent_checksum.cli:checksum"
