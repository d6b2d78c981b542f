"""Random requests in random company: each is answered as if it were alone, on a runner that shares and guesses nothing.

The model is a function of all tokens so far, and log-probabilities show each of its rows; so a step of which one token
was wrong, lost or another's is seen, whatever text follows.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    DecodingConfig,
    DraftTargetDecodingConfig,
    Endings,
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    KvCacheConfig,
    LookaheadDecodingConfig,
    LoraConfig,
    OutputConfig,
    PeftCacheConfig,
    Request,
    Response,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.builder import Form
from repoagent_llm.engine import drafting
from repoagent_llm.runner.decoder_spec import read_spec
from repoagent_llm.runner.openvino.model import open_paged
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import LoraShape, ModelRunner
from repoagent_llm.runner.runner_options import RunnerOptions

from llm.tests.conftest import need_openvino
from llm.tests.drafting_kit import mostly
from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner, LogitsFunction, hashed_logits
from tests.extent import in_full

pytestmark = pytest.mark.usefixtures("one_trial")

LIMIT = timedelta(seconds=60)
LONGEST = 160
WIDEST = 3
TEXTS = ["<end>", *map(chr, range(32, 127))]
"""Of the tokens."""
SIZE = len(TEXTS)
ADAPTED = LoraShape(1, 2, {"layers.0.attention_out": (4, 4)})
KIND = GuidedDecodingParams.GuideType
JSON = '{"type": "object", "properties": {"name": {"enum": ["ab", "abc"]}, "big": {"type": "boolean"}}}'
GUIDES = [
    (KIND.REGEX, "(abc|abd)+x{3,9}"),
    (KIND.REGEX, "one and only one text[ab]"),
    (KIND.REGEX, "[a-c]{0,40}"),
    (KIND.JSON_SCHEMA, JSON),
]
Found = dict[int, dict[str, Any]]
"""What became of a request: by the number of each of its texts."""


def _likings(narrow: bool, window: int) -> LogitsFunction:
    """What the model prefers by its last ``window`` tokens; ``narrow``: few tokens, and most of it by the last two."""
    exact = hashed_logits(SIZE)

    def logits(history: list[int]) -> Any:
        row = exact(history[-window:])
        if narrow:
            row = row * np.float32(0.01) + exact(history[-2:])
            row[9:] -= 5
        return row

    return logits


def _sampling(chance: random.Random) -> SamplingConfig:
    options: dict[str, Any] = chance.choice(
        [
            {},
            {},
            {"top_k": 5},
            {"top_p": 0.9, "temperature": 3.0},
            {"top_k": 70, "min_p": 0.01, "temperature": 2.0},
            {"top_p": 0.8, "top_p_decay": 0.9, "top_p_min": 0.1, "top_p_reset_ids": 5},
        ]
    )
    more: list[dict[str, Any]] = [
        {},
        {"no_repeat_ngram_size": chance.randint(1, 4)},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"min_tokens": chance.randint(1, 9)},
        {"num_return_sequences": chance.randint(2, 4)},
        {"num_return_sequences": 3, "no_repeat_ngram_size": 2, "frequency_penalty": 0.1},
    ]
    if chance.random() < 0.15:
        width = chance.randint(2, WIDEST)
        options = {"beam_width": width, "early_stopping": chance.randint(0, 2), "length_penalty": chance.random()}
        more = more[:5]
    return SamplingConfig(**options, **chance.choice(more), seed=chance.randrange(1000))


def _words(chance: random.Random, *sizes: int) -> list[list[int]]:
    return [[chance.randrange(9) for _ in range(size)] for size in sizes]


def _write_adapters(folder: Path, change: int) -> Path:
    """Four of them; after a ``change`` each has the weights that another one had."""
    for task in range(4):
        place = folder / "lora" / str(change) / str(task)
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / "model.lora_weights.npy", np.full((1, 8), ((task + change) % 4 + 1) / 1000, np.float32))
        np.save(place / "model.lora_config.npy", np.array([[4, 0, 1]], np.int32))
    return folder / "lora" / str(change)


OPTIONS: list[tuple[float, Callable[[random.Random], dict[str, Any]]]] = [
    (0.3, lambda chance: {"stop_words": _words(chance, 1, 2, 2, 3)}),
    (0.2, lambda chance: {"bad_words": _words(chance, 1, 2, 3)}),
    (0.3, lambda chance: {"end_id": chance.randrange(9)}),
    (0.1, lambda _: {"embedding_bias": np.linspace(-1, 3, SIZE, dtype=np.float32)}),
    (0.2, lambda chance: {"cache_salt_id": chance.randrange(2)}),
    (0.2, lambda chance: {"lora_config": LoraConfig(chance.randrange(4))}),
]
"""How many requests have them, and what they are."""


def _request(chance: random.Random, *, crowded: bool) -> Request:
    """``crowded``: some grow long, and others, with long prompts that have much in common, lose their room to them."""
    beginning = (
        [3] * chance.choice([0, 70]) if crowded else [chance.randrange(4)] * chance.choice([0, 1, 31, 32, 33, 64, 70])
    )
    prompt = beginning + [chance.randrange(SIZE) for _ in range(chance.choice([1, 2, 15, 30]))]
    sampling = _sampling(chance)
    one_by_one = sampling.beam_width == 1
    options: dict[str, Any] = {"streaming": chance.random() < 0.4, "priority": chance.choice([0.2, 0.5, 0.5, 0.5])}
    for share, make in OPTIONS:
        if chance.random() < share:
            options |= make(chance)
    if crowded and chance.random() < 0.4:
        options |= {"lora_config": LoraConfig(1), "cache_salt_id": None}
    if one_by_one and chance.random() < 0.3:
        options["guided_decoding_params"] = GuidedDecodingParams(*chance.choice(GUIDES))
    if one_by_one and chance.random() < 0.1:
        options["logits_post_processor"] = _prefer_seven
    output = OutputConfig(
        return_log_probs=chance.random() < 0.6,
        return_generation_logits=chance.random() < 0.2,
        exclude_input_from_output=True,
    )
    most = chance.randint(40, 60) if crowded else chance.randint(1, 40)
    request = Request(prompt, most, sampling_config=sampling, output_config=output, **options)
    if chance.random() < (0.5 if crowded and beginning else 0.2):
        vars(request)["prompt_log_probs"] = 2
    if output.return_log_probs and one_by_one:
        vars(request)["top_log_probs"] = chance.randrange(3)
    if chance.random() < 0.3:
        vars(request)["endings"] = Endings([], [chance.randrange(9)])
    return request


def _prefer_seven(_number: int, logits: Any, *_others: Any) -> None:
    logits[..., 7] += 1


def _adapters(folder: Path) -> PeftCacheConfig:
    return PeftCacheConfig(host_cache_size=1 << 16, lora_prefetch_dir=str(_write_adapters(folder, 0)))


def _guided() -> GuidedDecodingConfig:
    backend = GuidedDecodingConfig.GuidedDecodingBackend.LLGUIDANCE
    return GuidedDecodingConfig(backend, TEXTS, stop_token_ids=[0])


def _config(chance: random.Random, folder: Path, *, crowded: bool = False) -> ExecutorConfig:
    """Of an executor with all that may change a text by mistake. ``crowded``: prompts are read in small pieces, and
    paused in between."""
    cache = KvCacheConfig(
        enable_block_reuse=chance.random() < 0.8,
        enable_partial_reuse=chance.random() < 0.7,
        max_tokens=32 * chance.randint(21, 26),
    )
    budget = chance.choice([9, 16] if crowded else [None, 9, 40])
    policies = [CapacitySchedulerPolicy.MAX_UTILIZATION] if crowded else list(CapacitySchedulerPolicy)
    config = ExecutorConfig(
        max_beam_width=WIDEST,
        enable_chunked_context=True,
        max_num_tokens=budget,
        kv_cache_config=cache,
        scheduler_config=SchedulerConfig(chance.choice(policies), chance.choice(list(ContextChunkingPolicy))),
        guided_decoding_config=_guided(),
        peft_cache_config=_adapters(folder),
    )
    if chance.random() < 0.5:
        config.decoding_config = DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(4, 4, 4))
    elif chance.random() < 0.5:
        config.speculative_config = DraftTargetDecodingConfig(4, max_concurrency=6)
    if chance.random() < 0.3:
        config.block_folder = folder / "blocks"
        config.block_folder_bytes = 20 * 32 * 8
    return config


def _runner(chance: random.Random, narrow: bool, window: int, blocks: int) -> PagedRunner | FakeRunner:
    logits, sizes = _likings(narrow, window), {"max_seq_len": LONGEST, "max_sequences": 24}
    if window or chance.random() < 0.7:
        logits = _likings(narrow, 0)
        return PagedRunner(
            FakePacked(blocks, vocab_size=SIZE, logits=logits, lora=ADAPTED, window=window, **sizes)  # type: ignore[arg-type]
        )
    return FakeRunner(vocab_size=SIZE, logits=logits, lora=ADAPTED, **sizes)  # type: ignore[arg-type]


def _ask(executor: Executor, waves: list[list[Request]], cancelled: list[int], folder: Path) -> list[Found]:
    """What became of each request; the texts of those ``cancelled`` are cut short. Adapters change between waves."""
    ids = executor.enqueue_requests(waves[0])
    for change, requests in enumerate(waves[1:], 1):
        executor.renew_adapters(_write_adapters(folder, change))()
        ids += executor.enqueue_requests(requests)
    found: dict[int, Found] = {number: {} for number in ids}
    left = set(ids)
    while left:
        responses = executor.await_responses(LIMIT)
        assert responses, f"no answer for {left}"
        for response in responses:
            _take(found[response.request_id], response)
            if response.has_error() or response.result.is_final:
                left.remove(response.request_id)
        if cancelled:
            executor.cancel_request(ids[cancelled.pop()])
    return [found[number] for number in ids]


def _take(found: Found, response: Response) -> None:
    if response.has_error():
        found[-1] = {"error": response.error_msg}
        return
    result = response.result
    beams = len(result.output_token_ids) > 1
    for number, tokens in enumerate(result.output_token_ids):
        text = found.setdefault(number if beams else result.sequence_index, {"tokens": [], "logits": []})
        text["tokens"] = tokens if beams else [*text["tokens"], *tokens]
        text["reason"] = result.finish_reasons[number]
        if result.log_probs is not None:
            text["log_probs"] = result.log_probs[number]
            text["sum"] = result.cum_log_probs[number]  # type: ignore[index]
        for name in ("top_log_probs", "prompt_log_probs"):
            if name in vars(result):
                values = vars(result)[name]
                joins = name == "top_log_probs"
                text[name] = [*text.get(name, []), *values[number]] if joins else values
        if result.generation_logits is not None and not beams:
            text["logits"] += list(result.generation_logits.reshape(-1, SIZE))


def _alone(waves: list[list[Request]], runner: ModelRunner, folder: Path) -> list[Found]:
    config = ExecutorConfig(
        max_beam_width=WIDEST,
        kv_cache_config=KvCacheConfig(enable_block_reuse=False),
        guided_decoding_config=_guided(),
        peft_cache_config=_adapters(folder),
    )
    found: list[Found] = []
    with Executor.from_runner(runner, config) as executor:
        for change, requests in enumerate(waves):
            if runner.info.lora is not None:
                executor.renew_adapters(_write_adapters(folder, change))()
            found += [one for request in requests for one in _ask(executor, [[request]], [], folder)]
    return found


def _agree(found: Found, wanted: Found, *, cut: bool, beams: bool, tolerance: float) -> None:
    """``cut``: it was cancelled, perhaps in time. One that fails may have got on with its other texts."""
    in_time = cut and any(text.get("reason") is FinishReason.CANCELLED for text in found.values())
    failure, expected = found.pop(-1, None), wanted.pop(-1, None)
    assert failure == expected or in_time
    if failure or in_time:
        for number, text in ({} if beams else found).items():
            shared = min(len(text["tokens"]), len(other := wanted.get(number, {"tokens": []})["tokens"]))
            assert text["tokens"][:shared] == other[:shared]
        return
    assert found.keys() == wanted.keys()
    for number, text in wanted.items():
        assert found[number].keys() == text.keys()
        for name, value in text.items():
            if name in ("log_probs", "sum", "logits"):
                np.testing.assert_allclose(found[number][name], value, rtol=0, atol=tolerance, err_msg=name)
            elif not tolerance or name in ("tokens", "reason"):  # of two that are alike either may come first
                assert found[number][name] == value, name


def _compare(
    chance: random.Random,
    waves: list[list[Request]],
    config: ExecutorConfig,
    *runners: Any,
    folder: Path,
    tolerance: float = 0,
) -> None:
    """``runners``: that of the mixture, that of each alone, that which guesses or None."""
    runner, other, drafter = runners
    mixed = [request for wave in waves for request in wave]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting, "_forced", lambda *_: [])
        wanted = _alone(waves, other, folder)
    cancelled = chance.sample(range(len(mixed)), min(len(mixed), chance.choice([0, 0, 1, 2])))
    with Executor.from_runner(runner, config, drafter) as executor:
        found = _ask(executor, waves, list(cancelled), folder)
        budget = executor._assembly.budget
    for number, (one, alone) in enumerate(zip(found, wanted, strict=True)):
        beams = mixed[number].sampling_config.beam_width > 1
        _agree(one, alone, cut=number in cancelled, beams=beams, tolerance=tolerance)
    assert budget.used == 0
    assert runner.pool.busy == 0 if isinstance(runner, PagedRunner) else runner.open_sequences == 0


def mix(seed: int, folder: Path, *, crowded: bool = False) -> None:
    """One mixture, and each of its requests alone; ``crowded``: see ``_request`` and ``_config``."""
    chance = random.Random(seed)
    mixed = [_request(chance, crowded=crowded) for _ in range(chance.randint(16 if crowded else 2, 24))]
    middle = chance.randint(1, len(mixed))
    narrow, window = chance.random() < 0.6, chance.choice([0, 0, 0, 20, 50])
    config = _config(chance, folder, crowded=crowded)
    runner = _runner(chance, narrow, window, chance.randint(22, 26))
    likings, drafter = _likings(narrow, window), None
    if hasattr(config, "speculative_config"):
        drafter = FakeRunner(vocab_size=SIZE, max_seq_len=LONGEST, max_sequences=6, logits=mostly(likings))
    other = FakeRunner(vocab_size=SIZE, max_seq_len=LONGEST, max_sequences=12, logits=likings, lora=ADAPTED)
    waves = [mixed[:middle], mixed[middle:]]
    _compare(chance, waves, config, runner, other, drafter, folder=folder)


@pytest.mark.slow
def test_company_changes_no_text(tmp_path: Path) -> None:
    for seed in range(in_full(1500, otherwise=12)):
        mix(seed, tmp_path)


@pytest.mark.slow
def test_a_crowd_changes_no_text(tmp_path: Path) -> None:
    """A replaced adapter's blocks are not the new one's, and a prompt that pauses half read keeps no log-probability
    of it. Either fault shows in one of the first six mixtures."""
    for seed in range(in_full(300, otherwise=6)):
        mix(seed, tmp_path, crowded=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_company_changes_no_text_of_a_decoder_on_pages(kind: str, decoder_folder: Any, tmp_path: Path) -> None:
    """In fp32, and from its own kernels: the same texts, and log-probabilities that differ by rounding alone."""
    need_openvino()
    spec = read_spec(decoder_folder(kind, Form.PAGED))
    options = RunnerOptions(threads=1, max_sequences=24, max_seq_len=LONGEST)
    for seed in range(in_full(100, otherwise=2)):
        chance = random.Random(seed)
        mixed = [_request(chance, crowded=False) for _ in range(chance.randint(2, 12))]
        for request in mixed:
            request.lora_config = None
        config = _config(chance, tmp_path)
        vars(config).pop("speculative_config", None)
        runners = [open_paged(spec, replace(options, cache_tokens=32 * blocks)) for blocks in (24, 100)]
        _compare(chance, [mixed], config, *runners, None, folder=tmp_path, tolerance=2e-4)
