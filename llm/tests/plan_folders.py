"""Decoder folders whose graph is a plan of the stand-in, as a builder of plans would leave them."""

import json
from pathlib import Path

import onnx
from repoagent_llm.builder import Form, Precision, build
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, DecoderSpec, read_spec

from repoagent.engines.protocol import Profile, ShapeRange
from tests.engines.platforms import content_of
from tests.engines.standin import StandInPlan


def plan_folder(checkpoint: Path, folder: Path, precision: Precision, capacity: int, *profiles: Profile) -> Path:
    """A folder with ``model.plan``; its graph is that of standard operators with a cache of ``capacity`` tokens."""
    build(checkpoint, folder, form=Form.STD, precision=precision, capacity=capacity)
    spec = read_spec(folder)
    model = onnx.load(str(folder / spec.filename)).SerializeToString()
    plan = StandInPlan(model, profiles, aliases=_aliases(spec))
    for file in folder.glob("model.onnx*"):
        file.unlink()
    (folder / "model.plan").write_bytes(content_of(plan))
    values = json.loads((folder / CONFIG_NAME).read_text())
    values["model"]["decoder"]["filename"] = "model.plan"
    (folder / CONFIG_NAME).write_text(json.dumps(values))
    return folder


def _aliases(spec: DecoderSpec) -> dict[str, str]:
    return {
        present: past
        for layer in range(spec.layers)
        for past, present in zip(spec.past(layer), spec.present(layer), strict=True)
    }


def prefill_and_decode(sequences: int, tokens: int) -> tuple[Profile, Profile]:
    """One profile for pieces of prompts of one sequence, one for a token of each."""

    def profile(batch: int, width: int) -> Profile:
        ids = ShapeRange((1, 1), (batch, width), (batch, width))
        return Profile(
            {
                "input_ids": ids,
                "position_ids": ids,
                "write_indices": ShapeRange((1,), (batch,), (batch,)),
                "logits_index": ShapeRange((1,), (max(batch, width),), (max(batch, width),)),
            }
        )

    return profile(1, tokens), profile(sequences, 1)
