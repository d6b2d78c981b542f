"""The KV cache on a device: the same layout and bookkeeping as a slab on the host."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner.slab import SlabRows

if TYPE_CHECKING:
    from repoagent.engines.cuda.device import CudaDevice, CudaStream

_ALIGNMENT: Final = 256
"""Of every address on the device that TensorRT is given."""
_DESK: Final = -1
"""The place of a row that lies, for a while, where TensorRT takes its address."""


class DeviceSlab(SlabRows):
    """Device memory [layer, key or value, row, KV head, token, head size], zeroed.

    A plane is what one layer keeps of keys or values; it begins where TensorRT takes an address. What is moved is a row
    of each plane, as a whole: copies of parts would be one per head.
    """

    def __init__(
        self,
        device: "CudaDevice",
        stream: "CudaStream",
        *,
        layers: int,
        rows: int,
        kv_heads: int,
        tokens: int,
        head_size: int,
        dtype: Any,
    ) -> None:
        """Work is enqueued on ``stream``.

        Raises:
            UnavailableError: the device has not enough memory.
        """
        super().__init__(rows, wipe=True)
        self._device, self._stream = device, stream
        self._planes = 2 * layers
        self._shape = (layers, 2, kv_heads, tokens, head_size)
        self._dtype = np.dtype(dtype)
        self._token_bytes = head_size * self._dtype.itemsize
        self._row_bytes = kv_heads * tokens * self._token_bytes
        self._plane_bytes = -(-rows * self._row_bytes // _ALIGNMENT) * _ALIGNMENT
        self._base = device.allocate(self._planes * self._plane_bytes)
        device.zero(self._base, self._planes * self._plane_bytes, stream)
        self._staging = device.allocate_host(self._planes * self._row_bytes)
        self._scratch = self._desk = 0
        self._desk_bytes = -(-self._row_bytes // _ALIGNMENT) * _ALIGNMENT

    def address(self, layer: int, part: int, row: int) -> int:
        """Where a row begins, in the keys (0) or values (1) of a layer; row 0, or what :meth:`reachable` gave."""
        return self._at(2 * layer + part, row)

    @contextmanager
    def reachable(self, row: int) -> Iterator[int]:
        """A place for :meth:`address` that TensorRT takes, whatever the size of a row: where ``row`` lies meanwhile."""
        if row * self._row_bytes % _ALIGNMENT == 0:
            yield row
            return
        if not self._desk:
            self._desk = self._device.allocate(self._planes * self._desk_bytes)
        self._move(row, _DESK)
        try:
            yield _DESK
        finally:
            self._move(_DESK, row)

    def _move(self, source: int, target: int) -> None:
        for plane in range(self._planes):
            self._device.copy_within(self._at(plane, target), self._at(plane, source), self._row_bytes, self._stream)

    def _at(self, plane: int, row: int) -> int:
        address: int = self._desk + plane * self._desk_bytes
        if row != _DESK:
            address = self._base + plane * self._plane_bytes + row * self._row_bytes
        return address

    def _wipe(self, row: int, start: int) -> None:
        # A row that was filled by a copy holds nothing of any other sequence behind it.
        if start == 0 and self._written[row]:
            for plane in range(self._planes):
                self._device.zero(self._at(plane, row), self._row_bytes, self._stream)
            self._written[row] = 0

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        self._move(source, target)
        self.lengths[target] = stop
        self._written[target] = self._written[source]

    def reorder(self, rows: Sequence[int], parents: Sequence[int], common: int) -> None:
        """As for a slab on the host. Rows go through spare memory, as one may be read and written."""
        changed = [(rows[i], rows[parent]) for i, parent in enumerate(parents) if i != parent]
        if not changed:
            return
        spare, size, stream = self._spare(), self._row_bytes, self._stream
        for plane in range(self._planes):
            for place, (_, source) in enumerate(changed):
                self._device.copy_within(spare + place * size, self._at(plane, source), size, stream)
            for place, (target, _) in enumerate(changed):
                self._device.copy_within(self._at(plane, target), spare + place * size, size, stream)
        sources = [source for _, source in changed]
        lengths, written = self.lengths[sources], self._written[sources]
        for place, (target, _) in enumerate(changed):
            self.lengths[target], self._written[target] = lengths[place], written[place]

    def _spare(self) -> int:
        """Memory for one plane of every row; only beams need it."""
        if not self._scratch:
            self._scratch = self._device.allocate(len(self.lengths) * self._row_bytes)
        return self._scratch

    def export(self, row: int, start: int, stop: int) -> npt.NDArray[Any]:
        for plane in range(self._planes):
            place = self._staging.address + plane * self._row_bytes
            self._device.copy_out(place, self._at(plane, row), self._row_bytes, self._stream)
        self._stream.synchronize()
        whole: npt.NDArray[Any] = self._host().reshape(self._shape)
        return whole[:, :, :, start:stop].copy()

    def load(self, row: int, piece: npt.NDArray[Any], tokens: int) -> None:
        start, size = int(self.lengths[row]), tokens * self._token_bytes
        head_bytes = self._row_bytes // self._shape[2]
        given = np.ascontiguousarray(piece[:, :, :, :tokens], self._dtype)
        self._stream.synchronize()  # The staging memory may still be read.
        self._host()[: given.size] = given.reshape(-1)
        for plane in range(self._planes):
            for head in range(self._shape[2]):
                source = self._staging.address + (plane * self._shape[2] + head) * size
                target = self._at(plane, row) + head * head_bytes + start * self._token_bytes
                self._device.copy_in(target, source, size, self._stream)
        self._stream.synchronize()
        self.lengths[row] = start + tokens
        self.note(row, row + 1, 0)

    def _host(self) -> npt.NDArray[Any]:
        return self._staging.data[: prod(self._shape) * self._dtype.itemsize].view(self._dtype)

    def close(self) -> None:
        """Free the memory; nothing that was enqueued uses it."""
        for address in (self._base, self._scratch, self._desk):
            if address:
                self._device.free(address)
        self._base = self._scratch = self._desk = 0
        self._staging.close()
