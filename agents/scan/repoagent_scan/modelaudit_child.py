"""The child process that runs modelaudit: ``python -m repoagent_scan.modelaudit_child ROOT REPORT``.

Ends with 0 when the scan came to its end, whatever it found, and with 1 otherwise.
"""

import resource
import sys
from typing import Final

_MEMORY: Final = 8 << 30
_FILE: Final = 1 << 30
_COMPLETED: Final = (0, 1)
"""modelaudit's own exit codes: nothing found, something found. 2 is a scan that failed."""


def main(root: str, report: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from modelaudit.cli import main as modelaudit

    sys.argv = ["modelaudit", "scan", "--strict", "--no-cache", "--format", "json", "--output", report, root]
    try:
        modelaudit()
    except SystemExit as end:
        return 0 if (end.code or 0) in _COMPLETED else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
