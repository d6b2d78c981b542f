"""What one model, file or request may take of the server: every limit in one place, with its default.

Each field is a name for ``--limit NAME=VALUE`` and the table ``[limits]`` of a configuration file, a flag of its own
(``--limit-NAME`` with dashes), and a line of docs/reference/serve.md. A new limit is a new field here and nothing else:
the flags, the help text and the check are made from it.
"""

from dataclasses import dataclass, field, fields
from typing import Final

from repoagent.errors import InvalidArgumentError

_MIB: Final = 1 << 20


def _limit(default: int, text: str, *, least: int = 1) -> int:
    """A field with its default and the text of its flag. A ``least`` of 0 is for limits that 0 turns off."""
    value: int = field(default=default, metadata={"help": text, "least": least})
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server. The code that applies one names its flag in the message: see :meth:`flag`.

    Raises:
        InvalidArgumentError: a value is not a whole number above 0, or is 0 where that does not mean "no limit".
    """

    config_bytes: int = _limit(
        4 * _MIB, "The largest model configuration, a file or sent with a load request, in bytes."
    )
    text_file_bytes: int = _limit(
        64 * _MIB, "The largest file of a model that is read whole as text (labels, manifests, JSON), in bytes."
    )
    key_file_bytes: int = _limit(1 * _MIB, "The largest key, or wrapped key, of a file or a program, in bytes.")
    model_files: int = _limit(20_000, "The most files and directories of one model in a repository.")
    model_versions: int = _limit(256, "The most versions of one model that are loaded.")
    worker_deaths: int = _limit(
        3, "How many workers in a row may die while they load a model again before it is unloaded (--processes)."
    )
    worker_silence_seconds: int = _limit(
        60, "How long a worker may hang before it is killed and replaced (--processes), in seconds; 0: never.", least=0
    )
    download_bytes: int = _limit(1 << 40, "The largest file that an agent may download, in bytes.")
    download_files: int = _limit(100_000, "The most files of one download.")
    build_seconds: int = _limit(
        3600, "How long the process of a converter may take for one result, in seconds; 0 for no limit.", least=0
    )
    build_bytes: int = _limit(
        8192 * _MIB, "The most memory, as address space, of a converter whose source is code, in bytes."
    )
    instances: int = _limit(256, "The most instances of one version of a model, over all its instance groups.")
    sequence_slots: int = _limit(65536, "The most sequences at once of one version of a model, over all instances.")
    warmup_requests: int = _limit(10_000, "The most requests of one warm-up sample of a model.")
    warmup_seconds: int = _limit(
        300, "How long all warm-up samples of one version of a model may take, in seconds; 0 for no limit.", least=0
    )
    open_seconds: int = _limit(
        120,
        "How long ONNX Runtime may take to open a model whose graph does not show what that takes, in seconds; it is "
        "opened in a process of its own first. 0: none is.",
        least=0,
    )
    open_bytes: int = _limit(
        2048 * _MIB, "The most memory that such an opening may take, in bytes, beside four times the model's files."
    )
    load_thread_seconds: int = _limit(
        120,
        "How long a load may keep others from its thread, in seconds; then it goes on beside those of "
        "--model-load-thread-count. 0: to its end.",
        least=0,
    )
    tensor_bytes: int = _limit(
        1024 * _MIB,
        "The largest tensor that a configuration asks for (warm-up, initial state), and the logits that a request to a "
        "language model does, in bytes.",
    )
    scrypt_work_factor: int = _limit(
        20, "The largest scrypt work factor of encrypted files: N takes 2^N KiB of memory; a model may ask for less."
    )
    request_tensors: int = _limit(10_000, "The most inputs, and the most outputs, that one request may name.")
    request_parameters: int = _limit(10_000, "The most parameters of one request.")
    request_texts: int = _limit(
        2_000_000,
        "The most elements of BYTES in one request: others wait while they are handled.",
    )
    json_text_bytes: int = _limit(
        16 * _MIB, "The longest text in the JSON of a request, in bytes; the binary form has no such limit."
    )
    typed_elements: int = _limit(
        1_000_000, "The most elements in the typed contents of one gRPC request that are not packed: those of BYTES."
    )
    held_bytes: int = _limit(
        1024 * _MIB,
        "The most bytes of unfinished, decompressed and long requests, and of unread answers, on all ports.",
    )
    tls_handshakes: int = _limit(1024, "The most unfinished TLS handshakes on one port; a further one ends the oldest.")
    classes: int = _limit(1_000_000, "The most elements of one answer's classification.")
    json_depth: int = _limit(100, "How deeply the JSON of a request may be nested.")

    python_shared_bytes: int = _limit(
        16 << 30, "The most memory that a process of a Python model shares with the server, each way, in bytes."
    )
    python_segments: int = _limit(
        1024, "The most pieces of such memory, each way; never more than an eighth of the server's open files."
    )
    python_message_bytes: int = _limit(
        16 * _MIB, "The longest message of a process of a Python model, without its tensors, in bytes."
    )
    python_unread_bytes: int = _limit(
        64 * _MIB, "The most bytes of answers that a process of a Python model leaves unread; then it is killed."
    )
    python_calls: int = _limit(
        10_000, "The most requests to other models, and the most loads, that a process of a Python model waits for."
    )
    python_threads: int = _limit(
        32, "The most threads that load, unload and look at models for one process of a Python model; others wait."
    )
    python_series: int = _limit(
        10_000, "The most metrics of one process of a Python model: families, series, and buckets of histograms."
    )

    prompt_bytes: int = _limit(4 * _MIB, "The longest prompt of a language model, in bytes.")
    tokenizer_bytes: int = _limit(
        40 * _MIB, "The largest tokenizer.json of a language model, in bytes: other threads wait while it is read."
    )
    decoder_graph_bytes: int = _limit(
        64 * _MIB, "The largest graph of a language model, without weights in files beside it, in bytes."
    )
    chat_template_bytes: int = _limit(1 * _MIB, "The largest chat template of a language model, in bytes.")
    chat_template_ms: int = _limit(
        1000, "How long a chat template may take for one conversation, in milliseconds of the processor."
    )
    words: int = _limit(1024, "The most words in one list (stop, bad, bias words) of one text of a language model.")
    word_bytes: int = _limit(1 << 16, "The most bytes of such a list of words, and of sampling_parameters.")
    guide_bytes: int = _limit(1 << 16, "The largest guide (grammar, schema, expression) of guided decoding, in bytes.")
    guide_repetitions: int = _limit(
        10_000, "The most repetitions that a guide may count, such as the 9 in a{1,9}; for characters 16 times as many."
    )
    log_probs: int = _limit(
        1 << 18,
        "The most log-probabilities that one request to a language model may get: the tokens of its prompt, times the "
        "alternatives to each and one, times the texts; and as many of texts that are not streamed.",
    )

    def __post_init__(self) -> None:
        """Check the values."""
        for one in fields(self):
            value, least = getattr(self, one.name), one.metadata["least"]
            if type(value) is not int or value < least:
                expected = "a whole number above 0" if least else "a whole number, or 0 for no limit"
                raise InvalidArgumentError(f"{self.flag(one.name)} must be {expected}, not {value!r}")

    @staticmethod
    def flag(name: str) -> str:
        """The flag of the field ``name``, for messages: what to raise if the model is right and the limit is not."""
        return f"--limit-{name.replace('_', '-')}"


DEFAULT_LIMITS: Final = Limits()
