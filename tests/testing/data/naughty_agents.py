"""Agents that break one promise each, under the contract. Run by test_contract.py, which knows who must fail where."""

import logging
import tempfile
from pathlib import Path

from repoagent.api import Agent, AgentModel
from repoagent.testing import AgentContract

SECRET = b"correct horse battery staple"
MARKER = b"only the plaintext has this"


class Checks(Agent):
    """Well-behaved: refuses a model with the file 1/bad."""

    api_version = 1

    def load(self, model: AgentModel) -> None:
        if (model.localize() / "1" / "bad").exists():
            raise ValueError("the model is bad: 1/bad exists")


class Contract(AgentContract):
    agent = Checks
    good_model = {"1/model.bin": b"weights"}
    bad_model = {"1/bad": b""}


class TestWellBehaved(Contract):
    """Fails nowhere."""


class TestWritesIntoTheModel(Contract):
    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            Path(model.location, "stamp").touch()


class TestLeavesATemporaryFile(Contract):
    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            tempfile.mkdtemp()


class TestLeavesAFileInTheWorkingDirectory(Contract):
    class agent(Checks):
        """."""

        def load_fail(self, model: AgentModel) -> None:
            Path("failures.txt").touch()


class TestAcceptsTheBadModel(Contract):
    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            pass


class TestRefusesEveryModel(Contract):
    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            raise ValueError("nothing is good enough")


class TestRefusesWithoutAReason(Contract):
    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            if (model.localize() / "1" / "bad").exists():
                raise ValueError


class TestGuardsNothing(AgentContract):
    class agent(Checks):
        """."""

        guard = True


class TestFailsOpen(Contract):
    class agent(Checks):
        """."""

        guard = True

        def load(self, model: AgentModel) -> None:
            try:
                root = model.localize()
            except OSError:
                return
            if (root / "1" / "bad").exists():
                raise ValueError("the model is bad")


class TestLogsTheKey(Contract):
    secrets = {"key": SECRET}

    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            logging.getLogger("mine").debug("key %s", model.key("fake:key").decode())


class TestReportsTheKey(Contract):
    secrets = {"key": SECRET}

    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            model.report(note=f"with {model.key('fake:key')!r}")


class TestRefusesWithTheKey(Contract):
    secrets = {"key": SECRET}

    class agent(Agent):
        """."""

        api_version = 1

        def load(self, model: AgentModel) -> None:
            key = model.key("fake:key").decode()
            if (model.localize() / "1" / "bad").exists():
                raise ValueError(f"{key} does not fit")


class TestWritesTheKeyToADisk(Contract):
    secrets = {"key": SECRET}

    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            (model.acquire_location() / "key").write_bytes(model.key("fake:key"))


class TestWritesPlaintextToADisk(Contract):
    plaintext = MARKER
    good_model = {"1/model.bin": MARKER[::-1]}

    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            target = model.acquire_location()
            (target / "model.bin").write_bytes((model.localize() / "1" / "model.bin").read_bytes()[::-1])


class TestCannotUnloadTwice(Contract):
    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            model.state = {"handle": 1}

        def unload(self, model: AgentModel) -> None:
            del model.state["handle"]


class TestRaisesWhenTheLoadFails(Contract):
    class agent(Checks):
        """."""

        def load(self, model: AgentModel) -> None:
            super().load(model)
            model.state = {}

        def load_fail(self, model: AgentModel) -> None:
            model.state["handle"].close()


class TestKnowsOneModelOnly(Contract):
    class agent(Checks):
        """."""

        def initialize(self) -> None:
            self.model: AgentModel | None = None

        def load(self, model: AgentModel) -> None:
            super().load(model)
            if self.model is not None:
                raise RuntimeError("busy")
            self.model = model

        def unload_complete(self, model: AgentModel) -> None:
            self.model = None

        load_fail = unload_complete


class TestCannotBeCancelled(Contract):
    long_running = True


class TestIsBrokenByOneError(Contract):
    class agent(Checks):
        """."""

        def initialize(self) -> None:
            type(self).initialized = True

        def load(self, model: AgentModel) -> None:
            if not getattr(Path, "_naughty_ok", True):
                raise RuntimeError("still broken")
            try:
                super().load(model)
            except OSError:
                Path._naughty_ok = False  # type: ignore[attr-defined]
                raise

        initialized = False


class TestStatesNoVersion(Contract):
    class agent(Agent):
        """."""


class TestHasNoDocstring(Contract):
    class agent(Checks):
        guard = False


class TestReadmeMissesAParameter(Contract):
    """The word levels in running text names no parameter."""

    parameters = (("levels", "high"),)
    readme = Path(__file__)


class TestIsNotOfferedUnderItsName(Contract):
    entry_point = "checksum"
