"""Starting a model from its file: its class imported, completed or initialised. The same code in either process."""

from pathlib import Path
from typing import Any

from repoagent.errors import InternalError
from repoagent.nested_text import read_json
from repoagent.serving.backends.python.model.context import ModelContext, entered, fault_text
from repoagent.serving.backends.python.model.errors import let_interrupt_pass
from repoagent.serving.backends.python.model.instance import PythonInstance
from repoagent.serving.backends.python.model.model_config import ModelConfig
from repoagent.serving.backends.python.model.model_module import ImportedModel, import_model

__all__ = ["completed", "started"]


def completed(path: Path, context: ModelContext, config: str, *, alone: bool = False) -> dict[str, Any] | None:
    """What ``auto_complete_config`` makes of a configuration in JSON; None if the model has no such function.

    ``alone``: see :func:`import_model`.

    Raises:
        InternalError: the file cannot be run, or the function raised.
    """
    imported = import_model(path, context, alone=alone)
    try:
        complete = getattr(imported.model_class, "auto_complete_config", None)
        return None if complete is None else _call(complete, ModelConfig(config), context).as_dict()
    finally:
        imported.close()


def started(
    path: Path, context: ModelContext, arguments: dict[str, str], *, decoupled: bool, alone: bool = False
) -> PythonInstance:
    """An instance of a model whose ``initialize`` has been called with ``arguments``.

    ``alone``: see :func:`import_model`.

    Raises:
        InternalError: the file or ``initialize`` raised.
    """
    imported = import_model(path, context, alone=alone)
    try:
        model = _initialized(imported, context, arguments)
    except BaseException:
        imported.close()
        raise
    config = read_json(arguments["model_config"])
    outputs = [item["name"] for item in config.get("output", ())]
    iterative = bool(config.get("sequence_batching", {}).get("iterative_sequence"))
    name = arguments["model_instance_name"]
    return PythonInstance(
        model, imported, context, name, outputs=outputs, decoupled=decoupled, alone=alone, iterative=iterative
    )


def _call(complete: Any, config: ModelConfig, context: ModelContext) -> ModelConfig:
    with entered(context):
        try:
            result = complete(config)
        except BaseException as error:
            let_interrupt_pass(error)
            raise InternalError(fault_text(error, context)) from error
    if not isinstance(result, ModelConfig):
        raise InternalError(
            f"auto_complete_config of model '{context.model_name}' must return the ModelConfig that it was given, "
            f"not {type(result).__name__}"
        )
    return result


def _initialized(imported: ImportedModel, context: ModelContext, arguments: dict[str, str]) -> Any:
    with entered(context):
        try:
            model = imported.model_class()
            if hasattr(model, "initialize"):
                model.initialize(arguments)
        except BaseException as error:
            let_interrupt_pass(error)
            raise InternalError(fault_text(error, context)) from error
    if not callable(getattr(model, "execute", None)):
        raise InternalError(f"the class TritonPythonModel of model '{context.model_name}' has no execute")
    return model
