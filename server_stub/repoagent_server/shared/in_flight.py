"""How many requests a front end is answering, so that it can stop when none is."""

import asyncio


class InFlight:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._idle: asyncio.Event | None = None

    def started(self) -> None:
        """A request is being answered."""
        self._count += 1

    def finished(self) -> None:
        """Its response has been given, whether or not the client was still there."""
        self._count -= 1
        if self._idle is not None and self._count == 0:
            self._idle.set()

    async def idle(self, timeout: float) -> bool:
        """Return once no request is being answered; False if ``timeout`` seconds are up before."""
        if self._count == 0:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True
