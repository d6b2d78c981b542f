"""A load in which an agent converts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from repoagent.api import Action, Agent, AgentModel, ConversionSource, Converted
from repoagent.testing import AgentHarness, Outcome
from tests.loader.converting.samples import CONVERTERS


@dataclass
class Converting:
    """Runs loads of models whose agent converts every version's ``model.txt``."""

    directory: Path
    harness: AgentHarness
    confidential: bool = False
    guarded: bool = True
    source_name: str = "model.txt"
    results: list[Converted] = field(default_factory=list)
    during: Callable[[AgentModel], None] = lambda _model: None

    def model(self, text: str = "abc", name: str = "m") -> Path:
        root = self.directory / "repository" / name
        (root / "1").mkdir(parents=True, exist_ok=True)
        (root / "1" / "model.txt").write_text(text)
        return root

    def run(self, to: str = "upper", *, text: str = "abc", name: str = "m", **options: str) -> Outcome:
        return self.harness.run(self.prepare(to, text=text, name=name, **options))

    def prepare(self, to: str = "upper", *, text: str = "abc", name: str = "m", **options: str) -> Path:
        root = self.model(text, name)
        parameters = "".join(f'parameters {{ key: "{key}" value: "{value}" }} ' for key, value in options.items())
        (root / "config.pbtxt").write_text(
            f'model_repository_agents {{ agents [ {{ name: "shout" parameters {{ key: "to" value: "{to}" }} '
            f"{parameters} }} ] }}"
        )
        converting = self

        class Shout(Agent):
            api_version = 1
            guard = converting.guarded

            def model_action(self, model: AgentModel, action: Action) -> None:
                if action is Action.LOAD:
                    converting.act(model)

        self.harness.add("shout", Shout)
        return root

    def act(self, model: AgentModel) -> None:
        options = {key: value for key, value in model.parameters.items() if key != "to"}
        if self.confidential:
            model.acquire_location(confidential=True)
        self.during(model)
        root = model.localize()
        source = ConversionSource(root / "1", self.source_name, f"1/{self.source_name}", model.config)
        conversion = model.conversion("text", model.parameters["to"], source, options)
        target = model.acquire_location(size_hint=conversion.input_bytes)
        (target / "1").mkdir()
        self.results.append(conversion.write(target / "1"))
        config = model.config
        assert config is not None
        conversion.configure(config)
        model.write_config(config)
        model.update_location(target)


@pytest.fixture
def converting(tmp_path: Path) -> Iterator[Converting]:
    with AgentHarness(tmp_path / "harness", converters=CONVERTERS) as harness:
        yield Converting(tmp_path, harness)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where builds leave their marks."""
    path = tmp_path / "marks"
    path.mkdir()
    return path
