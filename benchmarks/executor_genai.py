"""onnxruntime-genai on the folders of our builder: its Generator, and its Engine."""

import json
import os
import shutil
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from executor_runs import THREADS, Run, Serve, Trace, by_batches, decoder_folder
from onnx import helper, numpy_helper
from repoagent_llm.builder import Precision


def _pruned(folder: Path) -> Path:
    """The folder with logits of the last token only, as genai's builder writes it with ``prune_lm_head``.

    Without this the Generator computes logits for every token of a prompt.
    """
    target = folder.with_name(folder.name + "-pruned")
    if target.exists():
        return target
    target.mkdir()
    os.link(folder / "model.onnx.data", target / "model.onnx.data")
    shutil.copy(folder / "genai_config.json", target)
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    nodes = model.graph.node
    (place,) = (place for place, node in enumerate(nodes) if "last_hidden" in node.output)
    for node in nodes:
        for number, name in enumerate(node.input):
            if name == "last_hidden":
                node.input[number] = "last.hidden"
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    nodes.insert(place + 1, helper.make_node("Gather", ["last_hidden", "last"], ["last.hidden"], axis=1))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    (target / "model.onnx").write_bytes(model.SerializeToString())
    return target


def _model(folder: Path) -> Any:
    import onnxruntime_genai as og

    config = og.Config(str(folder))
    # Without a number of threads it uses one here. The Engine's own default for a batch is smaller.
    config.overlay(
        json.dumps(
            {
                "model": {"decoder": {"session_options": {"intra_op_num_threads": THREADS}}},
                "engine": {"static_batching": {"max_batch_size": 16}},
            }
        )
    )
    return og.Model(config)


def genai_generator(checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32) -> Serve:
    """The Generator: one static batch."""
    import onnxruntime_genai as og

    model = _model(_pruned(decoder_folder(checkpoint, precision, block)))

    def generate(run: Run, numbers: list[int], prompts: list[list[int]], new_tokens: int) -> None:
        params, length = og.GeneratorParams(model), len(prompts[0]) + new_tokens
        # A text must not end before its length, whatever the end token's logit.
        params.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=len(prompts))
        generator = og.Generator(model, params)
        generator.append_tokens(np.array(prompts, np.int32))
        for _ in range(new_tokens):
            generator.generate_next_token()
            for number, token in zip(numbers, generator.get_next_tokens(), strict=True):
                run.note(number, token)

    return by_batches(generate)


class _Engine:
    """The Engine takes requests while it runs; on CPU a new one waits until the running batch has ended."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai as og

        self._og = og
        self._engine = og.Engine(_model(folder))
        self._events = self._engine.create_event_buffer(64)
        self._numbers: deque[tuple[Any, int]] = deque()

    def add(self, request: int, prompt: list[int], new_tokens: int) -> None:
        handle = self._engine.create_request()
        options = self._og.TurnOptions(handle)
        options.set_do_sample(False)
        options.set_min_generated_tokens(new_tokens)
        options.set_max_generated_tokens(new_tokens)
        handle.begin_turn(np.array(prompt, np.int32), options)
        self._numbers.append((handle, request))

    def step(self) -> list[tuple[int, int]]:
        found = []
        for event in self._engine.run(self._events):
            handle = event.request
            number = next(number for known, number in self._numbers if known is handle)
            if event.token is None:
                raise RuntimeError(f"request {number} ended without a token: {event.finish_reason}")
            found.append((number, event.token))
            if event.finish_reason != self._og.FinishReason.NONE:
                handle.close()
                self._numbers = deque(item for item in self._numbers if item[0] is not handle)
        return found


def _in_flight(machine: _Engine) -> Serve:
    """Hand requests over when they come, between two steps."""

    def serve(trace: Trace) -> Run:
        run, coming, owed = Run(len(trace)), 0, 0
        while coming < len(trace) or owed:
            while coming < len(trace) and trace[coming].at <= run.now():
                machine.add(coming, trace[coming].prompt, trace[coming].new_tokens)
                owed += trace[coming].new_tokens
                coming += 1
            if not owed:
                run.wait_until(trace[coming].at)
                continue
            for request, token in machine.step():
                run.note(request, token)
                owed -= 1
        return run

    return serve


def genai_engine(checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32) -> Serve:
    """The Engine: continuous batching where its scheduler can, which on CPU is a static batch of at most four."""
    return _in_flight(_Engine(decoder_folder(checkpoint, precision, block)))
