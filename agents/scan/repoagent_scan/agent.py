"""The agent: refuses a model with files that run code, or of unknown formats."""

from collections.abc import Sequence

from repoagent.api import Agent, AgentModel, ArtifactType, InvalidArgumentError, Parameters, opened_files
from repoagent_scan.findings import Finding, describe
from repoagent_scan.modelaudit import audit
from repoagent_scan.options import parse_parameters
from repoagent_scan.scanning import Scanned, scan
from repoagent_scan.weaknesses import weaknesses

__all__ = ["ScanAgent"]


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
        audited = audit(model, root, options)
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
