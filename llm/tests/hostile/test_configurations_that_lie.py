"""A config.json whose numbers cannot be is refused by file and key, for every architecture, before memory is taken."""

import copy
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm.builder import build
from repoagent_llm.builder.architecture import parse_architecture
from repoagent_llm.builder.config_fields import _FIELDS
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, read_spec
from repoagent_llm.runner.openvino.model import open_paged
from repoagent_llm.runner.paged_folder import read_layout
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import DecoderError

from llm.tests.conftest import need_openvino
from llm.tests.tiny_checkpoints import tiny_checkpoint
from repoagent.errors import RepoAgentError

VARIANTS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "architectures.json").read_text()
)["variants"]
KINDS = ["gemma3", "qwen3_moe", "qwen2_moe", "mixtral", "gpt_oss", "phi3", "olmo2", "granite", "smollm3", "yarn"]
LIES: list[Any] = [
    True,
    -1,
    0,
    1.5,
    "32",
    "",
    [],
    [None],
    {},
    {"x": 1},
    2**31,
    2**63,
    10**30,
    1e300,
    float("nan"),
    float("inf"),
    "9" * 5_000,
]
MOST_BYTES = 4 << 20
SIZES = {"hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"}
SIZES |= {"num_key_value_heads", "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"}


def _places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = values.items() if isinstance(values, dict) else enumerate(values[:1]) if isinstance(values, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _changed(config: dict[str, Any], path: tuple[Any, ...], lie: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = lie
    return changed


def _refused(call: Any, *arguments: Any, **options: Any) -> str | None:
    try:
        call(*arguments, **options)
    except RepoAgentError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_no_value_of_a_config_brings_the_reader_down(name: str) -> None:
    config = {key: value for key, value in VARIANTS[name]["config"].items() if key in {*_FIELDS, "layer_types"}}
    assert _refused(parse_architecture, config, "config.json") is None
    for path in _places(config):
        for lie in LIES:
            found = _refused(parse_architecture, _changed(config, path, lie), "config.json")
            assert found is None or len(found) < 700, (path, lie, found[:900])
            if path[-1] in SIZES and lie not in (True, 0):
                assert found is not None, (path, lie)
                assert "config.json" in found, (path, lie, found)
                assert str(path[-1]) in found, (path, lie, found)


@pytest.mark.parametrize("name", ["gemma3", "qwen3_moe", "mixtral", "gpt_oss"])
def test_sizes_that_are_too_large_take_no_memory(name: str, tmp_path: Path) -> None:
    """Those within their limits too: they do not fit the tensors, whose shapes are compared first."""
    folder = tiny_checkpoint(tmp_path / "c", VARIANTS[name])
    config = VARIANTS[name]["config"]
    for key in sorted(SIZES & set(config)):
        for lie in (2**31, 4096, 65536):
            (folder / "config.json").write_text(json.dumps({**config, key: lie}))
            tracemalloc.start()
            found = _refused(build, folder, tmp_path / "d", form="paged")
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert found is not None, (key, lie)
            assert most < MOST_BYTES, (key, lie, most, found)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_position_embeddings": 2**31 - 1}, "a table of rotary embeddings for max_position_embeddings"),
        ({"rms_norm_eps": float("nan")}, "config.json.*'rms_norm_eps' must be a number from 0 to 1, not nan"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}}, "'yarn' is impossible with"),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("nan")}}, "needs factor, a number > 0, not nan"),
        ({"rope_parameters": {"rope_theta": 5e-324}}, "'default' is impossible with"),
        ({"rope_parameters": 5}, "'rope_parameters' must be an object, not 5"),
        ({"num_attention_heads": 3}, "3 heads cannot share 2 KV heads"),
    ],
)  # fmt: skip
def test_numbers_that_contradict_each_other_are_refused(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "c", VARIANTS["yarn"])
    config = json.loads((folder / "config.json").read_text())
    config = {"model_type": "llama", **config, "rope_parameters": {"rope_theta": 1e4}, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RepoAgentError, match=text):
        build(folder, tmp_path / "d")


@pytest.mark.parametrize("name", ["gemma3", "qwen2_moe", "phi3"])
def test_no_value_of_a_folder_for_pages_brings_its_reader_down(name: str, tmp_path: Path) -> None:
    folder = build(tiny_checkpoint(tmp_path / "c", VARIANTS[name]), tmp_path / "d", form="paged")
    whole = json.loads((folder / CONFIG_NAME).read_text())
    refused = 0
    for path in _places(whole["model"]["decoder"]["paged"]):
        for lie in (*LIES, None, [0.5] * 5000):
            changed = _changed(whole, ("model", "decoder", "paged", *path), lie)
            (folder / CONFIG_NAME).write_text(json.dumps(changed))
            found = _refused(lambda: read_layout(read_spec(folder)))
            refused += found is not None
            assert found is None or (CONFIG_NAME in found and len(found) < 600), (path, lie, found)
    assert refused > 100


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ropes", [{}] * 100_000, "'model.decoder.paged.ropes' must be a list of at most"),
        ("ropes", [{"rope_theta": float("nan")}] * 2, "rope_theta"),
        ("inner_size", 2**24, "have no 'layers.0"),
        ("heads", 2**24, "have no 'layers.0"),
        ("experts", {"count": 2**24, "used": 2**24, "inner_size": 2**24, "shared_size": 0, "router": "all"}, "have no"),
    ],
)
def test_a_folder_for_pages_that_lies_is_refused_when_it_is_opened(
    key: str, value: Any, text: str, tmp_path: Path
) -> None:
    need_openvino()
    folder = build(
        tiny_checkpoint(tmp_path / "c", VARIANTS["gemma3" if key != "experts" else "qwen3_moe"]),
        tmp_path / "d",
        form="paged",
    )
    whole = json.loads((folder / CONFIG_NAME).read_text())
    whole["model"]["decoder"]["paged"][key] = value
    (folder / CONFIG_NAME).write_text(json.dumps(whole))
    with pytest.raises((DecoderError, RepoAgentError), match=text):
        open_paged(read_spec(folder), RunnerOptions(threads=1, max_sequences=2))
