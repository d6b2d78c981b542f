"""The agent: refuses a model with files that run code, or of unknown formats."""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from repoagent.api import (
    Agent,
    AgentModel,
    ArtifactType,
    InternalError,
    InvalidArgumentError,
    Parameters,
    UnsupportedError,
    install_hint,
    opened_files,
    read_json,
)
from repoagent_scan.formats.format import ACCEPTED, RISKS
from repoagent_scan.scan_options import Audit, Options, parse_parameters
from repoagent_scan.scanning import Finding, Scanned, describe, scan

_LARGEST_REPORT: Final = 256 << 20
_REFUSED: Final = frozenset({"critical"})
_QUIET: Final = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1", "NO_COLOR": "1"}


def has_modelaudit() -> bool:
    """Whether modelaudit can be imported by this interpreter."""
    return find_spec("modelaudit") is not None


def run_modelaudit(model: AgentModel, root: Path, options: Options) -> list[Finding] | None:
    """What modelaudit finds critical below ``root``; None if it is not asked.

    Raises:
        UnsupportedError: it is required and not installed.
        UnavailableError: it took more time than ``options.timeout``.
        InternalError: it failed. A scan that did not end proves nothing, so the model is refused.
    """
    if options.audit is Audit.OFF or (options.audit is Audit.AUTO and not has_modelaudit()):
        return None
    if not has_modelaudit():
        raise UnsupportedError(
            f"modelaudit is required and not installed; {install_hint('repoagent-scan', 'modelaudit')}"
        )
    with tempfile.TemporaryDirectory(prefix="repoagent-scan-") as private:
        report = Path(private) / "report.json"
        argv = [sys.executable, "-P", "-m", "repoagent_scan.modelaudit_child", str(root), str(report)]
        model.run_child(argv, timeout=options.timeout, env={**_QUIET, "HOME": private})
        return list(_report_findings(_read_report(report), root))


def _read_report(report: Path) -> Mapping[str, Any]:
    if not report.exists() or report.stat().st_size > _LARGEST_REPORT:
        raise InternalError("modelaudit left no report, or one of more than 256 MiB")
    document = read_json(report.read_bytes())
    if not isinstance(document, dict) or not isinstance(document.get("issues"), list):
        raise InternalError("modelaudit's report has no list of issues")
    return document


def _report_findings(report: Mapping[str, Any], root: Path) -> Iterator[Finding]:
    for issue in report["issues"]:
        if isinstance(issue, dict) and str(issue.get("severity", "")).lower() in _REFUSED:
            where = str(issue.get("location") or "").replace(f"{root}/", "").split(" ")[0]
            yield Finding(where or "the model", f"modelaudit: {str(issue.get('message', ''))[:300]}")


def weaknesses(options: Options) -> Iterator[str]:
    """One sentence for each way round a scan with ``options``."""
    for format_ in sorted(options.formats - ACCEPTED):
        yield f'allow = "{format_}" accepts files of that kind from the model\'s owner: {RISKS[format_]}'
    for pattern in options.files:
        yield f'allow_file = "{pattern}" lets the model\'s owner put anything there; leave it out'
    for operator in sorted(options.operators):
        yield f'allow_operator = "{operator}" accepts operators that no scan looks into; pin the library that has them'
    if options.audit is Audit.AUTO:
        yield 'without modelaudit = "required", a server on which modelaudit is missing scans formats only'


class ScanAgent(Agent):
    """Looks at the files of a model at LOAD and does nothing else. Its README has the parameters."""

    api_version = 1
    guard = True

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:
        """What the owner of a model could still do if the operator demanded the agent with ``parameters``."""
        return list(weaknesses(parse_parameters(parameters)))

    def load(self, model: AgentModel) -> None:
        """Look at the files at ``model.location``, and raise if one should not be loaded."""
        options = parse_parameters(model.parameters)
        root = model.localize()
        scanned = scan(
            root,
            options,
            opened=opened_files(root, model.config, name=model.name),
            cancelled=lambda: model.cancelled,
            progress=lambda done, total: model.progress(done, total, "files"),
        )
        _refuse(scanned.findings)
        audited = run_modelaudit(model, root, options)
        _refuse(audited or ())
        if model.artifact_type is not ArtifactType.FILESYSTEM:
            # What was judged is this copy, so this copy is what goes on.
            model.update_location(root)
        model.report(bytes_read=scanned.bytes_seen, note=_note(scanned, audited))


def _refuse(findings: Sequence[Finding]) -> None:
    if findings:
        raise InvalidArgumentError(describe(findings))


def _note(scanned: Scanned, audited: Sequence[Finding] | None) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(scanned.formats.items()))
    second = "modelaudit did not look" if audited is None else "modelaudit found nothing critical"
    return f"{counts or 'no files'}; {second}"
