"""``--strict-model-config``, which Triton has replaced: it works, and the log names what takes its place."""

import click
from click.core import ParameterSource

__all__ = ["take_strictness"]


def take_strictness(strict: bool, disable: bool) -> tuple[bool, tuple[str, ...]]:
    """Whether configurations must be complete, and what to warn of; inside a command only.

    Args:
        strict: ``--strict-model-config``, which is deprecated.
        disable: ``--disable-auto-complete-config``, which overrules it.
    """
    source = click.get_current_context().get_parameter_source("strict_model_config")
    if source in (None, ParameterSource.DEFAULT):
        return disable, ()
    warnings = ["'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."]
    if disable and not strict:
        warnings.append(
            "Overriding deprecated '--strict-model-config' from False to True in favor of "
            "'--disable-auto-complete-config'!"
        )
    return strict or disable, tuple(warnings)
