"""Refuse models that are larger than they should be."""

from repoagent.api import Agent, AgentModel, InvalidArgumentError

__all__ = ["SizeLimitAgent"]


class SizeLimitAgent(Agent):
    """Refuse a model whose files add up to more than the parameter ``max_bytes``."""

    api_version = 1

    def load(self, model: AgentModel) -> None:
        limit = int(model.parameters.get("max_bytes") or 0)
        if limit <= 0:
            raise InvalidArgumentError("the parameter 'max_bytes' must be a whole number above 0")
        size = sum(model.filesystem().du(model.root(), total=False).values())
        model.report(note=f"{size} of {limit} bytes")
        if size > limit:
            raise InvalidArgumentError(f"the model's files have {size} bytes; at most {limit} are allowed")
