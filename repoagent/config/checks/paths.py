"""Rules on file names: none may lead out of the model's directory."""

from collections.abc import Iterator

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["problems"]


def problems(config: ModelConfig, name: str) -> Iterator[str]:
    """File names that are absolute, contain ``..`` or a NUL."""
    for field, path in _paths(config):
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            yield f"'{field}' must name a file inside the model directory, got {path!r} for {name}"


def _paths(config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "default_model_filename", config.default_model_filename
    yield from (("cc_model_filenames", path) for path in config.cc_model_filenames.values())
    yield from (("label_filename", output.label_filename) for output in config.output)
    for warmup in config.model_warmup:
        yield from (("input_data_file", tensor.input_data_file) for tensor in warmup.inputs.values())
    for state in config.sequence_batching.state:
        yield from (("data_file", initial.data_file) for initial in state.initial_state)
