"""Which versions of a model its version policy serves."""

from collections.abc import Collection

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["no_version", "select_versions"]


def select_versions(config: ModelConfig, available: Collection[int]) -> list[int]:
    """The versions to serve out of ``available``, ascending.

    Without a policy the highest version is served. A policy message that is there but empty serves all of them, as
    in Triton. The result is empty when nothing that the policy asks for is available.
    """
    versions = sorted(set(available))
    if not config.HasField("version_policy"):
        return versions[-1:]
    policy = config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            return versions[max(0, len(versions) - policy.latest.num_versions) :]
        case "specific":
            wanted = set(policy.specific.versions)
            return [version for version in versions if version in wanted]
        case _:
            return versions


def no_version(model: str, available: Collection[int]) -> str:
    """What to say of a ``model`` of which :func:`select_versions` leaves nothing: Triton's text, and what there is."""
    there = ", ".join(str(version) for version in sorted(set(available)))
    found = f"there are only {there}" if there else "there is no version directory (1, 2, ...)"
    if model.isdecimal() and not there:  # the directory of a model in the place of a repository
        found += f"; '{model}' is itself the name of one: the repository may be a directory higher"
    return f"at least one version must be available under the version policy of model '{model}': {found}"
