"""Checking requests against a model's configuration, with Triton's texts.

There are two versions of the check. :meth:`RequestChecker.check` runs for every request and only returns yes or no;
at "no" it hands over to :meth:`RequestChecker.explain`, the plain version, which goes through the rules in Triton's
order and raises the first fault it meets. A test holds the two together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from repoagent.config import ModelConfig
from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import DataType, shapes_agree

_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try "
    "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def dims_text(dims: Iterable[int]) -> str:
    """``[-1,16]``: a shape as Triton writes it."""
    return "[" + ",".join(str(dim) for dim in dims) + "]"


@dataclass(frozen=True, slots=True)
class _InputRule:
    data_type: DataType
    dims: tuple[int, ...]
    fixed: bool
    """No dimension is variable, so shapes can be compared as tuples."""
    optional: bool
    batched: bool
    """The shape in a request starts with the batch size (not so for shape tensors)."""


class RequestChecker:
    """The input rules of one model, compiled once."""

    __slots__ = ("_batching", "_max_batch_size", "_maximum", "_minimum", "_model", "_outputs", "_required", "_rules")

    def __init__(self, model_name: str, config: ModelConfig) -> None:
        self._model = model_name
        self._max_batch_size = config.max_batch_size
        self._batching = config.max_batch_size > 0
        self._rules = {
            item.name: _InputRule(
                data_type=DataType(item.data_type),
                dims=tuple(item.dims),
                fixed=-1 not in item.dims,
                optional=item.optional,
                batched=self._batching and not item.is_shape_tensor,
            )
            for item in config.input
        }
        self._outputs = frozenset(item.name for item in config.output)
        self._maximum = len(self._rules)
        self._required = frozenset(name for name, rule in self._rules.items() if not rule.optional)
        self._minimum = len(self._required)

    def check(self, request: InferRequest) -> int:
        """The batch size of ``request`` (1 for a model that does not batch). Raises ``InvalidArgumentError``, in
        Triton's words, if the request does not fit the model."""
        batch = self.size_if_valid(request)
        if batch is None:
            self.explain(request)
            return self._batch_size(request)
        return batch

    def size_if_valid(self, request: InferRequest) -> int | None:
        """The same for a request that fits in the usual way; None for any other, of which :meth:`check` knows more."""
        inputs = request.inputs
        if len(inputs) != self._maximum and not self._required.issubset(inputs):
            return None  # With all of them, or more, a name that is missing leaves room for one that has no rule.
        if request.requested_outputs and not self._outputs.issuperset(request.requested_outputs):
            return None
        batch = -1
        for name, tensor in inputs.items():
            rule = self._rules.get(name)
            if rule is None or tensor.data_type is not rule.data_type:
                return None
            shape = tensor.array.shape
            if rule.batched:
                if not shape or (shape[0] != batch and batch >= 0):
                    return None
                batch = shape[0]
                shape = shape[1:]
            if shape != rule.dims and (rule.fixed or not shapes_agree(rule.dims, shape)):
                return None
        if not self._batching:
            return 1
        return max(batch, 0) if batch <= self._max_batch_size else None

    def explain(self, request: InferRequest) -> None:
        """Raise the first fault of ``request``, an ``InvalidArgumentError``, in Triton's order, if there is one."""
        self._check_outputs(request)
        self._check_count(request)
        self._check_batch(request)
        for name in request.inputs:
            self._check_type(request, name)
            self._check_shape(request, name)
        # Triton goes by the number of inputs alone: an optional one passes for a required one.
        if not self._required.issubset(request.inputs):
            raise self._missing(request)

    def _check_outputs(self, request: InferRequest) -> None:
        for name in request.requested_outputs:
            if name not in self._outputs:
                raise InvalidArgumentError(f"unexpected inference output '{name}' for model '{self._model}'")

    def _check_count(self, request: InferRequest) -> None:
        if not self._minimum <= len(request.inputs) <= self._maximum:
            raise self._missing(request)

    def _missing(self, request: InferRequest) -> InvalidArgumentError:
        expected = str(self._maximum)
        if self._minimum != self._maximum:
            expected = f"number of inputs between {self._minimum} and {self._maximum}"
        got = ",".join(f"'{name}'" for name in request.inputs)
        missing = ",".join(f"'{name}'" for name in self._rules if name in self._required and name not in request.inputs)
        noun = " inputs" if self._minimum == self._maximum else ""
        return self._error(
            request,
            f"expected {expected}{noun} but got {len(request.inputs)} inputs for model '{self._model}'. "
            f"Got input(s) [{got}], but missing required input(s) [{missing}]. Please provide all required input(s).",
        )

    def _check_batch(self, request: InferRequest) -> None:
        if not self._batching:
            return
        batch = -1
        for name, tensor in request.inputs.items():
            if not self._rule(name).batched:
                continue
            shape = tensor.shape
            if not shape:
                raise self._error(
                    request, f"input '{name}' has no shape but model requires batch dimension for '{self._model}'"
                )
            if batch >= 0 and shape[0] != batch:  # Triton takes a batch of 0 for one of any size.
                raise self._error(request, f"input '{name}' batch size does not match other inputs for '{self._model}'")
            batch = shape[0]
        if batch > self._max_batch_size:
            raise self._error(
                request, f"inference request batch-size must be <= {self._max_batch_size} for '{self._model}'"
            )

    def _check_type(self, request: InferRequest, name: str) -> None:
        expected = self._rule(name).data_type
        got = DataType(request.inputs[name].data_type)
        if got is not expected:
            raise self._error(
                request,
                f"inference input '{name}' data-type is '{got.name}', but model '{self._model}' expects "
                f"'{expected.name}'",
            )

    def _check_shape(self, request: InferRequest, name: str) -> None:
        rule = self._rule(name)
        shape = tuple(request.inputs[name].shape)
        if shapes_agree(rule.dims, shape[1:] if rule.batched else shape):
            return
        expected = (-1, *rule.dims) if self._batching else rule.dims
        note = f" {_BATCH_NOTE}" if self._batching else ""
        raise self._error(
            request,
            f"unexpected shape for input '{name}' for model '{self._model}'. Expected {dims_text(expected)}, got "
            f"{dims_text(shape)}.{note}",
        )

    def _batch_size(self, request: InferRequest) -> int:
        # Reached only where a data type came as a plain number instead of the enum's member: valid, merely slow.
        batched = [tensor.shape[0] for name, tensor in request.inputs.items() if self._rules[name].batched]
        return batched[0] if batched else 1

    def _rule(self, name: str) -> _InputRule:
        rule = self._rules.get(name)
        if rule is None:
            error = InvalidArgumentError(f"unexpected inference input '{name}' for model '{self._model}'")
            # The text is Triton's; callers with the exception itself also read what there is.
            error.add_note("its inputs are " + ", ".join(f"'{known}'" for known in self._rules))
            raise error
        return rule

    @staticmethod
    def _error(request: InferRequest, text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"[request id: {request.asked.id or '<id_unknown>'}] {text}")
