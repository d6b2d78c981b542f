"""What a request wants back."""

from dataclasses import dataclass
from typing import Annotated

from repoagent_llm.types import rules
from repoagent_llm.types.record import Record

__all__ = ["AdditionalModelOutput", "OutputConfig"]


def _flag(value: object, where: str) -> bool:
    return False if value is None else rules.boolean(value, where)


@dataclass(eq=False)
class AdditionalModelOutput(Record, pickled=2):
    """A named tensor of the model, returned for generated tokens and, with ``gather_context``, for the prompt."""

    name: Annotated[str, rules.text]
    gather_context: Annotated[bool, rules.boolean] = False


@dataclass(eq=False)
class OutputConfig(Record, pickled=7):
    """What a request wants back besides tokens; None means False."""

    return_log_probs: Annotated[bool | None, _flag] = False
    return_context_logits: Annotated[bool | None, _flag] = False
    return_generation_logits: Annotated[bool | None, _flag] = False
    exclude_input_from_output: Annotated[bool | None, _flag] = False
    return_encoder_output: Annotated[bool | None, _flag] = False
    return_perf_metrics: Annotated[bool | None, _flag] = False
    additional_model_outputs: Annotated[
        list[AdditionalModelOutput] | None, rules.maybe(rules.list_of(rules.instance(AdditionalModelOutput)))
    ] = None
