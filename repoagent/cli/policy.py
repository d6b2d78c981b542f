"""``repoagent policy check | explain``: what the operator's policy states, before a server relies on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repoagent.cli.flags import agent_flags, registry_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repoagent.loader.policy import DemandedAgent, Policy, Rule

_file = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def policy() -> None:
    """Check and explain the file that `repoagent serve --agent-policy` takes."""


@policy.command("check")
@_file
@agent_flags
@click.option("--strict", is_flag=True, help="Exit with 1 on a warning, too.")
def check_policy(file: Path, strict: bool, **flags: Any) -> None:
    """Check the policy in FILE.

    Looks for the agents that it demands, and warns of what a model's owner could still do.

    The demanded agents are imported. Exits 1 if the server would not start, or would refuse every model.
    """
    from repoagent.errors import AgentNotFoundError
    from repoagent.loader.policy import review

    read = _read(file)
    registry = registry_of(**flags)
    missing = []
    for demanded in {demand.name for rule in read.rules for demand in rule.demanded}:
        try:
            registry.find(demanded)
        except AgentNotFoundError as error:
            missing.append(str(error))
    for line in sorted(missing):
        click.echo(line, err=True)
    if missing:
        raise SystemExit(1)
    warnings = list(review(read, registry))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if warnings and strict:
        raise SystemExit(1)
    click.echo(f"{file}: ok ({len(read.rules)} rule{'s' if len(read.rules) != 1 else ''})")


@policy.command("explain")
@click.argument("model")
@click.option("--agent-policy", "file", type=click.Path(path_type=Path), required=True, help="The policy.")
def explain(model: str, file: Path) -> None:
    """Show what the policy means for MODEL.

    MODEL is the name of a model, or its directory or URL, of which the last part is the name.
    """
    from repoagent.loader.policy.rules import NO_RULE

    read = _read(file)
    model = _name(model)
    rule = read.rule_for(model)
    if rule is NO_RULE:
        click.echo(f"{model}: no rule of {file} is for it; it runs the agents that its configuration names")
        return
    click.echo(f"{model}: rule {list(read.rules).index(rule) + 1} of {file} (models {', '.join(rule.models)})")
    for line in _lines(rule):
        click.echo(f"  {line}")


def _name(model: str) -> str:
    """The name that rules look at: a server calls a model by the last part of its path."""
    if "://" in model:
        name = model.rstrip("/").rpartition("/")[2]
    elif "/" in model or model in ("", ".", ".."):
        if not model or not Path(model).is_dir():
            raise click.BadParameter(
                f"there is no directory '{model}'; give a model's name, directory or URL", param_hint="MODEL"
            )
        name = Path(model).resolve().name
    else:
        name = model
    return name


def _read(file: Path) -> "Policy":
    from repoagent.loader.policy import read_policy

    return read_policy(file)


def _lines(rule: "Rule") -> "Iterator[str]":
    yield f"mode: {rule.mode.value}"
    yield f"agents that run first: {_demanded(rule.before)}"
    yield f"agents that run last: {_demanded(rule.after)}"
    allowed = None if rule.agents is None else [entry.describe() for entry in rule.agents]
    yield f"agents that the model may name: {_allowed(allowed)}"
    yield f"backends: {_allowed(rule.backends)}"
    yield f"platforms: {_allowed(rule.platforms)}"
    limited = (rule.backends, rule.platforms) != (None, None)
    yield f"commands (repoagent run, prepare): {_allowed(() if rule.commands is None and limited else rule.commands)}"
    yield f"a load may bring a configuration: {'yes' if rule.allows_overrides else 'no'}"
    for name, path in rule.trust_roots.items():
        yield f"trust root {name}: {path}"


def _demanded(demands: "Sequence[DemandedAgent]") -> str:
    # Parameters are not shown: they may hold references that are no one else's business.
    return ", ".join(demand.name for demand in demands) or "none"


def _allowed(names: "Sequence[str] | None") -> str:
    return "any" if names is None else ", ".join(names) or "none"
