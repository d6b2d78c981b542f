"""A plug-in of vLLM: LoRA adapters pass the operator's agents when a request names them."""

import os

__all__ = ["register"]


def register() -> None:
    """Register the resolver; vLLM calls it in each of its processes, so nothing is opened yet."""
    if not os.environ.get("LORA_REPOSITORY"):
        return
    from vllm.lora.resolver import LoRAResolverRegistry

    from repoagent_vllm.resolver import AgentResolver, Settings

    LoRAResolverRegistry.register_resolver("repoagent", AgentResolver(Settings.of(os.environ)))
