"""Choosing the requests that are traced, and writing their traces."""

import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import UnsupportedError
from repoagent.installing import install_hint
from repoagent.public_text import public_values
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor
from repoagent.serving.tracing.trace_settings import COMPUTE, TraceFile, TraceSettings, changed

if TYPE_CHECKING:
    from repoagent.serving.tracing.spans import SpanTrace, SpanTraces


_UNPRINTED: Final = frozenset({DataType.FP16, DataType.BF16})


class FileTrace:
    """See :class:`~repoagent.serving.requests.request.RequestTrace`. What it collects is handed to ``done`` at the end.

    Code that has more to note than the core (when the request came over the network, when the answer left) asks for
    a trace that is ``held``, notes it with :meth:`note`, and calls :meth:`release`; otherwise :meth:`end` does that.
    """

    def __init__(
        self,
        level: frozenset[str],
        next_id: Callable[[], int],
        done: Callable[[list[str]], None],
        *,
        held: bool = False,
        parent: "FileTrace | None" = None,
    ) -> None:
        self.id = next_id()
        self._next_id = next_id
        self._level = level
        self._done = done
        self._held = held
        self._parent = parent
        self._lock = threading.Lock()
        self._records: list[str] = []
        self._children: list[FileTrace] = []

    def child(self) -> "FileTrace":
        child = FileTrace(self._level, self._next_id, self._done, held=True, parent=self)
        with self._lock:
            self._children.append(child)
        return child

    def begin(self, request: InferRequest, version: int, now_ns: int) -> None:
        head: dict[str, Any] = {"id": self.id, "model_name": request.model_name, "model_version": version}
        if request.asked.id:
            head["request_id"] = request.asked.id
        if request.call_id:
            head["x_request_id"] = request.call_id
        if self._parent is not None:
            head["parent_id"] = self._parent.id
        self._add(head)
        self.note("REQUEST_START", now_ns)
        self.note("QUEUE_START", now_ns)
        for name, tensor in request.inputs.items():
            self._note_tensor("TENSOR_QUEUE_INPUT", name, tensor)

    def answer(self, response: InferResponse) -> None:
        for name, tensor in response.outputs.items():
            self._note_tensor("TENSOR_BACKEND_OUTPUT", name, tensor)

    def end(self, request: InferRequest, now_ns: int) -> None:
        for name, moment_ns in zip(COMPUTE, request.times or (), strict=False):
            self.note(name, moment_ns)
        self.note("REQUEST_END", now_ns)
        if not self._held:
            self.release()

    def note(self, name: str, now_ns: int) -> None:
        """Something happened at ``now_ns`` (``time.monotonic_ns``)."""
        if "TIMESTAMPS" in self._level:
            self._add({"id": self.id, "timestamps": [{"name": name, "ns": now_ns}]})

    def release(self) -> None:
        """Nothing more will be noted: the trace can be written."""
        self._done(self._collected())

    def _collected(self) -> list[str]:
        with self._lock:
            children = list(self._children)
            records = list(self._records)
        for child in children:
            records += child._collected()
        return records

    def _note_tensor(self, activity: str, name: str, tensor: Tensor) -> None:
        if "TENSORS" in self._level:
            described = {
                "name": name,
                "data": _text(tensor),
                "shape": ",".join(str(dim) for dim in tensor.shape),
                "dtype": tensor.data_type.name,
            }
            self._add({"id": self.id, "activity": activity, "tensor": described})

    def _add(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, separators=(",", ":"))
        if "\\ud" in text:  # perhaps half a pair, which no reader of JSON takes
            text = json.dumps(public_values(record), separators=(",", ":"))
        with self._lock:
            self._records.append(text)


def _text(tensor: Tensor) -> str:
    """The elements as Triton writes them; types of 16 bits have none."""
    if tensor.data_type in _UNPRINTED:
        return ""
    elements = tensor.array.ravel().tolist()
    if tensor.data_type is DataType.BYTES:
        return ",".join(f'"{_decoded(element)}"' for element in elements)
    if tensor.data_type in (DataType.FP32, DataType.FP64):
        return ",".join(f"{element:g}" for element in elements)
    return ",".join(str(int(element)) for element in elements)


def _decoded(element: bytes | str) -> str:
    return element if isinstance(element, str) else element.decode("utf-8", "replace")


class _Sampling:
    """One form of the settings while it is in force. Traces that began under it end under it."""

    def __init__(self, settings: TraceSettings, file: TraceFile, share: Callable[[], int] | None) -> None:
        self.settings = settings
        self._file = file
        self._lock = threading.Lock()
        self._share = share if settings.count > 0 else None
        """Has some of the count whenever the last of it has been taken; None: the whole count is for this process."""
        self._seen = 0
        self._left = settings.count if self._share is None else 0
        self._written = 0
        self._collected: list[str] = []
        self._collected_traces = 0

    def take(self) -> bool:
        """Whether the next request is traced."""
        with self._lock:
            if not (self._left or self._share) or not self.settings.rate:
                return False
            self._seen += 1
            if self._seen % self.settings.rate:
                return False
            if not self._left and self._share is not None:
                self._left = self._share()
            if not self._left:
                self._share = None
                return False
            self._left -= self._left > 0
            return True

    def hand_out(self, processes: int) -> int:
        """Take a share of what is left: less each time, so that little lies with processes that have no requests."""
        with self._lock:
            share = -(-max(self._left, 0) // (2 * processes))
            self._left -= share
            return share

    def write(self, records: list[str]) -> None:
        """Keep one trace, and write what is due."""
        settings = self.settings
        if not settings.log_frequency and settings.count < 0:
            self._file.append(records)
            return
        with self._lock:
            self._collected += records
            self._collected_traces += 1
            self._written += 1
            complete = not self._left and self._written == self._seen
            due = settings.log_frequency and self._collected_traces >= settings.log_frequency
            if not (complete or due):
                return
            records, self._collected, self._collected_traces = self._collected, [], 0
        self._file.write_numbered(records)

    def flush(self) -> None:
        """Write what has been kept."""
        with self._lock:
            records, self._collected, self._collected_traces = self._collected, [], 0
        if records and self.settings.log_frequency:
            self._file.write_numbered(records)
        elif records:
            self._file.append(records)


class Tracer:
    """Settings for all models, and for single ones where they differ. Methods may be called from any thread.

    ``suffix`` is added to the names of files.

    Raises:
        UnsupportedError: the mode ``opentelemetry`` is asked for, and its packages are missing.
    """

    def __init__(self, settings: TraceSettings, suffix: str = "") -> None:
        self._default = settings
        self._suffix = suffix
        self._share: Callable[[str], int] | None = None
        self._spans = _span_traces(settings) if settings.mode == "opentelemetry" else None
        self.propagates: Final = self._spans is not None
        """Whether the headers in which clients name their own spans mean something, while it is enabled."""
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._files: dict[str, TraceFile] = {}
        self._changes: dict[str, dict[str, str | Sequence[str]]] = {}
        self._everywhere = self._sampling(settings)
        self._models: dict[str, _Sampling] = {}
        self.enabled = not settings.problem
        """Whether any request might be traced: look here first, it costs nothing."""

    def share_counts(self, share: Callable[[str], int]) -> None:
        """Have other processes trace of the same counts: ``share`` has some more of that of a model, or of all with "".

        It is called for the first request, and when what it had is used up; 0 ends that.
        """
        with self._lock:
            self._share = share
            self._everywhere = self._sampling(self._everywhere.settings)

    def hand_out(self, model_name: str, processes: int) -> int:
        """A share of a count for one of so many ``processes`` that trace; 0: nothing is left of it."""
        sampling = self._models.get(model_name) if model_name else self._everywhere
        return sampling.hand_out(processes) if sampling is not None else 0

    def sample(
        self, model_name: str, context: Mapping[str, str] | None = None, *, held: bool = False
    ) -> "FileTrace | SpanTrace | None":
        """A trace for the next request to that model, if it is to be traced. ``held``: see :class:`FileTrace`.

        ``context`` has the headers of the client by their lower-case names; a request with a span of the client's is
        traced in the mode ``opentelemetry`` whatever rate and count are.
        """
        sampling = self._models.get(model_name, self._everywhere)
        if sampling.settings.problem:
            return None
        parent = self._spans.parent(context) if context and self._spans is not None else None
        if parent is None and not sampling.take():
            return None
        if self._spans is not None:
            return self._spans.trace(self._ids.__next__, parent, held=held)
        return FileTrace(sampling.settings.level, self._ids.__next__, sampling.write, held=held)

    def settings(self, model_name: str = "") -> TraceSettings:
        """Those in force for a model; without a name, for all that have none of their own."""
        return self._models.get(model_name, self._everywhere).settings

    def update(self, changes: Mapping[str, str | Sequence[str] | None], model_name: str = "") -> TraceSettings:
        """Change settings, in the form of Triton's trace extension, and return those that are then in force.

        Without a model's name this is for all models, but for what a model has of its own. None takes a change back.

        Raises:
            RepoAgentError: see :func:`~repoagent.serving.tracing.trace_settings.changed`; nothing is changed.
        """
        with self._lock:
            wanted = {**self._changes, model_name: _merged(self._changes.get(model_name, {}), changes)}
            everywhere = changed(self._default, self._default, {**wanted.get("", {}), **_cleared(changes, model_name)})
            models = {name: changed(everywhere, everywhere, own) for name, own in wanted.items() if name and own}
            if model_name and not wanted[model_name]:
                changed(everywhere, everywhere, changes)  # Only to refuse what is not known.
            self._put(everywhere, models)
            self._changes = {name: own for name, own in wanted.items() if own}
        return self.settings(model_name)

    def _put(self, everywhere: TraceSettings, models: dict[str, TraceSettings]) -> None:
        old = [self._everywhere, *self._models.values()]
        if everywhere != self._everywhere.settings:
            self._everywhere = self._sampling(everywhere)
        self._models = {
            name: self._models[name]
            if name in self._models and self._models[name].settings == settings
            else self._sampling(settings, name)
            for name, settings in models.items()
        }
        in_force = [self._everywhere, *self._models.values()]
        self.enabled = any(not sampling.settings.problem for sampling in in_force)
        for sampling in old:
            if sampling not in in_force:
                sampling.flush()

    def _sampling(self, settings: TraceSettings, model_name: str = "") -> _Sampling:
        if settings.file not in self._files:
            self._files[settings.file] = TraceFile(settings.file + self._suffix)
        share = partial(self._share, model_name) if self._share is not None else None
        return _Sampling(settings, self._files[settings.file], share)

    def close(self) -> None:
        """Write everything and complete the files."""
        with self._lock:
            self.enabled = False
            for sampling in (self._everywhere, *self._models.values()):
                sampling.flush()
            for file in self._files.values():
                file.close()
        if self._spans is not None:
            self._spans.close()


def _span_traces(settings: TraceSettings) -> "SpanTraces":
    try:
        from repoagent.serving.tracing.spans import SpanTraces
    except ImportError as error:
        raise UnsupportedError(
            f"trace mode 'opentelemetry' needs packages that are not installed ({error}); "
            f"{install_hint('repoagent-core', 'otel')}"
        ) from error
    return SpanTraces(settings.spans)


def _merged(
    own: Mapping[str, str | Sequence[str]], changes: Mapping[str, str | Sequence[str] | None]
) -> dict[str, str | Sequence[str]]:
    merged: dict[str, str | Sequence[str] | None] = {**own, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _cleared(
    changes: Mapping[str, str | Sequence[str] | None], model_name: str
) -> dict[str, str | Sequence[str] | None]:
    """The changes that change nothing: for checking their names."""
    return {} if model_name else {name: value for name, value in changes.items() if value is None}
