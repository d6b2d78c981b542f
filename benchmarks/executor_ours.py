"""Our executor, as executor_speed.py and executor_share.py open it."""

from datetime import timedelta
from pathlib import Path

from executor_trace import Run, Serve, Trace
from repoagent_llm import Executor, ExecutorConfig, KvCacheConfig, ModelType, Request, RunnerOptions
from repoagent_llm.builder import Form, Precision, build

THREADS = 2
LENGTH = 256
#: Tokens of an iteration in which requests wait for their next token.
BUDGET = 40


def decoder_folder(
    checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32, form: Form = Form.GQA
) -> Path:
    """The checkpoint's decoder folder beside it, made when it is not there yet."""
    target = checkpoint.parent / f"decoder-{form.value}-{precision.value}-{block}"
    return target if target.exists() else build(checkpoint, target, form=form, precision=precision, block=block)


def _config() -> ExecutorConfig:
    """The cache of prefixes is off, so that repeated prompts are computed.

    While requests generate, prompts are read in small pieces.
    """
    config = ExecutorConfig(
        max_batch_size=16,
        enable_chunked_context=True,
        kv_cache_config=KvCacheConfig(enable_block_reuse=False),
    )
    config.max_num_tokens_generating = BUDGET
    return config


def open_ours(
    checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32, *, mixed: bool = False
) -> Executor:
    """Our executor on ONNX Runtime."""
    config = _config()
    config.runner_options = RunnerOptions(threads=THREADS, max_seq_len=LENGTH, mixed=mixed)
    return Executor(decoder_folder(checkpoint, precision, block), ModelType.DECODER_ONLY, config)


def ours(checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32) -> Serve:
    """repoagent_llm, streaming."""
    # Runs with float32 weights wait for memory, so that it pays to share them.
    return served_by(open_ours(checkpoint, precision, block, mixed=precision is Precision.FP32))


def ours_paged(checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32, exact: bool = True) -> Serve:
    """The same over pages, on OpenVINO."""
    config = _config()
    config.runner_options = RunnerOptions(threads=THREADS, max_seq_len=LENGTH, exact=exact)
    folder = decoder_folder(checkpoint, precision, block, Form.PAGED)
    return served_by(Executor(folder, ModelType.DECODER_ONLY, config))


def served_by(executor: Executor) -> Serve:
    """Requests of a trace to ``executor``, streaming."""

    def serve(trace: Trace) -> Run:
        run, numbers, left = Run(len(trace)), dict[int, int](), len(trace)
        coming = 0
        while left:
            due = [arrival for arrival in trace[coming:] if arrival.at <= run.now()]
            ids = executor.enqueue_requests([Request(item.prompt, item.new_tokens, streaming=True) for item in due])
            numbers.update(zip(ids, range(coming, coming + len(due)), strict=True))
            coming += len(due)
            wait = trace[coming].at - run.now() if coming < len(trace) else 10.0
            for response in executor.await_responses(timedelta(seconds=max(0.0, wait))):
                for token in response.result.output_token_ids[0]:
                    run.note(numbers[response.request_id], token)
                left -= response.result.is_final
        return run

    return serve
