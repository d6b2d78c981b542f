"""``repoagent encrypt --keyset`` and ``decrypt`` with keys of every format."""

from pathlib import Path

from click.testing import CliRunner
from repoagent_decrypt.cli.decrypt import decrypt
from repoagent_decrypt.cli.encrypt import encrypt

from agents.decrypt.tests.tink.test_keyset import keyset


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
