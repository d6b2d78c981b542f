"""What a request to OpenAI's API asks a model for, whatever the model's tensors are."""

from collections.abc import Sequence
from dataclasses import dataclass

from repoagent_server.openai.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Guide:
    """What the text must follow; ``field`` of the request wants that."""

    field: str
    type: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, and how it is to be continued."""

    text: str | None = None
    tokens: Sequence[int] | None = None
    messages: str | None = None
    """JSON. One of these three is the prompt."""
    template_values: str | None = None
    """JSON: further values for the chat template."""
    max_tokens: int | None = None
    usual_tokens: int | None = None
    """As many, if the request does not limit them and the model has an input for it."""
    sampling: Sampling
    guide: Guide | None = None
    adapter_name: str = ""
    """The name that the model has for it; at most one of this and the number in ``sampling``."""
    top_log_probs: int | None = None
    prompt_log_probs: int | None = None
    """Of each token of the prompt, and of so many others in its place."""
    prompt_field: str = "prompt_logprobs"
    """The field of the request that wants those."""
    usage: bool = True
    """Whether the answer has the usage."""
    stream: bool = False
