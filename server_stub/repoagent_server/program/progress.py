"""Following loads on the terminal of a person who watches the server start."""

from repoagent.api.hooks import LoadEvent, hookimpl
from repoagent.cli.progress import ProgressLine

__all__ = ["EndOfLoads"]


class EndOfLoads:
    """An observer that takes a load off the line when it has ended."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line

    @hookimpl
    def load_finished(self, event: LoadEvent) -> None:
        self._line.finished(event.model)

    @hookimpl
    def unload_finished(self, event: LoadEvent) -> None:
        self._line.finished(event.model)
