"""The two forms of graphs on ONNX Runtime: with GroupQueryAttention, and of standard operators."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner import surgery
from repoagent_llm.runner.decoder_spec import DecoderSpec, check_form
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.runner_options import RunnerOptions


class _StdFeeds:
    """Where each row is written, and the position of each of its tokens."""

    reads_masked = True

    def arrays(self, batch: int, width: int) -> dict[str, npt.NDArray[Any]]:
        return {"write_indices": np.zeros(batch, np.int64), "position_ids": np.zeros((batch, width), np.int64)}

    def fill(
        self,
        arrays: dict[str, npt.NDArray[Any]],
        lengths: npt.NDArray[np.int64],
        longest: int,
        width: int,
        counts: npt.NDArray[np.int64] | int = 1,
    ) -> None:
        arrays["write_indices"][:] = lengths
        arrays["position_ids"][:] = lengths[:, None] + np.arange(width)


class OrtStdRunner(OrtRunner):
    """Runs the graph that a TensorRT plan is built from, so that it is tested without a GPU."""

    def __init__(self, model: Path | DecoderSpec, options: RunnerOptions | None = None) -> None:
        """Load a folder, or what a specification names.

        Raises ``DecoderError`` when it is no decoder of this form.
        """
        super().__init__(check_form(model, standard=True), options or RunnerOptions(), _StdFeeds())


class _GqaFeeds:
    """Lengths after the run minus one, and the longest. The operator takes S == longest to mean a fresh prompt."""

    reads_masked = False

    def arrays(self, batch: int, width: int) -> dict[str, npt.NDArray[Any]]:
        return {
            surgery.LENGTHS: np.zeros(batch, np.int32),
            surgery.TOTAL: np.zeros((), np.int32),
            "position_ids": np.zeros((batch, width), np.int64),
        }

    def fill(
        self,
        arrays: dict[str, npt.NDArray[Any]],
        lengths: npt.NDArray[np.int64],
        longest: int,
        width: int,
        counts: npt.NDArray[np.int64] | int = 1,
    ) -> None:
        arrays[surgery.LENGTHS][:] = lengths if width == 1 else lengths + (counts - 1)
        arrays[surgery.TOTAL][...] = longest + width
        positions = arrays["position_ids"]
        if width == 1:
            positions[:, 0] = lengths
        else:
            positions[:] = lengths[:, None] + np.arange(width)


class OrtGqaRunner(OrtRunner):
    """The default runner. Its cost does not depend on how many tokens a row could hold."""

    def __init__(self, model: Path | DecoderSpec, options: RunnerOptions | None = None) -> None:
        """Load a folder, or what a specification names.

        Raises ``DecoderError`` when it is no decoder of this form.
        """
        super().__init__(check_form(model, standard=False), options or RunnerOptions(), _GqaFeeds())
