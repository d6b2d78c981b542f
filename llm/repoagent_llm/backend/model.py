"""One version of a language model."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.instances.backend import BackendInstance, BackendModel, Capability, InstanceSpec
from repoagent.serving.instances.instance import as_repoagent_error
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error
from repoagent_llm import Executor, ModelType
from repoagent_llm.backend.chat.renderer import ChatRenderer
from repoagent_llm.backend.chat.source import read_source
from repoagent_llm.backend.configuration import ADAPTERS, Parameters, executor_config, named_adapters
from repoagent_llm.backend.conversion import Converter, stop_texts
from repoagent_llm.backend.dispatcher import Dispatcher
from repoagent_llm.backend.generation import Form, Generation, Reply
from repoagent_llm.backend.llm_metrics import LlmMetrics
from repoagent_llm.backend.preparation_queue import PreparationQueue
from repoagent_llm.backend.request_limits import RequestLimits, weight
from repoagent_llm.backend.row_parameters import RowParameters, read_generation_defaults, row_parameters_of
from repoagent_llm.backend.tensors import POOLING, PROMPT
from repoagent_llm.backend.tokenizing import Tokenizer
from repoagent_llm.runner.decoder_spec import read_spec
from repoagent_llm.runner.runner_options import DEFAULT_SEQ_LEN
from repoagent_llm.types.request import LogProbs

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.storage.files.files import ModelFiles


logger: Final = logging.getLogger(__name__)

_LIGHT: Final = 4096
"""Bytes of text that become tokens in some milliseconds."""
_POOLED: Final = (PROMPT, "input_ids", "truncate_prompt_tokens")
"""Of a row that wants a vector."""
_THREADS: Final = 2
"""For requests that take longer, of each kind."""


class LlmModel(BackendModel):
    """An executor with its tokenizer, which all instances share."""

    def __init__(
        self,
        config: "ModelConfig",
        folder: Path,
        version: str,
        limits: Limits = DEFAULT_LIMITS,
        models_at_once: int | None = None,
        *,
        fleeting: bool = False,
        run_options: Any = None,
        blocks: tuple[str | None, int | None] = (None, None),
        salts: bool = True,
    ) -> None:
        """Load what lies in ``folder``.

        ``fleeting``: the folder goes when it is loaded, so that the session copies its weights; nothing of its texts is
        kept on a disk. ``run_options``: see RunnerOptions. ``blocks``: a folder for retained blocks, and its bytes.
        ``salts``: clients of an access file reuse no prompts of each other.

        Raises:
            RepoAgentError: the configuration or a file makes no sense.
        """
        self.keeps_files_open = not fleeting
        """Otherwise weights are mapped: their pages are read when they are needed."""
        self._version = version
        self._salts = salts
        self._batching = config.max_batch_size > 0
        self._decoupled = config.model_transaction_policy.decoupled
        self._outputs = [item.name for item in config.output]
        parameters = Parameters(config)
        self._excludes_prompt = parameters.truth("exclude_input_in_output", False)
        self._tokenizer = Tokenizer.load(
            folder,
            add_special=parameters.truth("add_special_tokens", True),
            skip_special=parameters.truth("skip_special_tokens", True),
            limits=limits,
        )
        spec = read_spec(folder)
        self._defaults = read_generation_defaults(folder, limits)
        end_ids = spec.end_ids if self._defaults.end_ids is None else self._defaults.end_ids
        end_ids = tuple(token for token in end_ids if token < spec.vocab_size)
        settings = executor_config(
            parameters,
            folder,
            self._tokenizer,
            vocab_size=spec.vocab_size,
            end_ids=end_ids,
            models_at_once=models_at_once,
            own_weights=fleeting,
            run_options=run_options,
            limits=limits,
        )
        if blocks[0] is not None and not fleeting:
            settings.block_folder, settings.block_folder_bytes = blocks
        adapters = named_adapters(parameters, folder)
        if adapters and parameters.text("lora_prefetch_dir") is None:
            self.refreshable = (ADAPTERS,)
        parameters.check_rest()
        guided = settings.guided_decoding_config is not None
        tokens = min(spec.context_length, settings.runner_options.max_seq_len or DEFAULT_SEQ_LEN)
        if tokens < spec.context_length:
            logger.info(
                "model '%s': texts have at most %d tokens of %d that it can read; see max_seq_len",
                config.name,
                tokens,
                spec.context_length,
            )
        self._limits = RequestLimits(limits, tokens, self._tokenizer.longest_token())
        # Guides have threads of their own, so that no prompt waits for one.
        self._prompts = PreparationQueue(f"{config.name}-prompts", version, threads=_THREADS)
        self._guides = PreparationQueue(f"{config.name}-guides", version, threads=_THREADS)
        with ExitStack() as undo:
            self._chat = _chat(folder, limits)
            if self._chat is not None:
                undo.callback(self._chat.close)
            self._converter = Converter(
                self._tokenizer,
                spec.vocab_size,
                end_ids,
                guided,
                self._limits,
                adapters,
                self._chat,
                parameters.text(POOLING),
            )
            self._executor = executor = undo.enter_context(Executor(folder, ModelType.DECODER_ONLY, settings))
            self._dispatcher = Dispatcher(executor, config.name, LlmMetrics(config.name, version))
            undo.pop_all()

    def refresh(self, config: "ModelConfig", files: "ModelFiles", version: int) -> Callable[[], None]:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`: the adapters, while requests go on."""
        with files.reading(str(version)) as folder:
            names = named_adapters(Parameters(config), folder)
            put_in_place = self._executor.renew_adapters(folder / ADAPTERS)

        def take() -> None:
            put_in_place()
            self._converter = replace(self._converter, adapters=names)

        return take

    @property
    def ready(self) -> bool:
        """Whether the executor runs; it ends only with the model, or when it breaks down."""
        return self._dispatcher.alive

    @property
    def broken(self) -> bool:
        """Whether the executor has broken down for good."""
        return not self.ready

    def create_instance(self, spec: InstanceSpec) -> "LlmInstance":
        """See :class:`~repoagent.serving.instances.backend.BackendModel`.

        Raises:
            UnsupportedError: the instance is to run on a GPU.
        """
        if spec.kind == "GPU":
            raise UnsupportedError(f"instance '{spec.name}' asks for a GPU, but decoders run on the CPU: use KIND_CPU")
        return LlmInstance(self)

    def close(self) -> None:
        """Stop the executor; no request is running, or they have waited long enough."""
        self._prompts.close()
        self._guides.close()
        if self._chat is not None:
            self._chat.close()
        self._dispatcher.close()

    def start(self, request: InferRequest) -> None:
        """Send all rows of a request into the executor, on another thread if that takes a while."""
        arrays = {name: tensor.array for name, tensor in request.inputs.items()}
        if "guided_decoding_guide" in arrays:
            self._guides.put(request, partial(self._prepare, request))
        elif "messages" in arrays or weight(arrays, request.asked.parameters) > _LIGHT:
            self._prompts.put(request, partial(self._prepare, request))
        else:
            self._prepare(request)

    def _prepare(self, request: InferRequest) -> None:
        """Never raises: the request's sender hears whatever becomes of it."""
        try:
            if request.cancelled:
                raise CancelledError("request cancelled")
            self._submit(request)
        except RepoAgentError as error:
            answer_error(request, error, self._version)
        except TypeError as error:  # A value of another type in JSON, which has no form that is checked before.
            answer_error(request, InvalidArgumentError(str(error)), self._version)
        except BaseException as error:  # libraries in Rust raise what is no Exception
            answer_error(request, as_repoagent_error(error, request.model_name), self._version)

    def _submit(self, request: InferRequest) -> None:
        rows = list(row_parameters_of(request, batching=self._batching, limits=self._limits, defaults=self._defaults))
        if self._converter.pooling is not None:
            rows = [{**{name: row[name] for name in _POOLED if name in row}, "max_tokens": 1} for row in rows]
        reply = Reply(request, self._version, len(rows), self._outputs, batching=self._batching)
        prompts = {
            row: self._only_prompt(wanted)
            for row, wanted in enumerate(rows)
            if wanted.get("max_tokens") == 0 and "prompt_log_probs" not in wanted
        }
        together = LogProbs(self._limits.limits.log_probs)
        generations = [
            self._generation(request, wanted, reply, number, together)
            for number, wanted in enumerate(rows)
            if number not in prompts
        ]
        self._limits.check_log_probs(sum(_log_probs(one) for one in generations))
        self._limits.check_logits(sum(_logits(one) for one in generations) * self._converter.vocab_size * 4)
        reply.expect(len(generations) + len(prompts))
        if not self._decoupled and sum(generation.sequences for generation in generations) > 1:
            raise InvalidArgumentError(
                "several texts come as several responses, which are only supported in decoupled mode"
            )
        for row, values in prompts.items():
            reply.send(row, values, last=True)
        if generations:
            self._dispatcher.submit(reply, generations)

    def _only_prompt(self, wanted: RowParameters) -> dict[str, Any]:
        """What is known of a prompt before a token is generated; the executor has no part in it."""
        tokens = self._converter.prompt(wanted)
        form = self._form(wanted)
        values: dict[str, Any] = {"text_output": [self._tokenizer.decode(tokens) if form.with_prompt else ""]}
        if form.finish_reason:
            values["finish_reason"] = ["length"]
        if form.input_tokens:
            values["num_input_tokens"] = [len(tokens)]
        if form.output_tokens:
            values["num_output_tokens"] = [0]
        if wanted.get("return_prompt_token_ids", False):
            values["prompt_token_ids"] = tokens
        return values

    def _generation(
        self, request: InferRequest, wanted: RowParameters, reply: Reply, row: int, log_probs: LogProbs
    ) -> Generation:
        """``log_probs``: of all rows, where their texts come whole."""
        form = self._form(wanted)
        if wanted.get("max_tokens") == 0:
            wanted, form = {**wanted, "max_tokens": 1}, replace(form, only_prompt=True, stream=False)
        if form.stream and not self._decoupled:
            raise InvalidArgumentError("Streaming is only supported in decoupled mode.")
        # A word that ends a text is looked for in the text too, which must be seen as it grows for that; not in beams.
        streaming = form.stream or (bool(form.stop_words) and wanted.get("beam_width", 1) in (0, 1))
        asked = self._converter.request(request, wanted, streaming=streaming)
        if self._salts and request.asker is not None:
            asked.cache_salt_id = _salt(request.asker.client)
        if not form.stream:
            asked.most_log_probs = log_probs
        made = Generation(asked, reply, row, self._tokenizer, form)
        made.adapter = wanted.get("lora_name") or str(wanted.get("lora_task_id", ""))
        return made

    def _form(self, wanted: RowParameters) -> Form:
        stream = bool(wanted.get("stream", False))
        return Form(
            stream=stream,
            with_prompt=not (
                stream or wanted.get("exclude_input_in_output", self._excludes_prompt or "messages" in wanted)
            ),
            finish_reason=wanted.get("return_finish_reason", False),
            input_tokens=wanted.get("return_num_input_tokens", False),
            output_tokens=wanted.get("return_num_output_tokens", False),
            cached_tokens=wanted.get("return_num_cached_tokens", False),
            reasoning_open=wanted.get("return_reasoning_open", False),
            stop_words=stop_texts(wanted),
        )


def _salt(client: str) -> int:
    """How fast an answer comes shows whether its prompt is retained: what one client sent is not for others to find."""
    return int.from_bytes(hashlib.blake2b(client.encode(), digest_size=8).digest(), "little")


def _log_probs(made: Generation) -> int:
    """How many of the prompt the answer has: each text comes with all of them."""
    alternatives = made.request.prompt_log_probs
    return 0 if alternatives is None else len(made.request.input_token_ids) * (alternatives + 1) * made.sequences


def _logits(made: Generation) -> int:
    """How many tokens the answer has logits of."""
    wanted = made.request.output_config
    texts = made.sequences * max(1, made.request.sampling_config.beam_width)
    prompt = len(made.request.input_token_ids) * made.sequences if wanted.return_context_logits else 0
    return prompt + (made.request.max_tokens * texts if wanted.return_generation_logits else 0)


def _chat(folder: Path, limits: Limits) -> ChatRenderer | None:
    source = read_source(folder, limits)
    return None if source is None else ChatRenderer(source, folder.name, limits)


class LlmInstance(BackendInstance):
    """Takes requests for a model; they are answered when ``execute`` has long returned."""

    capabilities = Capability.ANSWERS_LATER

    def __init__(self, model: LlmModel) -> None:
        self._model = model

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """See :class:`~repoagent.serving.instances.backend.BackendInstance`."""
        for request in requests:
            self._model.start(request)

    def close(self) -> None:
        """There is nothing to let go of."""
