"""What a server writes to its standard error, line by line as it comes."""

import re
import subprocess
import threading
from queue import SimpleQueue
from typing import Final

_PATIENCE: Final = 120


class ServerLog:
    """Reads the pipe of a process that was started with ``stderr=PIPE, text=True``, until that ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: SimpleQueue[str] = SimpleQueue()
        self.text = ""
        """The lines that have been looked at."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def until(self, *patterns: str) -> list[re.Match[str]]:
        """The first match of each pattern among the lines from now on, once all are there."""
        found: dict[str, re.Match[str]] = {}
        while len(found) < len(patterns):
            line = self._lines.get(timeout=_PATIENCE)
            assert line, f"the server ended:\n{self.text}"
            self.text += line
            found |= {one: match for one in patterns if one not in found and (match := re.search(one, line))}
        return [found[one] for one in patterns]

    def ports(self, *services: str) -> list[int]:
        """The ports of services, as the server calls them, once it has started them."""
        return [int(match[1]) for match in self.until(*(rf"Started {one} at [\d.]+:(\d+)" for one in services))]
