"""What the owner of a model can still do although the operator demands the agent with certain parameters."""

from collections.abc import Iterator

from repoagent_checksum.digest_file import STANDARD_NAMES
from repoagent_checksum.options import Request

__all__ = ["weaknesses"]

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
