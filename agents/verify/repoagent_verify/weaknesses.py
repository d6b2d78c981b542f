"""What the owner of a model can still do although the operator demands the agent with certain parameters.

An older model of the same signer is no weakness of the parameters: it is signed like the newer one.
"""

from collections.abc import Iterator

from repoagent_verify.options import Options

__all__ = ["weaknesses"]


def weaknesses(options: Options, *, certificates: bool) -> Iterator[str]:
    """One sentence for each way round a check of ``options``; nothing if it covers every file of the model.

    ``certificates``: the parameters name certificates to trust.
    """
    yield from _directory(options.directory)
    yield from _files(options)
    yield from _signers(options, certificates)


def _directory(directory: str) -> Iterator[str]:
    if directory == ".":
        return
    also = "" if directory == "*" else ", and add a version directory that is served instead"
    yield (
        f'directory = "{directory}" leaves the rest of the model unsigned: its owner can rewrite config.pbtxt{also}; '
        "leave 'directory' out and sign the whole model"
    )


def _files(options: Options) -> Iterator[str]:
    if options.anything:
        yield 'unsigned = "*" lets the model\'s owner add any file, such as a new version directory; leave it out'
    for path in options.unsigned:
        yield f"the model's owner can write anything to '{path}', which need not be signed; leave it out of 'unsigned'"
    if options.strict is False:
        yield "strict = false accepts files that the signer, or the specification, left unsigned; leave it out"


def _signers(options: Options, certificates: bool) -> Iterator[str]:
    if options.identity is not None and options.identity.endswith("*"):
        yield (
            f'identity = "{options.identity}" accepts what that workflow signs on any such branch or tag; '
            "protect them, or name one"
        )
    if options.at is not None:
        yield (
            f"at = {options.at.isoformat()} accepts certificates that have expired since, also with a stolen key; let "
            "the signer sign again, and leave it out"
        )
    if certificates and options.subject is None:
        yield (
            "every certificate for signing code that leads to the trusted one is accepted; name the signer with "
            "'subject'"
        )
