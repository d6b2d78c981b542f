"""config.pbtxt: what is read, what is written, and where an error is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repoagent.config import ModelConfig, agent_entries, read_text, write_text
from repoagent.errors import ConfigError

AGENTS_AS_LIST = """
model_repository_agents {
  agents [
    { name: "checksum" parameters [ { key: "MD5:b" value: "1" }, { key: "MD5:a" value: "2" } ] },
    { name: "decrypt" }
  ]
}
"""
AGENTS_REPEATED = """
model_repository_agents: {
  agents { name: "checksum" parameters { key: "MD5:b" value: "1" } parameters: { key: "MD5:a", value: "2" } }
  agents { name: 'decrypt' }
}
"""


def test_every_config_that_triton_serves_is_read(served: dict[str, str]) -> None:
    assert isinstance(read_text(served["config"]), ModelConfig)


def test_what_is_written_reads_back_the_same(served: dict[str, str]) -> None:
    config = read_text(served["config"])
    assert read_text(write_text(config)) == config


def test_both_list_spellings_mean_the_same() -> None:
    assert read_text(AGENTS_AS_LIST) == read_text(AGENTS_REPEATED)


def test_agent_parameters_keep_their_order_and_repeats() -> None:
    text = 'model_repository_agents { agents { name: "a" %s } }'
    pairs = [("z", "1"), ("a", "2"), ("z", "3"), ("z", "1")]
    entries = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in pairs)
    config = read_text(write_text(read_text(text % entries)))
    assert agent_entries(config)[0].parameters == tuple(pairs)


def test_fields_are_written_in_the_order_of_the_schema() -> None:
    text = write_text(ModelConfig(name="m", backend="python", max_batch_size=4))
    assert text.split() == ["name:", '"m"', "backend:", '"python"', "max_batch_size:", "4"]


def test_text_outside_ascii_is_written_readably() -> None:
    assert "größe" in write_text(ModelConfig(name="größe"))


def test_a_byte_order_mark_is_skipped() -> None:
    assert read_text('\ufeffname: "m"').name == "m"


def test_empty_text_is_an_empty_config() -> None:
    assert read_text("") == ModelConfig()


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ('backend: "python"\n  max_batchsize: 3\n', 2, 3, "ModelConfig has no field 'max_batchsize'"),
        ('input {\n  name: "x"\n  dim: 3\n}', 3, 3, "ModelInput has no field 'dim'; did you mean 'dims'?"),
        ("input {\n  data_type: TYPE_FP33\n}", 2, 14, "DataType has no value 'TYPE_FP33'; did you mean 'TYPE_FP32'?"),
        ('backend: "python"\ninput [ { name: "x" \n', 2, 17, 'Expected "}".'),
        ("max_batch_size: 4.5", 1, 17, "Couldn't parse integer: 4.5"),
        ("max_batch_size: 9999999999", 1, 17, "Value out of range: 9999999999"),
        ('name: "a" name: "b"', 1, 17, 'Message type "ModelConfig" should not have multiple "name" fields.'),
        ("{", 1, 1, "Expected identifier or number, got {."),
        ("max_batch_size: ", 1, 17, "Couldn't parse integer: the text ends here"),
        ('name: "m"\nmax_batch_size:\n', 3, 1, "Couldn't parse integer: the text ends here"),
        ("name: ", 1, 7, "Expected string: the text ends here"),
        ('input [ { name: "x" }', 1, 22, 'Expected ",": the text ends here'),
    ],
)
def test_a_fault_is_reported_with_source_line_and_column(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(text, source="m/config.pbtxt")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"m/config.pbtxt:{line}:{column}: {message}")


def test_two_ways_to_schedule_are_refused() -> None:
    with pytest.raises(ConfigError, match="oneof"):
        read_text("dynamic_batching {} sequence_batching {}")


@pytest.mark.parametrize(
    "text",
    [
        'parameters { key: "password" value: { string_value: "hunter2 } }',
        'parameters { key: "password" value: { string_value: hunter2 } }',
        'parameters { key: "password" value: { string_value: "hunter2" } x } }',
        'parameters { key: "password" value: { string_value: "hunter2" } } ]',
        'metric_tags { key: "a" value: "hunter2" } max_batch_size: x',
    ],
)
def test_a_message_never_repeats_the_value_of_a_parameter(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ['name: "\\xff"', 'name: "\ud800"', "any [a.b/c] {}", "[ext.foo]: 3", "input: <", "\0"]
)
def test_odd_text_is_refused_as_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        read_text(text)


@given(
    st.lists(st.sampled_from([*"{}[]:,;<>#\"'\\ \n-+.", "name", "input", "dims", "1", "0x", "TYPE_FP32", "ä", "\0"]))
)
def test_any_text_is_read_or_refused_as_a_config_error(tokens: list[str]) -> None:
    try:
        config = read_text("".join(tokens))
    except ConfigError:
        return
    assert read_text(write_text(config)) == config
