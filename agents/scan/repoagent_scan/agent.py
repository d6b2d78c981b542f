"""The agent: refuses a model with files that run code, or of unknown formats."""

from collections.abc import Iterator, Sequence

from repoagent.api import Agent, AgentModel, ArtifactType, InvalidArgumentError, Parameters, opened_files
from repoagent_scan.findings import Finding, describe
from repoagent_scan.formats.format import ACCEPTED, RISKS
from repoagent_scan.modelaudit import audit
from repoagent_scan.options import Audit, Options, parse_parameters
from repoagent_scan.scanning import Scanned, scan

__all__ = ["ScanAgent", "weaknesses"]


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
