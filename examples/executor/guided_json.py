"""Guided decoding: whatever the model would say, its output follows a JSON schema. Needs the extra ``llm``."""

import json

from example_model import open_executor
from repoagent_llm import (
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    OutputConfig,
    Request,
    SamplingConfig,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer", "maximum": 99}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def make_tokenizer() -> Tokenizer:
    """A byte-level tokenizer; a real model brings its own tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        show_progress=False,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["a few words to merge"], trainer)
    return tokenizer


def main() -> None:
    """Ask for three objects."""
    tokenizer = make_tokenizer()
    vocabulary = [text for text, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    guidance = GuidedDecodingConfig(
        GuidedDecodingConfig.GuidedDecodingBackend.LLGUIDANCE, vocabulary, tokenizer.to_str(), stop_token_ids=[0]
    )
    guide = GuidedDecodingParams(GuidedDecodingParams.GuideType.JSON_SCHEMA, json.dumps(SCHEMA))
    with open_executor(ExecutorConfig(guided_decoding_config=guidance), len(vocabulary)) as executor:
        for seed in range(3):
            request = Request(
                tokenizer.encode("Tell me a colour: ").ids,
                80,
                sampling_config=SamplingConfig(top_p=0.95, seed=seed),
                output_config=OutputConfig(exclude_input_from_output=True),
                guided_decoding_params=guide,
            )
            (response,) = executor.await_responses(executor.enqueue_request(request))
            print(json.loads(tokenizer.decode(response.result.output_token_ids[0])))


if __name__ == "__main__":
    main()
