"""The planner that puts the operator's agents around the model's own, and checks what the model asks for."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from repoagent.api.model import Parameters
from repoagent.audit import NO_AUDIT, Audit
from repoagent.config import ModelConfig
from repoagent.errors import AgentError, InternalError, InvalidArgumentError, RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.plan import POLICY, ChainPlanner, ConfigPlanner, PlannedAgent
from repoagent.loader.policy.allowed import backend_objections, command_objection, objection
from repoagent.loader.policy.rules import DemandedAgent, Mode, Policy, Rule
from repoagent.storage.secrets.programs import mark_secret

__all__ = ["PolicyPlanner"]

logger = logging.getLogger("repoagent.loader.policy")

_OVERRIDDEN: Final = (
    "the policy does not allow a load to bring a configuration of its own, which no demanded agent verifies; load the "
    "model without 'config', or let the operator set overrides = true in the rule"
)


class PolicyPlanner:
    """A :class:`~repoagent.loader.plan.ChainPlanner` that applies a policy to what another planner says.

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

        Raises:
            InvalidArgumentError: in mode enforce, the load brings a configuration and the rule does not allow that.
            AgentError: in mode enforce, an agent that the rule does not allow. Its code is not imported.
            InternalError: in mode enforce, a backend or platform that the rule does not allow.
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
        """Check the backend and platform of a configuration: before the agents run, after, and once it is complete.

        Raises:
            InternalError: in mode enforce, they are not allowed.
        """
        self._inner.admit(model_name, config)
        rule = self._policy.rule_for(model_name)
        if rule.mode is Mode.OFF:
            return
        for reason in backend_objections(config, rule):
            self._complain(model_name, rule, InternalError(reason))

    def admit_command(self, model_name: str, command: str | None) -> None:
        """Check the program that is to have the model.

        Raises:
            InternalError: in mode enforce, it is not allowed.
        """
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
