"""The memory of a tensor on both sides: page-locked on the host, and on the device."""

from typing import TYPE_CHECKING

from repoagent.engines.protocol import Shape

if TYPE_CHECKING:
    from repoagent.engines.cuda.device import CudaDevice, CudaHostMemory

_ROUND_UP: int = 512


class Pair:
    """The memory of a tensor on both sides. It grows, and never shrinks."""

    def __init__(self, device: "CudaDevice", *, on_device: bool = True) -> None:
        """``on_device``: False for a shape tensor, which has memory of the host alone."""
        self._device = device
        self._on_device = on_device
        self._host: CudaHostMemory | None = None
        self.size = 0
        self.address = 0
        """Where the engine finds it."""

    def fit(self, size: int) -> None:
        """Have room for ``size`` bytes, or raise ``UnavailableError``. Addresses change if there was not enough."""
        if self._host is not None and size <= self.size:
            return
        size = max(_ROUND_UP, -(-size // _ROUND_UP) * _ROUND_UP)
        self.close()
        # The device first, which has less: page-locking memory for nothing would take it from everyone meanwhile.
        address = self._device.allocate(size) if self._on_device else 0
        try:
            self._host = self._device.allocate_host(size)
        except BaseException:
            if self._on_device:
                self._device.free(address)
            raise
        self.address = address or self._host.address
        self.size = size

    @property
    def host(self) -> "CudaHostMemory":
        """The host's side."""
        assert self._host is not None, "fit() comes first"
        return self._host

    def close(self) -> None:
        """Free both sides; nothing that was enqueued uses them."""
        if self._on_device and self.address:
            self._device.free(self.address)
        if self._host is not None:
            self._host.close()
        self._host = None
        self.address = self.size = 0


class Grown:
    """Memory of an output whose shape only the run determines."""

    def __init__(self, device: "CudaDevice") -> None:
        self.pair = Pair(device)
        self.shape: Shape = ()

    def reallocate(self, size: int) -> int:
        """An address on the device with at least ``size`` bytes behind it."""
        self.pair.fit(size)
        return self.pair.address

    def notify(self, shape: Shape) -> None:
        """The shape that the output has."""
        self.shape = shape

    def close(self) -> None:
        self.pair.close()
