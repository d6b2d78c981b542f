"""The planner that puts the operator's agents around the model's own, and checks what the model asks for."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from repoagent.api.model import Parameters
from repoagent.audit import NO_AUDIT, Audit
from repoagent.config import BACKEND_OF_PLATFORM, ModelConfig, executed_by, platform_of
from repoagent.errors import AgentError, InternalError, InvalidArgumentError, RepoAgentError
from repoagent.loader.agent_code import code_of
from repoagent.loader.agent_directory import PINNED_CODE
from repoagent.loader.discovery import AgentInfo, AgentRegistry
from repoagent.loader.plan import POLICY, ChainPlanner, ConfigPlanner, PlannedAgent
from repoagent.loader.policy.rules import AllowedAgent, DemandedAgent, Mode, Policy, Rule
from repoagent.programs import mark_secret, program_path

_UNNAMED: Final = (
    "the policy limits the backends or platforms of the model, and neither judges a command; the operator can allow "
    'commands by name: commands = ["vllm", "prepare"] in the rule'
)


def objection(info: AgentInfo, allowed: Sequence[AllowedAgent] | None) -> str | None:
    """Why ``info`` may not be used, or None if it may. ``allowed`` None allows every agent.

    Of an agent that is allowed by its digest, only code with that digest is imported from now on.
    """
    if allowed is None:
        return None
    named = [entry for entry in allowed if entry.name == info.name]
    if not named:
        return f"the policy allows only: {', '.join(sorted({entry.name for entry in allowed})) or 'no agent'}"
    reasons = [_mismatch(info, entry) for entry in named]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def _mismatch(info: AgentInfo, entry: AllowedAgent) -> str | None:
    if entry.distribution is not None and info.distribution != entry.distribution:
        return f"it comes from {info.distribution or info.target}, the policy wants distribution {entry.distribution}"
    if entry.version is not None and not _version_fits(info.version, entry.version):
        return f"its version is {info.version or 'unknown'}, the policy wants {entry.version}"
    if entry.record_sha256 is not None:
        return _digest_mismatch(info, entry.record_sha256)
    return None


def _version_fits(version: str | None, wanted: str) -> bool:
    if version is None:
        return False
    prefix = wanted.removesuffix("*")
    return version.startswith(prefix) if prefix != wanted else version == wanted


def _digest_mismatch(info: AgentInfo, wanted: str) -> str | None:
    try:
        code = code_of(info)
    except (OSError, ValueError) as error:
        return str(error)
    if code.digest != wanted:
        return f"its code has the digest {code.digest}, the policy wants {wanted}"
    PINNED_CODE.add(code)
    return None


def backend_objections(config: ModelConfig, rule: Rule) -> Iterator[str]:
    """Why ``rule`` does not allow ``config``; nothing if it does, or if the backend is not known yet.

    What executes the model decides, not what the configuration calls it: the platform follows from the backend.
    """
    backend, platform = executed_by(config), platform_of(config)
    if rule.platforms is not None and _contradicts(config, backend):
        yield (
            f"the platform '{config.platform}' is not one of the backend '{backend}', and the policy allows platforms "
            "by name: leave 'platform' out, or name one of that backend"
        )
    if rule.platforms is not None and platform and platform not in rule.platforms:
        yield _not_allowed("platform", platform, rule.platforms)
    if rule.backends is not None and backend and backend not in rule.backends:
        yield _not_allowed("backend", backend, rule.backends)
    for name in sorted({step.model_name for step in config.ensemble_scheduling.step}):
        if rule.members is not None and not any(fnmatchcase(name, pattern) for pattern in rule.members):
            yield _not_allowed("member", name, rule.members)


def command_objection(command: str | None, rule: Rule) -> str | None:
    """Why ``rule`` does not let the program ``command`` have the model; None if it does.

    A program has its path here, and is named by that, or by a file name by which PATH leads to it: a model may have a
    program of any name. Other receivers, such as ``prepare``, have a name alone. Backends and platforms describe
    neither. ``command`` None is one that is not known yet.
    """
    if rule.commands is None:
        limited = (rule.backends, rule.platforms) != (None, None)
        return _UNNAMED if limited else None
    if command is None:
        return None if rule.commands else _not_allowed("command", "any", ())
    named = (entry if os.sep in entry and not os.path.isabs(entry) else program_path(entry) for entry in rule.commands)
    return None if command in named or command in rule.commands else _not_allowed("command", command, rule.commands)


def _contradicts(config: ModelConfig, backend: str) -> bool:
    named = config.platform
    return bool(named and backend) and backend not in (named, BACKEND_OF_PLATFORM.get(named))


def _not_allowed(what: str, name: str, allowed: Sequence[str]) -> str:
    return f"the policy does not allow {what} '{name}'; allowed: {', '.join(allowed) or 'none'}"


logger = logging.getLogger("repoagent.loader.policy")

_OVERRIDDEN: Final = (
    "the policy does not allow a load to bring a configuration of its own, which no demanded agent verifies; load the "
    "model without 'config', or let the operator set overrides = true in the rule"
)


class PolicyPlanner:
    """A :class:`~repoagent.loader.plan.ChainPlanner` that applies a policy to what another planner states.

    Every load asks the planner, wherever it comes from (a file, an override, contents sent along, polling, an
    ensemble, on demand), so no road leads round the policy.
    """

    def __init__(
        self,
        policy: Policy,
        registry: AgentRegistry,
        inner: ChainPlanner | None = None,
        audit: Audit = NO_AUDIT,
    ) -> None:
        """``audit`` gets what the policy demands of each load, and every complaint."""
        self._policy = policy
        self._audit = audit
        self._registry = registry
        self._inner = inner or ConfigPlanner()
        _hide_keys(policy)
        _pin_code(policy, registry)

    def plan(self, model_name: str, config: ModelConfig | None, *, overridden: bool = False) -> Sequence[PlannedAgent]:
        """The demanded agents before, the model's own, the demanded agents after.

        In mode enforce, raises for what the rule does not allow: a configuration of the load's, an agent, whose code is
        not imported then, a backend or platform.
        """
        own = self._inner.plan(model_name, config, overridden=overridden)
        rule = self._policy.rule_for(model_name)
        if rule.mode is Mode.OFF:
            self._decided(model_name, rule, "off", {})
            return own
        if overridden and not rule.allows_overrides:
            self._complain(model_name, rule, InvalidArgumentError(_OVERRIDDEN))
        for entry in own:
            self._check_agent(model_name, rule, entry.name)
        if config is not None:
            self.admit(model_name, config)
        trusting = [replace(entry, trust_roots=rule.trust_roots) for entry in own]
        before = [_planned(demand, rule) for demand in rule.before]
        chain = [*before, *trusting, *(_planned(demand, rule) for demand in rule.after)]
        self._decided(model_name, rule, "planned", {"agents": [f"{entry.origin}: {entry.name}" for entry in chain]})
        return chain

    def admit(self, model_name: str, config: ModelConfig) -> None:
        """Check the backend and platform of a configuration: before the agents run, after, and once it is complete. In
        mode enforce, raises ``InternalError`` if they are not allowed."""
        self._inner.admit(model_name, config)
        rule = self._policy.rule_for(model_name)
        if rule.mode is Mode.OFF:
            return
        for reason in backend_objections(config, rule):
            self._complain(model_name, rule, InternalError(reason))

    def admit_command(self, model_name: str, command: str | None) -> None:
        """Check the program that is to have the model; in mode enforce, ``InternalError`` if it is not allowed."""
        self._inner.admit_command(model_name, command)
        rule = self._policy.rule_for(model_name)
        if rule.mode is not Mode.OFF and (reason := command_objection(command, rule)) is not None:
            self._complain(model_name, rule, InternalError(reason))

    def _check_agent(self, model_name: str, rule: Rule, agent: str) -> None:
        reason = objection(self._registry.find(agent), rule.agents)
        if reason is not None:
            self._complain(model_name, rule, AgentError(agent, f"not allowed for model '{model_name}': {reason}"))

    def _complain(self, model_name: str, rule: Rule, error: RepoAgentError) -> None:
        enforced = rule.mode is Mode.ENFORCE
        self._decided(model_name, rule, "refused" if enforced else "warned", {"reason": str(error)})
        if enforced:
            raise error
        logger.warning("policy %s, model '%s' (mode warn): %s", self._policy.source, model_name, error)

    def _decided(self, model_name: str, rule: Rule, result: str, details: Mapping[str, object]) -> None:
        number = next((index for index, one in enumerate(self._policy.rules, 1) if one is rule), 0)
        what = {"model": model_name, "policy": self._policy.source, "rule": number, "mode": rule.mode.value, **details}
        self._audit.record("policy", result, what)


def _pin_code(policy: Policy, registry: AgentRegistry) -> None:
    """Before any agent is imported; what does not fit a digest is refused when a model asks for it."""
    installed = {info.name: info for info in registry.list()}
    for entry in (entry for rule in policy.rules for entry in rule.agents or () if entry.record_sha256):
        if entry.name in installed:
            objection(installed[entry.name], [entry])


def _hide_keys(policy: Policy) -> None:
    """The variables that hold the operator's keys go to no program, also before the first agent asks for one."""
    for value in (value for rule in policy.rules for demand in rule.demanded for _, value in demand.parameters):
        scheme, _, name = value.partition(":")
        if scheme == "env":
            mark_secret(name)


def _planned(demand: DemandedAgent, rule: Rule) -> PlannedAgent:
    required = rule.mode is Mode.ENFORCE
    return PlannedAgent(demand.name, Parameters(demand.parameters), POLICY, required, rule.trust_roots)
