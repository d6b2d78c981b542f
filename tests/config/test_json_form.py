"""The JSON that load requests bring."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repoagent.config import agent_entries, normalize, read_json, write_json
from repoagent.config.json_form import load_relaxed_json
from repoagent.errors import ConfigError

Shown = Callable[[dict[str, Any]], dict[str, Any]]


def test_an_override_means_what_it_means_to_triton(overrides: dict[str, Any], as_shown_by_triton: Shown) -> None:
    if overrides["served"] is None:
        with pytest.raises(ConfigError):
            read_json(overrides["override"])
        return
    config = normalize(read_json(overrides["override"]), model_name="m", files=["model.py"])
    assert as_shown_by_triton(write_json(config)) == overrides["served"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('{"max_batchsize": 3}', "ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?"),
        ('{"input": [{}, {"dimss": [1]}]}', "input[1]: ModelInput has no field 'dimss'; did you mean 'dims'?"),
        ('{"input": [{"dims": [1, "x"]}]}', "input[0].dims[1]: expected an integer from -9223372036854775808 to"),
        ('{"max_batch_size": 3000000000}', "max_batch_size: expected an integer from -2147483648 to 2147483647"),
        ('{"max_batch_size": true}', "max_batch_size: expected an integer"),
        ('{"max_batch_size": -1e400}', "max_batch_size: expected an integer"),
        ('{"version_policy": {"latest": {"num_versions": -1}}}', "version_policy.latest.num_versions: expected"),
        ('{"input": [{"data_type": "fp32"}]}', "input[0].data_type: DataType has no value 'fp32'"),
        ('{"input": [{"data_type": 99}]}', "input[0].data_type: expected one of TYPE_INVALID, TYPE_BOOL"),
        ('{"input": [{"data_type": 1.5}]}', "input[0].data_type: expected one of"),
        ('{"input": 3}', "input[0]: expected an object with the fields of ModelInput"),
        ('{"metric_tags": ["a"]}', "metric_tags: expected an object"),
        ('{"parameters": {"p": "x"}}', "parameters[p]: expected an object with the fields of ModelParameter"),
        ('{"name": 7}', "name: expected a string in quotes"),
        ('{"name": "\\ud800"}', "name: expected text"),
        ('{"response_cache": {"enable": 1}}', "response_cache.enable: expected true or false"),
        (
            '{"sequence_batching": {"direct": {"minimum_slot_utilization": "much"}}}',
            "sequence_batching.direct.minimum_slot_utilization: expected a number",
        ),
        (
            '{"sequence_batching": {"direct": {"minimum_slot_utilization": [1]}}}',
            "sequence_batching.direct.minimum_slot_utilization: expected a number",
        ),
        (
            '{"dynamic_batching": {}, "sequence_batching": {}}',
            "sequence_batching: cannot be set beside 'dynamic_batching': choose one",
        ),
        ("[]", "expected an object with the fields of ModelConfig"),
        (b"\xff", "not JSON: not UTF-8 at byte 0"),
        ("[" * 100_000, "not JSON: nested too deeply: more than 100 levels"),
        ('{"max_batch_size": ' + "9" * 5000 + "}", "not JSON: "),
    ],
)
def test_a_fault_is_reported_with_its_path(override: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_json(override, source="<override>")
    assert str(caught.value).startswith(f"<override>: {message}")


def test_text_that_is_not_json_is_reported_with_line_and_column() -> None:
    with pytest.raises(ConfigError) as caught:
        read_json('{"name": "m",\n  oops}')
    assert (caught.value.line, caught.value.column) == (2, 3)


def test_agent_parameters_are_read_from_a_map_in_its_order() -> None:
    config = read_json({"model_repository_agents": {"agents": [{"name": "a", "parameters": {"z": "1", "b": "2"}}]}})
    assert agent_entries(config)[0].parameters == (("z", "1"), ("b", "2"))


def test_agent_parameters_are_read_from_a_list_so_that_a_key_can_come_twice() -> None:
    pairs = [{"key": "k", "value": "1"}, {"key": "k", "value": "2"}]
    config = read_json({"modelRepositoryAgents": {"agents": [{"name": "a", "parameters": pairs}]}})
    assert agent_entries(config)[0].parameters == (("k", "1"), ("k", "2"))


def test_relaxed_json_leaves_the_content_of_strings_alone() -> None:
    config = read_json("""{name: 'it\\'s, a "name": ,}', metric_tags: {"a: b,}": "c: 'd',]",},}""")
    assert config.name == """it's, a "name": ,}"""
    assert dict(config.metric_tags) == {"a: b,}": "c: 'd',]"}


def test_a_message_never_repeats_the_value_of_a_parameter() -> None:
    for values in ({"metric_tags": {"password": ["hunter2"]}}, {"response_cache": {"enable": "hunter2"}}):
        with pytest.raises(ConfigError) as caught:
            read_json(values)
        assert "hunter2" not in str(caught.value)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["1", "TYPE_FP32", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["input", "dims", "data_type", "parameters", "latest", "version_policy", "name", "x"]),
            inner,
        )
    ),
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["name", "input", "version_policy", "parameters", "optimization"]), _values))
def test_any_value_is_read_or_refused_as_a_config_error(values: dict[str, Any]) -> None:
    try:
        config = read_json(values)
    except ConfigError:
        return
    assert read_json(write_json(config)) == config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, $b_2 : true}", {"a": 1, "$b_2": True}),
        ("{'a': 'b'}", {"a": "b"}),
        ("[1, 2, ]", [1, 2]),
        ("{a: [1,],}", {"a": [1]}),
        ("{a: null, b: false}", {"a": None, "b": False}),
        ("""{a: 'say "x: y"', "b": "it's, }"}""", {"a": 'say "x: y"', "b": "it's, }"}),
        (r"{a: 'it\'s', b: 'tab\t'}", {"a": "it's", "b": "tab\t"}),
    ],
)
def test_the_liberties_are_read(text: str, value: Any) -> None:
    assert load_relaxed_json(text) == value


@pytest.mark.parametrize("text", ["", "{", "{a}", "a", "'a", "{'a: 1}", "{} {}"])
def test_what_is_still_not_json_is_refused_where_it_goes_wrong(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        load_relaxed_json(text)
    assert caught.value.doc == text


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(_json)
def test_strict_json_is_read_as_it_stands_and_a_trailing_comma_changes_nothing(value: Any) -> None:
    text = json.dumps(value)
    assert load_relaxed_json(text) == value
    assert load_relaxed_json(f"[{text},]") == [value]


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a", " ", ", ", '\\"', "\\'", '"', "'", "\\", "a ", "{a", "a:"])
@pytest.mark.parametrize("start", ["", '"', "'", ","])
def test_the_time_is_proportional_to_the_length_of_the_text(start: str, piece: str) -> None:
    """A quadratic search would take minutes here."""
    with pytest.raises(ValueError, match=r".+"):
        load_relaxed_json(start + piece * 300_000)
