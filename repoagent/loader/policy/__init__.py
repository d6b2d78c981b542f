"""What the operator demands of every model, whatever the model itself states.

A model names its own agents, so anyone who can change a model could drop its guards. A policy closes that: a file that
only the operator writes (``--agent-policy policy.toml``) states which agents always run, and what a model may use.
"""

from repoagent.loader.policy.planner import PolicyPlanner
from repoagent.loader.policy.review import review
from repoagent.loader.policy.rules import AllowedAgent, DemandedAgent, Mode, Policy, Rule, read_policy

__all__ = ["AllowedAgent", "DemandedAgent", "Mode", "Policy", "PolicyPlanner", "Rule", "read_policy", "review"]
