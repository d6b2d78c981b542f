"""What the owner of a model can still do although a rule is for it, and what the operator would have to write."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from repoagent.api.model import Parameters
from repoagent.config import BACKEND_OF_PLATFORM, PLATFORM_OF_BACKEND
from repoagent.errors import RepoAgentError
from repoagent.loader.candidates import AgentSource
from repoagent.loader.policy.rules import DemandedAgent, Mode, Policy, Rule

_EVERYTHING: Final = "*"
_SOME: Final = ("", "\x01", "~-0" * 20)
"""What a ``*`` may stand for; no pattern has it by chance."""
_REPLACING: Final = frozenset({"convert", "fetch"})
"""Agents that put other files in the place of those that were there."""
_OWN: Final = "*"
"""In an order of agents: those that the model names."""
_CODE: Final = ("python", "tensorrt")
"""The backends whose models can bring code."""


def review(policy: Policy, agents: AgentSource) -> Iterator[str]:
    """One warning for each way in which a rule does not hold; each states what would close it.

    The demanded agents are imported: each knows best what its parameters leave open.
    """
    for number, rule in enumerate(policy.rules, 1):
        place = f"rule {number} (models {', '.join(rule.models)})"
        hidden = [pattern for pattern in rule.models if _is_hidden(pattern, policy.rules[: number - 1])]
        if hidden:
            yield f"{place}: an earlier rule decides for {', '.join(hidden)}; the first that matches a model counts"
        yield from (f"{place}: {warning}" for warning in _review_rule(rule, agents))
    if not any(_EVERYTHING in rule.models for rule in policy.rules):
        yield 'no rule is for every model: one that no rule is for is not judged; end with a rule for models = ["*"]'


def _is_hidden(pattern: str, earlier: Sequence[Rule]) -> bool:
    """Whether one earlier pattern matches all that ``pattern`` matches, as far as some names can show."""
    if not set("*?[") & set(pattern):
        return any(rule.matches(pattern) for rule in earlier)
    names = [pattern.replace("*", some).replace("?", one) for some in _SOME for one in "\x01~"]
    wider = (other for rule in earlier for other in rule.models)
    return any(pattern == other or all(fnmatchcase(name, other) for name in names) for other in wider)


def _review_rule(rule: Rule, agents: AgentSource) -> Iterator[str]:
    if rule.mode is not Mode.ENFORCE:
        yield f'mode = "{rule.mode.value}" refuses nothing; set mode = "enforce"'
    if rule.mode is Mode.OFF or (() in (rule.backends, rule.platforms) and not rule.commands):
        return
    guards = []
    for demand in rule.demanded:
        weaknesses, is_guard = _weaknesses(demand, agents)
        guards += [demand] if is_guard and not weaknesses else []
        yield from (f"agent '{demand.name}': {weakness}" for weakness in weaknesses)
    yield from _review_files(rule, guards)
    yield from _review_order(rule, [demand.name for demand in guards])
    yield from _review_backends(rule, guarded=bool(guards))


def _weaknesses(demand: DemandedAgent, agents: AgentSource) -> tuple[Sequence[str], bool]:
    """The weak points of the agent's parameters, and whether it judges files. A missing agent is reported elsewhere."""
    try:
        agent = agents.load(demand.name)
        return list(agent.weaknesses(Parameters(demand.parameters))), agent.guard
    except RepoAgentError as error:
        return [f"every load is refused: {error}"], False


def _review_files(rule: Rule, guards: Sequence[DemandedAgent]) -> Iterator[str]:
    if not guards:
        yield (
            "no demanded guard covers every file, so the model's owner can replace the weights and the configuration; "
            "demand 'checksum' with trusted_manifest, or with a manifest whose digest the policy has"
        )
    if rule.demanded and rule.allows_overrides:
        yield "overrides = true lets a load request replace the configuration that the guards verified; leave it out"
    if rule.before and not rule.after and rule.agents is None:
        yield (
            "the model may name any agent, which runs after those in 'before' and can change or move what they "
            "verified; set agents = [], or list those that it may name"
        )


def _review_order(rule: Rule, guards: Sequence[str]) -> Iterator[str]:
    """What replaces the files behind the last guard that judged them."""
    order = [*(demand.name for demand in rule.before), *(() if rule.agents is None else (_OWN,))]
    order += [demand.name for demand in rule.after]
    judges = [place for place, name in enumerate(order) if name in guards and name not in _REPLACING]
    if not judges:
        return
    behind = order[judges[-1] + 1 :]
    for name in sorted(_REPLACING & {*behind, *(entry.name for entry in rule.agents or () if _OWN in behind)}):
        yield (
            f"agent '{name}' runs after '{order[judges[-1]]}' and puts files of its own in the place of those that "
            "were judged; demand 'scan' or 'checksum' in 'after'"
        )


def _review_backends(rule: Rule, guarded: bool) -> Iterator[str]:
    if rule.backends is None and rule.platforms is None and not guarded:
        yield "models may use any backend, and a Python model is a program; set backends or platforms"
    for name in _CODE if not guarded else ():
        if _allows(rule, name) and (rule.backends, rule.platforms) != (None, None):
            yield f"a model of the backend '{name}' can run code as the server; leave it out, or pin every file"
    if _allows(rule, "ensemble") and rule.members is None and not guarded and _EVERYTHING not in rule.models:
        yield (
            "an ensemble may have any model of the server as a step, also those that this rule is not for; set "
            "members, such as the patterns of models"
        )
    for platform in rule.platforms or ():
        if platform in PLATFORM_OF_BACKEND:
            yield f"'{platform}' is a backend, whose platform is '{PLATFORM_OF_BACKEND[platform]}'"
    for backend in rule.backends or ():
        if BACKEND_OF_PLATFORM.get(backend, backend) != backend:
            yield f"'{backend}' is a platform, whose backend is '{BACKEND_OF_PLATFORM[backend]}'"


def _allows(rule: Rule, backend: str) -> bool:
    platforms = {BACKEND_OF_PLATFORM.get(platform, platform) for platform in rule.platforms or (backend,)}
    return backend in (rule.backends or (backend,)) and backend in platforms
