"""What every agent promises, as tests to inherit."""

from repoagent.testing.contract.isolation import Documents, Isolation
from repoagent.testing.contract.lifecycle import Failures, Life

__all__ = ["AgentContract"]


class AgentContract(Life, Failures, Isolation, Documents):
    """Inherit it in a test file, name the agent and its parameters, and pytest proves the rest::

        class TestContract(AgentContract):
            agent = SizeLimitAgent
            parameters = {"max_bytes": "100"}
            good_model = {"1/model.onnx": bytes(50)}
            bad_model = {"1/model.onnx": bytes(200)}
            readme = Path(__file__).parents[1] / "README.md"

    An attribute that has to be computed may be a property. The attributes are those of
    :class:`~repoagent.testing.contract.subject.Subject`; the names of the inherited tests state what is proved. A test
    that has nothing to look at is skipped, with the attribute to set.
    """
