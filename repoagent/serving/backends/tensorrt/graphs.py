"""Which runs become CUDA graphs: ``optimization.cuda`` of a model's configuration."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repoagent.engines.protocol import Context, Device, Graph, Shape, Stream
from repoagent.errors import RepoAgentError, UnsupportedError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["GraphRule"]

logger = logging.getLogger(__name__)


class GraphRule:
    """Captures runs of the shapes that the configuration names; of all shapes if it names none."""

    def __init__(self, model_name: str, wanted: Sequence[Mapping[str, Shape]]) -> None:
        self._model_name = model_name
        self._wanted = [dict(shapes) for shapes in wanted]
        self._given_up = False

    @classmethod
    def of(cls, config: "ModelConfig") -> "GraphRule | None":
        """The rule that ``config`` asks for; None if it wants no graphs.

        Raises:
            UnsupportedError: it asks for a graph that serves smaller batches as well.
        """
        cuda = config.optimization.cuda
        if not cuda.graphs:
            return None
        if any(spec.HasField("graph_lower_bound") for spec in cuda.graph_spec):
            raise UnsupportedError(
                f"model '{config.name}' asks for graph_lower_bound, which is not supported: a graph runs for the "
                "shapes of its graph_spec only"
            )
        return cls(config.name, [_shapes(config, spec) for spec in cuda.graph_spec])

    def wants(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether runs of inputs of these shapes are to be captured."""
        if self._given_up:
            return False
        return not self._wanted or any(
            all(shapes.get(name) == shape for name, shape in wanted.items()) for wanted in self._wanted
        )

    def capture(self, device: Device, stream: Stream, context: Context) -> Graph | None:
        """What ``context`` has just done, as a graph; None if it cannot be captured, which is logged once.

        Only behind a run of the same shapes: the first run after they have changed does more than later ones.

        Raises:
            InternalError: that run has failed.
        """
        stream.synchronize()
        problem: RepoAgentError | None = None
        try:
            device.begin_capture(stream)
            try:
                context.enqueue(stream)
            except RepoAgentError as error:
                problem = error
            graph = device.end_capture(stream)  # Also after a failure: a stream that captures executes nothing.
            if problem is None:
                return graph
            graph.close()
        except RepoAgentError as error:
            problem = problem or error
        self._given_up = True
        logger.warning("model '%s' runs without CUDA graphs: %s", self._model_name, problem)
        return None


def _shapes(config: "ModelConfig", spec: Any) -> dict[str, Shape]:
    """The shapes of the inputs in one ``graph_spec``; those that it does not name, as the configuration has them."""
    batch = (max(1, spec.batch_size),) if config.max_batch_size else ()
    shapes = {
        item.name: (*batch, *(item.reshape.shape if item.HasField("reshape") else item.dims))
        for item in config.input
        if not item.is_shape_tensor
    }
    for name, shape in spec.input.items():
        shapes[name] = (*batch, *shape.dim)
    return {name: shape for name, shape in shapes.items() if -1 not in shape}
