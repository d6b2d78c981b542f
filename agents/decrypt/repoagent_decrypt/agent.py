"""The agent: a model with encrypted files in, a confidential directory with their plaintext out."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from repoagent.api import Agent, AgentModel, CancelledError, Parameters
from repoagent_decrypt.decryption import decrypting, refuse_unencrypted, scan_encrypted
from repoagent_decrypt.files.positional import Digest, Progress, Workers
from repoagent_decrypt.options import load_keys, parse_parameters
from repoagent_decrypt.tree import Totals, build_tree

__all__ = ["DecryptAgent"]


class DecryptAgent(Agent):
    """Decrypts at LOAD and does nothing else: the loader removes the plaintext. Its README has the parameters."""

    api_version = 1

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:
        """What the owner of a model could still do if the operator demanded the agent with ``parameters``."""
        if not parse_parameters(parameters, demanded=True).copy_unencrypted:
            return []
        return ["files that are not encrypted are accepted; leave out unencrypted = 'copy'"]

    def load(self, model: AgentModel) -> None:
        """Decrypt the files of ``model.location`` into a new confidential location."""
        options = parse_parameters(model.parameters, demanded=model.demanded, most_work=model.limits.scrypt_work_factor)
        keys = load_keys(options, model.key)
        try:
            tree = scan_encrypted(model.localize(), options.files, keys)
            if not options.copy_unencrypted:
                refuse_unencrypted(tree)
            target = model.acquire_location(confidential=True, size_hint=tree.room)
            with Workers(hashing=model.digests_wanted) as workers:
                totals = build_tree(
                    tree, target, decrypting(keys, workers), _progress(model, tree.size), partial(_keep, model)
                )
        finally:
            keys.wipe()
        model.update_location(target)
        model.report(bytes_read=totals.bytes_read, bytes_written=totals.bytes_written, note=_note(totals))


def _progress(model: AgentModel, total: int) -> Progress:
    def tell(done: int) -> None:
        if model.cancelled:
            raise CancelledError("the load was cancelled while files were decrypted")
        model.progress(done, total)

    return tell


def _keep(model: AgentModel, path: Path, digest: Digest) -> None:
    model.keep_digests(path, digest.status, {"sha256": digest.sha256})


def _note(totals: Totals) -> str:
    return f"{totals.transformed} decrypted, {totals.copied} copied"
