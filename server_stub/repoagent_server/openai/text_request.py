"""What a request to OpenAI's API asks a model for, whatever the model's tensors are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repoagent_server.openai.response_format import Guide
from repoagent_server.openai.sampling import Sampling
from repoagent_server.openai.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A request to a route that generates text: some prompts, and how all of them are to be continued."""

    model: str
    prompts: Sequence[tuple[str, Any]]
    """Each by the name of its input: a text (``text_input``), tokens (``input_ids``), or JSON (``messages``)."""
    template_values: str | None = None
    """JSON: further values for the chat template."""
    sampling: Sampling
    max_tokens: int | None = None
    usual_tokens: int | None = None
    """As many, if the request does not limit them and the model has an input for it."""
    tools: Tools = field(default_factory=Tools)
    guide: Guide | None = None
    top_log_probs: int | None = None
    """Of how many alternatives to each token the answer has the log-probability; None: it has none."""
    prompt_log_probs: int | None = None
    """Of each token of the prompt, and of so many others in its place."""
    ranked: int | None = None
    """Of how many likeliest tokens the answer has log-probabilities of the prompt by their ids; None: it has none."""
    usage: bool = True
    """Whether the answer has the usage."""
    echo: bool = False
    """Of a completion: whether the prompt goes before its texts."""
    echoed: Mapping[str, Any] = field(default_factory=dict)
    """The fields that a response of ``/v1/responses`` repeats."""

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a conversation."""
        return self.prompts[0][0] == "messages"
