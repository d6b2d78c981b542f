"""``repoagent encrypt``, ``decrypt`` and ``rekey`` on whole model directories."""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity
from repoagent_decrypt.age.stanzas.scrypt import ScryptRecipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.cli import keys
from repoagent_decrypt.cli.commands import decrypt, encrypt

from agents.decrypt.tests.tink.test_keyset import keyset

Run = Callable[..., Result]
Read = Callable[[Path], dict[str, bytes]]
FILES = {
    "config.pbtxt": b'name: "m"',
    "labels.txt": b"a\nb\n",
    "1/model.onnx": os.urandom(200_000),
    "1/config.pbtxt": b"a file of the version directory",
    "2/data/x": b"",
}


@pytest.fixture
def model_dir(make_tree: Callable[..., Path]) -> Path:
    return make_tree(FILES)


@pytest.fixture
def sealed(model_dir: Path, tmp_path: Path, run: Run, identity: X25519Identity) -> Path:
    run("encrypt", model_dir, "-o", tmp_path / "sealed", "-r", identity.recipient)
    return tmp_path / "sealed"


def test_version_directories_are_encrypted_and_the_rest_is_copied(sealed: Path, read_tree: Read) -> None:
    found = read_tree(sealed)
    assert set(found) == {"config.pbtxt", "labels.txt", "1/model.onnx.age", "1/config.pbtxt.age", "2/data/x.age"}
    assert found["config.pbtxt"] == FILES["config.pbtxt"]
    assert found["1/model.onnx.age"].startswith(b"age-encryption.org/v1\n")


def test_decrypting_gives_the_model_back_for_its_owner_only(
    sealed: Path, key_file: Path, tmp_path: Path, run: Run, read_tree: Read
) -> None:
    result = run("decrypt", sealed, "-o", tmp_path / "open", "-i", key_file)
    assert read_tree(tmp_path / "open") == FILES
    assert "3 decrypted, 2 copied" in result.output
    assert {path.stat().st_mode & 0o077 for path in [tmp_path / "open", *(tmp_path / "open").rglob("*")]} == {0}


@pytest.mark.skipif(shutil.which("age") is None, reason="the program age is not installed")
def test_the_age_program_opens_what_we_encrypted(sealed: Path, key_file: Path) -> None:
    done = subprocess.run(["age", "-d", "-i", key_file, sealed / "1/model.onnx.age"], capture_output=True, check=True)
    assert done.stdout == FILES["1/model.onnx"]


def test_encrypted_files_keep_their_mode(model_dir: Path, tmp_path: Path, run: Run, identity: X25519Identity) -> None:
    (model_dir / "1/model.onnx").chmod(0o640)
    run("encrypt", model_dir, "-o", tmp_path / "sealed", "-r", identity.recipient)
    assert (tmp_path / "sealed/1/model.onnx.age").stat().st_mode & 0o777 == 0o640


def test_of_a_model_without_versions_all_but_licenses_and_the_like_is_encrypted(
    make_tree: Callable[..., Path], tmp_path: Path, run: Run, identity: X25519Identity
) -> None:
    model = make_tree({"config.pbtxt": b"", "LICENSE": b"", "config.json": b"{}", "a/w.bin": b"w"})
    run("encrypt", model, "-o", tmp_path / "out", "-r", str(identity.recipient))
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found == ["LICENSE", "a/w.bin.age", "config.json.age", "config.pbtxt"]


def test_files_can_be_chosen_but_the_configuration_never(
    model_dir: Path, tmp_path: Path, run: Run, read_tree: Read, identity: X25519Identity
) -> None:
    run(
        "encrypt", model_dir, "-o", tmp_path / "out", "-r", identity.recipient, "--files", "*.txt", "--files", "*.pbtxt"
    )
    assert set(read_tree(tmp_path / "out")) == {
        "config.pbtxt", "labels.txt.age", "1/model.onnx", "1/config.pbtxt.age", "2/data/x",
    }  # fmt: skip


def test_recipients_may_come_from_a_file(
    model_dir: Path, tmp_path: Path, run: Run, read_tree: Read, key_file: Path, identity: X25519Identity
) -> None:
    people = tmp_path / "people.txt"
    people.write_text(f"# who\n{X25519Identity.generate().recipient}\n{identity.recipient}\n")
    run("encrypt", model_dir, "-o", tmp_path / "out", "-R", people, "--armor")
    assert (tmp_path / "out/2/data/x.age").read_text().startswith("-----BEGIN AGE ENCRYPTED FILE-----\n")
    run("decrypt", tmp_path / "out", "-o", tmp_path / "open", "-i", key_file)
    assert read_tree(tmp_path / "open") == FILES


def test_a_passphrase_is_typed_twice_to_encrypt_and_may_be_a_reference_to_decrypt(
    make_tree: Callable[..., Path], tmp_path: Path, run: Run, read_tree: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = make_tree({"1/m": b"small"})
    # A second of work, and that three times, would prove no more.
    monkeypatch.setattr(keys, "ScryptRecipient", partial(ScryptRecipient, work_factor=10))
    run("encrypt", model_dir, "-o", tmp_path / "out", "-p", input="horse\nhorse\n")
    run("decrypt", tmp_path / "out", "-o", tmp_path / "open", "--passphrase-key", "env:WORD", env={"WORD": "horse"})
    assert read_tree(tmp_path / "open") == {"1/m": b"small"}
    assert "no identity fits" in run(
        "decrypt", tmp_path / "out", "-o", tmp_path / "no", "-p", input="wrong\n", status=1
    ).output  # fmt: skip


def test_an_existing_output_is_kept_unless_forced(sealed: Path, key_file: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_bytes(b"")
    assert "give --force" in run("decrypt", sealed, "-o", out, "-i", key_file, status=1).output
    assert (out / "mine").exists()
    run("decrypt", sealed, "-o", out, "-i", key_file, "--force")
    assert not (out / "mine").exists()
    assert (out / "1/model.onnx").exists()


@pytest.mark.parametrize("out", ["", "1/x"])
def test_an_output_around_or_inside_the_model_is_refused_even_if_forced(
    sealed: Path, key_file: Path, run: Run, read_tree: Read, out: str
) -> None:
    before = read_tree(sealed.parent)
    where = sealed / out if out else sealed.parent
    result = run("decrypt", sealed, "-o", where, "-i", key_file, "--force", status=1)
    assert f"one of {sealed} and {where} lies in the other" in result.output
    assert read_tree(sealed.parent) == before


def test_a_failure_leaves_no_output_and_nothing_beside_it(
    sealed: Path, key_file: Path, tmp_path: Path, run: Run
) -> None:
    with (sealed / "1/model.onnx.age").open("r+b") as file:
        file.truncate(1000)
    before = set(tmp_path.iterdir())
    result = run("decrypt", sealed, "-o", tmp_path / "out", "-i", key_file, status=1)
    assert "1/model.onnx.age: " in result.output
    assert set(tmp_path.iterdir()) == before


def test_rekey_changes_who_can_read_without_touching_the_payload(
    sealed: Path, key_file: Path, tmp_path: Path, run: Run, read_tree: Read
) -> None:
    new, pq = X25519Identity.generate(), HybridIdentity.generate()
    (tmp_path / "new.txt").write_text(new.export())
    (tmp_path / "pq.txt").write_text(pq.export())
    out = tmp_path / "out"
    run("rekey", sealed, "-o", out, "-i", key_file, "-r", new.recipient, "-r", pq.recipient)
    assert (out / "1/model.onnx.age").read_bytes()[-199_000:] == (sealed / "1/model.onnx.age").read_bytes()[-199_000:]
    for name in ("new", "pq"):
        run("decrypt", out, "-o", tmp_path / f"open-{name}", "-i", tmp_path / f"{name}.txt")
        assert read_tree(tmp_path / f"open-{name}") == FILES
    assert "no identity fits" in run("decrypt", out, "-o", tmp_path / "no", "-i", key_file, status=1).output


def test_rekey_may_replace_its_own_input(sealed: Path, key_file: Path, run: Run) -> None:
    run("rekey", sealed, "-o", sealed, "-i", key_file, "-r", X25519Identity.generate().recipient, "--force")
    assert {path.name for path in sealed.iterdir()} == {"config.pbtxt", "labels.txt", "1", "2"}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["encrypt", "MODEL", "-o", "OUT"], 2, "whom to encrypt to"),
        (["encrypt", "MODEL", "-o", "OUT", "-r", "age1qqqq"], 1, "--recipient, line 1: not a Bech32 key"),
        (["encrypt", "MODEL", "-o", "OUT", "-r", "AGE", "-p"], 2, "only recipient"),
        (["encrypt", "MODEL", "-o", "OUT", "-r", "AGE", "--files", "*.nothing"], 1, "nothing to encrypt"),
        (["encrypt", "SEALED", "-o", "OUT", "-r", "AGE"], 1, "encrypted already"),
        (["encrypt", "NOWHERE", "-o", "OUT", "-r", "AGE"], 2, "does not exist"),
        (["decrypt", "SEALED", "-o", "OUT"], 2, "which key"),
        (["decrypt", "SEALED", "-o", "OUT", "-i", "env:NOT_SET_AT_ALL"], 1, "NOT_SET_AT_ALL is not set"),
        (["decrypt", "SEALED", "-o", "OUT", "-i", "/no/such/file"], 1, "/no/such/file: No such file"),
        (["decrypt", "MODEL", "-o", "OUT", "-i", "KEY"], 1, "nothing to decrypt"),
        (["rekey", "MODEL", "-o", "OUT", "-i", "KEY", "-r", "AGE"], 1, "nothing to rekey"),
        (["rekey", "SEALED", "-o", "OUT", "-i", "KEY"], 2, "whom to encrypt to"),
        (["rekey", "SEALED", "-o", "OUT", "-i", "KEY", "-r", "ssh-ed25519 AAAA"], 1, "decrypt and encrypt instead"),
    ],
)
def test_mistakes_have_a_message_and_an_exit_code(
    arguments: list[str], status: int, text: str, model_dir: Path, sealed: Path, key_file: Path, tmp_path: Path,
    run: Run, identity: X25519Identity,
) -> None:  # fmt: skip
    words = {"MODEL": model_dir, "SEALED": sealed, "OUT": tmp_path / "out", "KEY": key_file, "AGE": identity.recipient}
    result = run(*(words.get(word, word) for word in arguments), status=status, input="x\nx\n")
    assert text in result.output
    assert not (tmp_path / "out").exists()


def test_a_key_on_the_command_line_is_refused_without_showing_it(sealed: Path, tmp_path: Path, run: Run) -> None:
    secret = X25519Identity.generate().export()
    for arguments in (["decrypt", sealed, "-o", tmp_path / "out", "-i", secret], ["keygen", "-y", secret]):
        assert secret not in run(*arguments, status=2).output
    assert secret not in run("encrypt", sealed, "-o", tmp_path / "out", "-r", secret, status=1).output


def test_a_key_may_come_from_a_key_service(
    sealed: Path, tmp_path: Path, run: Run, read_tree: Read, identity: X25519Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_decrypt.providers.kbs.fetch", lambda uri: identity.export().encode())
    run("decrypt", sealed, "-o", tmp_path / "open", "-i", "kbs:///default/age/key")
    assert read_tree(tmp_path / "open") == FILES


# ``repoagent encrypt --keyset`` and ``decrypt`` with keys of every format.


def test_what_a_keyset_encrypts_it_decrypts(tmp_path: Path) -> None:
    model, sealed, plain = tmp_path / "m", tmp_path / "sealed", tmp_path / "plain"
    (model / "1").mkdir(parents=True)
    (model / "1/model.onnx").write_bytes(b"weights" * 10_000)
    (tmp_path / "keyset.json").write_bytes(keyset())
    arguments = ["--keyset", str(tmp_path / "keyset.json")]
    result = CliRunner().invoke(encrypt, [str(model), "-o", str(sealed), *arguments])
    assert result.exit_code == 0, result.output
    assert [path.name for path in (sealed / "1").iterdir()] == ["model.onnx.tink"]
    result = CliRunner().invoke(decrypt, [str(sealed), "-o", str(plain), *arguments])
    assert result.exit_code == 0, result.output
    assert (plain / "1/model.onnx").read_bytes() == b"weights" * 10_000


def test_a_keyset_and_recipients_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/x").touch()
    (tmp_path / "k").write_bytes(keyset())
    arguments = [str(tmp_path / "m"), "-o", str(tmp_path / "o"), "--keyset", str(tmp_path / "k"), "--armor"]
    result = CliRunner().invoke(encrypt, arguments)
    assert result.exit_code == 2
    assert "--keyset stands alone" in result.output
