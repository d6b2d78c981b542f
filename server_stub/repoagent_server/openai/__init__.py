"""OpenAI's API over models that generate text: requests to tensors, responses to OpenAI's objects."""
