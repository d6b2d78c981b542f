"""What the owner of a model can still do although the operator demands the agent with certain parameters."""

from collections.abc import Iterator

from repoagent_scan.formats.format import ACCEPTED, RISKS
from repoagent_scan.options import Audit, Options

__all__ = ["weaknesses"]


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
