"""AdapterRows: for each row of the slab the low-rank matrices of its sequence, beside the cache of its tokens.

As in the slab, a window of rows is contiguous and can be bound by its address. Rows without an adapter hold zeros;
a window without any adapter is bound with rank 0, so that it costs next to nothing.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner.protocol import AdapterWeights

Array = npt.NDArray[Any]


class AdapterRows:
    """``sites``: (inputs, outputs) of each linear layer that takes adapters."""

    def __init__(self, sites: Mapping[str, tuple[int, int]], rows: int, dtype: Any) -> None:
        self._sites = sites
        self._dtype = np.dtype(dtype)
        self._holds: list[AdapterWeights | None] = [None] * rows
        self._arrays: dict[str, tuple[Array, Array]] = {site: self._allocate(site, 0) for site in sites}

    def _allocate(self, site: str, rank: int) -> tuple[Array, Array]:
        inputs, outputs = self._sites[site]
        rows = len(self._holds)
        return np.zeros((rows, inputs, rank), self._dtype), np.zeros((rows, rank, outputs), self._dtype)

    def any(self, start: int, stop: int) -> bool:
        """Whether a row of the window has an adapter."""
        return any(weights is not None for weights in self._holds[start:stop])

    def window(self, start: int, stop: int) -> dict[str, Array]:
        """The graph's inputs for rows [start, stop)."""
        found = {}
        active = self.any(start, stop)
        for site, (a, b) in self._arrays.items():
            if active:
                found[f"lora.{site}.a"], found[f"lora.{site}.b"] = a[start:stop], b[start:stop]
            else:
                found[f"lora.{site}.a"], found[f"lora.{site}.b"] = a[start:stop, :, :0], b[start:stop, :0]
        return found

    def put(self, row: int, weights: AdapterWeights | None) -> bool:
        """Give a row an adapter, or none. True: arrays were replaced, so what is bound to them must be bound again."""
        if weights is self._holds[row]:
            return False
        before, self._holds[row] = self._holds[row], weights
        replaced = self._fit() if weights is not None else False
        if not replaced:
            self._fill(row, before, weights)
        return replaced

    def held(self, row: int) -> AdapterWeights | None:
        """The adapter of a row."""
        return self._holds[row]

    def move(self, source: int, target: int) -> bool:
        """The target takes over what the source has; the source has nothing afterwards. Like ``put``."""
        weights = self._holds[source]
        self.put(source, None)
        return self.put(target, weights)

    def _fit(self) -> bool:
        """Make room for the largest rank held; give room back when only smaller ones are left."""
        held = [weights for weights in self._holds if weights is not None]
        wanted = {site: max((w[site][0].shape[1] for w in held if site in w), default=0) for site in self._sites}
        sizes = {site: a.shape[2] for site, (a, _) in self._arrays.items()}
        larger = any(wanted[site] > sizes[site] for site in wanted)
        if not larger and not (len(held) == 1 and wanted != sizes):
            return False
        self._arrays = {site: self._allocate(site, rank) for site, rank in wanted.items()}
        for row, weights in enumerate(self._holds):
            if weights is not None:
                self._fill(row, None, weights)
        return True

    def _fill(self, row: int, before: AdapterWeights | None, weights: AdapterWeights | None) -> None:
        for site, (a, b) in self._arrays.items():
            if before is not None and site in before:
                a[row], b[row] = 0, 0
            if weights is not None and site in weights:
                rank = weights[site][0].shape[1]
                a[row, :, :rank], b[row, :rank] = weights[site]


def lora_sites(inputs: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the layers for which the graph takes adapters: lora.LAYER.a and lora.LAYER.b."""
    names = [name[len("lora.") : -len(".a")] for name in inputs if name.startswith("lora.") and name.endswith(".a")]
    return {name: (inputs[f"lora.{name}.a"].shape[1], inputs[f"lora.{name}.b"].shape[2]) for name in names}
