"""The agent: refuses a model whose files are not what its parameters or its digest file state."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from repoagent.api import Agent, AgentModel, ArtifactType, InvalidArgumentError, Parameters
from repoagent_checksum.check import Observer, Verdict, check, describe, find_digest_files
from repoagent_checksum.checksum_options import Request, parse_parameters, trusted_entries
from repoagent_checksum.digest_file import STANDARD_NAMES

_REMEDY = "keep a digest file beside the policy and demand it with trusted_manifest, or pin the manifest's own digest"


def weaknesses(request: Request) -> Iterator[str]:
    """One sentence for each way round a check of ``request``; nothing if it covers every file of the model."""
    pinned = {file.entry.path for file in request.files if not file.entry.algorithm.weak}
    unpinned = [name for name in request.manifests if name not in pinned]
    if request.is_empty:
        yield f"it has no parameter, so it reads {STANDARD_NAMES[0]}, which the model's owner can rewrite; {_REMEDY}"
    for name in unpinned:
        yield (
            f"the model's owner can rewrite the manifest '{name}'; add the parameter \"SHA256:{name}\" with the digest "
            f"of that file, or use trusted_manifest"
        )
    for file in request.files:
        if file.entry.algorithm.weak:
            yield f"{file.entry.algorithm.name} of '{file.entry.path}' can be forged; use SHA256"
    whole = request.trusted or any("/" not in name for name in request.manifests)
    if not request.is_empty and not whole:
        yield f"files that it does not name, such as a new version directory, are not checked; {_REMEDY}"


class ChecksumAgent(Agent):
    """Compares digests at LOAD and does nothing else. Its README has the parameters."""

    api_version = 1
    guard = True
    compares_digests = True

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:
        """What the owner of a model could still change if the operator demanded the agent with ``parameters``."""
        return list(weaknesses(parse_parameters(parameters.items())))

    def load(self, model: AgentModel) -> None:
        """Check the files at ``model.location``, and raise if one is not as it should be."""
        request = parse_parameters(model.parameters.items())
        root = model.localize()
        request = _with_standard_manifests(request, root)
        if request.is_empty and model.demanded:
            raise InvalidArgumentError(
                "the operator's policy demands this check, and there is nothing to check: the model has no digest "
                "file, and the policy gives no parameter"
            )
        trusted = trusted_entries(request, model.trust_roots)
        verdict = check(root, request, trusted=trusted, observer=_observer(model), thorough=False)
        if verdict.findings:
            raise InvalidArgumentError(describe(verdict.findings))
        if model.artifact_type is not ArtifactType.FILESYSTEM:
            # What was judged is this copy, so this copy is what goes on.
            model.update_location(root)
        _report(model, request, verdict)


def _with_standard_manifests(request: Request, root: Path) -> Request:
    return replace(request, manifests=find_digest_files(root)) if request.is_empty else request


def _observer(model: AgentModel) -> Observer:
    return Observer(digests=model.digests)


def _report(model: AgentModel, request: Request, verdict: Verdict) -> None:
    digests = dict(verdict.digests or {})
    if verdict.tree_digest:
        digests["tree"] = verdict.tree_digest
    model.report(digests=digests, note=_note(request, verdict))


def _note(request: Request, verdict: Verdict) -> str:
    if request.is_empty:
        return "nothing was checked: no parameter, and no digest file in the model's directory"
    count = f"{verdict.files} file{'' if verdict.files == 1 else 's'} verified"
    if verdict.weak:
        return f"{count}; {', '.join(verdict.weak)}: enough against accidents, not against an attacker"
    return count
