"""LoRA: adapters in TensorRT-LLM's and in PEFT's format, and the cache that keeps them by task."""

from repoagent_llm.lora.peft import read_peft

__all__ = ["read_peft"]
