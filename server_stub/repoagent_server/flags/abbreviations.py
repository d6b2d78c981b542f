"""Flags may be shortened as long as only one begins like that: ``--model-repo``. Triton takes them so."""

from collections.abc import Mapping, Sequence
from itertools import islice

import click

from repoagent_server.flags.values import BOOLEAN


class AbbreviatingCommand(click.Command):
    """A command whose flags may be shortened."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``, with every flag in full.

        Raises:
            click.UsageError: also for a flag that several begin like.
        """
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        names = {name: option for option in options for name in option.opts if name.startswith("--")}
        return super().parse_args(ctx, _in_full(args, names, ctx))


def _in_full(args: Sequence[str], names: Mapping[str, click.Option], ctx: click.Context) -> list[str]:
    result: list[str] = []
    rest = iter(args)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if argument == "--" or not flag.startswith("--"):
            result.append(argument)
            continue
        name = _full_name(flag, names, ctx)
        result.append(name + equals + value)
        option = names.get(name)
        if option is not None and not equals and not _stands_alone(option):
            result += islice(rest, 1)  # its value, whatever it looks like
    return result


def _full_name(flag: str, names: Mapping[str, click.Option], ctx: click.Context) -> str:
    """The one name that begins with ``flag``; ``flag`` itself if none does, for click to complain about."""
    if flag in names or flag == "--":
        return flag
    meant = {name: option for name, option in names.items() if name.startswith(flag)}
    if len({option.name for option in meant.values()}) > 1:
        raise click.UsageError(f"flag '{flag}' is ambiguous; it may be {', '.join(sorted(meant))}", ctx)
    return next(iter(meant), flag)


def _stands_alone(option: click.Option) -> bool:
    """Whether ``option`` can be given without a value, so that what looks like a flag after it is one."""
    return option.is_flag or option.type is BOOLEAN
