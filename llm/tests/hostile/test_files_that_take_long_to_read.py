"""A model's owner sends a tokenizer or a graph that takes the server long to read: it is refused by its size."""

from pathlib import Path

import pytest

from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.errors import RepoAgentError
from repoagent.limits import Limits
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore


def core_with(folder: Path, limits: Limits) -> ServingCore:
    (folder / "models").mkdir(exist_ok=True)
    options = CoreOptions(
        repositories=(str(folder / "models"),),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=folder / "work",
        cache_directory=folder / "cache",
        limits=limits,
    )
    return ServingCore(options)


@pytest.mark.parametrize(
    ("name", "limit", "text"),
    [
        ("tokenizer.json", "tokenizer_bytes", "'1/tokenizer.json' has more than {} bytes; --limit-tokenizer-bytes"),
        ("model.onnx", "decoder_graph_bytes", "the graph has more than {} bytes; .*--limit-decoder-graph-bytes"),
    ],
)
def test_a_file_above_its_limit_is_refused_by_name_and_others_are_served(
    name: str, limit: str, text: str, write_llm: WriteModel, tmp_path: Path
) -> None:
    write_llm("honest")
    file = write_llm("m") / "1" / name
    most = file.stat().st_size
    with core_with(tmp_path, Limits(**{limit: most})) as core:
        core.load("honest")
        core.load("m")
        core.unload("m", wait=True)
        with file.open("ab") as end:
            end.write(b" ")
        with pytest.raises(RepoAgentError, match=text.format(most)):
            core.load("m")
        assert Asker(core).ask("hello", "honest", max_tokens=3).texts()


def test_the_graph_of_a_draft_model_has_the_same_limit(write_llm: WriteModel, decoder: Path, tmp_path: Path) -> None:
    place = write_llm("m", speculative_model_dir="draft")
    draft = place / "1" / "draft"
    draft.mkdir()
    for path in decoder.iterdir():
        (draft / path.name).write_bytes(path.read_bytes())
    most = (draft / "model.onnx").stat().st_size
    with (draft / "model.onnx").open("ab") as end:
        end.write(b" ")
    with (
        core_with(tmp_path, Limits(decoder_graph_bytes=most)) as core,
        pytest.raises(RepoAgentError, match="more than"),
    ):
        core.load("m")
