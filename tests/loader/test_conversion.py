"""A converter in a load: results, where they are kept, what is written down, and what refuses the load."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from repoagent.api import Agent, AgentModel, ConversionPlan, ConversionSource
from repoagent.loader.conversion import cache_key
from tests.loader.converting import samples
from tests.loader.converting.conftest import Converting

pytestmark = pytest.mark.slow


def _statement(files: Any) -> Any:
    return json.loads(files["1/model.upper.intoto.json"])


def test_what_is_converted_and_how_it_is_configured_is_what_a_backend_gets(converting: Converting) -> None:
    outcome = converting.run()
    assert outcome.error is None
    assert outcome.files["1/model.upper"] == b"ABC"
    assert set(outcome.files) == {"1/model.upper", "1/model.upper.intoto.json", "config.pbtxt"}
    assert 'backend: "shouting"' in outcome.config
    assert 'default_model_filename: "model.upper"' in outcome.config
    (result,) = converting.results
    assert (result.files, result.built) == (("model.upper", "model.upper.intoto.json"), True)
    assert (dict(result.product.annotations), result.product.notes) == ({"letters": 26}, ("all capitals",))
    assert outcome.left == ()


def test_the_report_has_bytes_digests_tools_and_notes(converting: Converting) -> None:
    (action, *_) = converting.run().report.entries[0].actions
    assert action.action == "LOAD"
    assert action.bytes_read == 3
    assert action.bytes_written > 3
    assert action.digests == {"1/model.txt": f"sha256:{hashlib.sha256(b'abc').hexdigest()}"}
    assert any("1/model.txt: text to upper, shouter 7, built after" in note for note in action.notes)
    assert "1/model.txt: all capitals" in action.notes


def test_a_statement_of_what_was_made_of_what_lies_beside_the_result(converting: Converting) -> None:
    statement = _statement(converting.run(then="").files)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [
        {
            "name": "model.upper",
            "digest": {"sha256": hashlib.sha256(b"ABC").hexdigest()},
            "annotations": {"letters": 26},
        }
    ]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"] == [
        {"name": "model.txt", "digest": {"sha256": hashlib.sha256(b"abc").hexdigest()}}
    ]
    assert definition["externalParameters"] == {
        "from": "text",
        "to": "upper",
        "settings": {"input": "model.txt", "then": ""},
        "target": "any",
    }
    versions = statement["predicate"]["runDetails"]["builder"]["version"]
    assert (versions["converter"], versions["shouter"]) == ("1", "7")


def test_a_second_load_takes_the_result_from_the_cache_with_all_that_was_reported(
    converting: Converting, marks: Path
) -> None:
    first, second = converting.run(mark=str(marks)), converting.run(mark=str(marks), name="other")
    assert len(list(marks.iterdir())) == 1
    assert first.files["1/model.upper.intoto.json"] == second.files["1/model.upper.intoto.json"]
    assert [result.built for result in converting.results] == [True, False]
    assert converting.results[0].product == converting.results[1].product
    notes = second.report.entries[0].actions[0].notes
    assert any(note.endswith("from the cache") for note in notes)
    assert "1/model.txt: all capitals" in notes


def test_a_changed_byte_option_or_version_is_another_result(
    converting: Converting, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def builds() -> int:
        converting.run(mark=str(marks))
        return len(list(marks.iterdir()))

    assert [builds(), builds()] == [1, 1]
    converting.run(text="abd", mark=str(marks))
    assert len(list(marks.iterdir())) == 2
    converting.run(then="chatter", mark=str(marks))
    assert len(list(marks.iterdir())) == 3
    monkeypatch.setenv("SHOUTER", "8")
    assert builds() == 4
    monkeypatch.setattr(samples.Upper, "version", "2")
    assert builds() == 5


def test_a_key_has_every_part_of_the_plan_in_it() -> None:
    plan = ConversionPlan(("a",), "b", {"x": 1}, {"t": "1"}, "cpu")
    given: list[Any] = [("f", "t"), "1", plan, {"a": "00"}]
    others: list[tuple[int, Any]] = [
        (0, ("f", "u")),
        (1, "2"),
        (2, ConversionPlan(("a",), "c", {"x": 1}, {"t": "1"}, "cpu")),
        (2, ConversionPlan(("a",), "b", {"x": 2}, {"t": "1"}, "cpu")),
        (2, ConversionPlan(("a",), "b", {"x": 1}, {"t": "2"}, "cpu")),
        (2, ConversionPlan(("a",), "b", {"x": 1}, {"t": "1"}, "gpu")),
        (3, {"a": "01"}),
        (3, {"b": "00"}),
    ]
    keys = {cache_key(*given)}
    for place, value in others:
        changed: list[Any] = [value if place == number else one for number, one in enumerate(given)]
        keys.add(cache_key(*changed))
    assert len(keys) == len(others) + 1


def test_confidential_input_stays_in_memory_and_nothing_of_it_is_kept(converting: Converting, marks: Path) -> None:
    converting.confidential = True
    outcome = converting.run(mark=str(marks))
    assert outcome.error is None
    assert outcome.files["1/model.upper"] == b"ABC"
    assert any(" s, not kept: the load is confidential" in note for note in outcome.report.entries[0].actions[0].notes)
    (mark,) = marks.iterdir()
    places = json.loads(mark.read_text())
    assert set(places) == {"HOME", "TMPDIR"}
    assert all(place.startswith(str(converting.harness.memory)) for place in places.values())
    assert not list(converting.harness.cache.glob("objects/*"))
    assert outcome.left == ()


def test_what_others_may_change_meanwhile_is_converted_and_not_kept(converting: Converting) -> None:
    converting.guarded = False
    outcome = converting.run()
    assert outcome.files["1/model.upper"] == b"ABC"
    assert any("not a private copy" in note for note in outcome.report.entries[0].actions[0].notes)
    assert not list(converting.harness.cache.glob("objects/*"))


def test_a_converter_may_run_in_the_servers_own_process(converting: Converting, marks: Path) -> None:
    import os

    assert converting.run("here", mark=str(marks)).files["1/model.upper"] == b"ABC"
    assert [mark.name for mark in marks.iterdir()] == [str(os.getpid())]


@pytest.mark.parametrize(
    ("to", "options", "text"),
    [
        ("uper", {}, "no converter from 'text' to 'uper'; did you mean 'upper'?"),
        ("pdf", {}, "no converter from 'text' to 'pdf'; there are: "),
        ("upper", {"them": "x"}, "unknown parameter 'them'; did you mean 'then'?"),
        ("upper", {"speed": "x"}, "unknown parameter 'speed'; expected one of: mark, then"),
        ("half", {}, "is not a converter: it lacks options, in_child, plan, build, configure"),
        ("missing", {}, "samples:Missing' cannot be imported"),
        ("unfit", {}, "made a plan without a key"),
        ("nothing", {}, "the converter from 'text' to 'nothing' made other, but not model.upper"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    to: str, options: dict[str, str], text: str, converting: Converting
) -> None:
    outcome = converting.run(to, **options)
    assert text in str(outcome.error)
    assert outcome.left == ()


def test_a_file_of_the_model_is_not_overwritten(converting: Converting) -> None:
    def write(model: Any) -> None:
        (model.acquire_location() / "1").mkdir()
        (model.acquire_location() / "1" / "model.upper").write_text("mine")

    class Kind(Converting):
        def act(self, model: Any) -> None:
            source = ConversionSource(model.localize() / "1", "model.txt", "1/model.txt")
            write(model)
            model.conversion("text", "upper", source, {}).write(model.acquire_location() / "1")

    outcome = Kind(converting.directory, converting.harness).run()
    assert "would be converted into 1/model.upper, but the model has such a file" in str(outcome.error)


@pytest.mark.parametrize("confidential", [False, True])
def test_what_was_converted_is_not_read_again_by_a_guard(converting: Converting, confidential: bool) -> None:
    found: list[str] = []

    class Judges(Agent):
        api_version = 1
        guard = True

        def load(self, model: AgentModel) -> None:
            found.append(model.digests({"1/model.upper": ("sha256",)})["1/model.upper"]["sha256"])

    converting.confidential = confidential
    converting.harness.add("judges", Judges)
    root = converting.prepare()
    text = (root / "config.pbtxt").read_text()
    (root / "config.pbtxt").write_text(text.removesuffix("] }") + ', { name: "judges" } ] }')
    outcome = converting.harness.run(root)
    assert outcome.error is None
    assert found == [hashlib.sha256(b"ABC").hexdigest()]
    assert outcome.report.entries[1].actions[0].bytes_read == 0
