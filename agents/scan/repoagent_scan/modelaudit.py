"""The scanner modelaudit, if it is installed, in a child process with limits.

The child has no network to speak of: modelaudit's telemetry is switched off, and paths are all that it is given. It
can take as much memory and time as the limits allow, and whatever it does wrong, it does there.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from repoagent.api import AgentModel, InternalError, UnsupportedError, install_hint, read_json
from repoagent_scan.findings import Finding
from repoagent_scan.options import Audit, Options

__all__ = ["audit", "is_installed"]

_LARGEST_REPORT: Final = 256 << 20
_REFUSED: Final = frozenset({"critical"})
_QUIET: Final = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1", "NO_COLOR": "1"}


def is_installed() -> bool:
    """Whether modelaudit can be imported by this interpreter."""
    return find_spec("modelaudit") is not None


def audit(model: AgentModel, root: Path, options: Options) -> list[Finding] | None:
    """What modelaudit finds critical below ``root``; None if it is not asked.

    Raises:
        UnsupportedError: it is required and not installed.
        UnavailableError: it took more time than ``options.timeout``.
        InternalError: it failed. A scan that did not end proves nothing, so the model is refused.
    """
    if options.audit is Audit.OFF or (options.audit is Audit.AUTO and not is_installed()):
        return None
    if not is_installed():
        raise UnsupportedError(
            f"modelaudit is required and not installed; {install_hint('repoagent-scan', 'modelaudit')}"
        )
    with tempfile.TemporaryDirectory(prefix="repoagent-scan-") as private:
        report = Path(private) / "report.json"
        argv = [sys.executable, "-P", "-m", "repoagent_scan.modelaudit_child", str(root), str(report)]
        model.run_child(argv, timeout=options.timeout, env={**_QUIET, "HOME": private})
        return list(_findings(_read(report), root))


def _read(report: Path) -> Mapping[str, Any]:
    if not report.exists() or report.stat().st_size > _LARGEST_REPORT:
        raise InternalError("modelaudit left no report, or one of more than 256 MiB")
    document = read_json(report.read_bytes())
    if not isinstance(document, dict) or not isinstance(document.get("issues"), list):
        raise InternalError("modelaudit's report has no list of issues")
    return document


def _findings(report: Mapping[str, Any], root: Path) -> Iterator[Finding]:
    for issue in report["issues"]:
        if isinstance(issue, dict) and str(issue.get("severity", "")).lower() in _REFUSED:
            where = str(issue.get("location") or "").replace(f"{root}/", "").split(" ")[0]
            yield Finding(where or "the model", f"modelaudit: {str(issue.get('message', ''))[:300]}")
