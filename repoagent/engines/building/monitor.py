"""Progress out of a build, and an end to it."""

from collections.abc import Callable

from repoagent.engines.bindings import trt

__all__ = ["Monitor"]


class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
    """Reports the steps of the phase that has most of them under way, and ends the build once it is cancelled.

    The library calls it from several threads, and swallows what it raises.
    """

    def __init__(self, progress: Callable[[int, int | None, str], None], cancelled: Callable[[], bool]) -> None:
        trt.IProgressMonitor.__init__(self)
        self._progress = progress
        self._cancelled = cancelled
        self._steps: dict[str, int] = {}
        self._done = 0
        self._known = 0
        self.ended = False
        """Whether it has ended the build."""

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase of so many steps begins."""
        self._steps[phase_name] = num_steps
        self._known += num_steps

    def step_complete(self, phase_name: str, step: int) -> bool:
        """A step is done; False ends the build."""
        self._done += 1
        self._progress(min(self._done, self._known), self._known, phase_name[:1].lower() + phase_name[1:])
        if self._cancelled():
            self.ended = True
        return not self.ended

    def phase_finish(self, phase_name: str) -> None:
        """A phase ended; of one that ended early the rest will not come."""
        self._steps.pop(phase_name, None)

    def __repr__(self) -> str:
        return f"<Monitor {self._done} of {self._known}>"
