"""``repoagent convert FILE --to decoder``: what lies beside the result already."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from llm.tests.backend.tiny import byte_level, write_decoder
from repoagent.cli.convert import convert


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a language model, with files that its decoder has unchanged."""
    folder = tmp_path / "checkpoint"
    write_decoder(tmp_path / "decoder", byte_level())
    shutil.copytree(tmp_path / "decoder-checkpoint", folder)
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    return folder


def test_a_decoder_lies_beside_its_checkpoint_whose_files_it_shares(checkpoint: Path) -> None:
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    result = CliRunner().invoke(convert, [str(checkpoint / "model.safetensors"), "--to", "decoder"])
    assert result.exit_code == 0, (result.exception, result.stderr)
    assert (checkpoint / "genai_config.json").is_file()
    assert {name: (checkpoint / name).read_bytes() for name in before} == before
    assert "generation_config.json" not in result.stderr  # which lists what was written


@pytest.mark.parametrize("there", ["text", "link"])
def test_a_file_with_other_content_is_refused_and_nothing_is_written(
    checkpoint: Path, tmp_path: Path, there: str
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    if there == "text":
        (target / "generation_config.json").write_text('{"temperature": 0.7}')
    else:  # it may lead to another file tomorrow
        (target / "generation_config.json").symlink_to(checkpoint / "generation_config.json")
    arguments = [checkpoint / "model.safetensors", "--to", "decoder", "--output", target / "genai_config.json"]
    result = CliRunner().invoke(convert, [str(one) for one in arguments])
    assert "generation_config.json is there already; name another directory with --output" in str(result.exception)
    assert [path.name for path in target.iterdir()] == ["generation_config.json"]


def test_a_decoder_has_no_other_name(checkpoint: Path, tmp_path: Path) -> None:
    arguments = [checkpoint / "model.safetensors", "--to", "decoder", "--output", tmp_path / "mine.json"]
    result = CliRunner().invoke(convert, [str(one) for one in arguments])
    assert "the result is always called genai_config.json; name that, in any directory" in str(result.exception)
