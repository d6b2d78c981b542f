"""From checkpoints of Hugging Face: safetensors, a configuration and a tokenizer."""
