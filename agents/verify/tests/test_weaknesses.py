"""What the agent's parameters leave open, as ``policy check`` prints it."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from repoagent_verify.agent import VerifyAgent

from repoagent.api import InvalidArgumentError, Parameters
from repoagent.cli.policy import policy as command


def found(*more: tuple[str, str]) -> list[str]:
    return list(VerifyAgent.weaknesses(Parameters([("trust_root", "vendor"), *more])))


@pytest.mark.parametrize(
    "more",
    [
        [],
        [("directory", ".")],
        [("strict", "true")],
        [("signature", "signatures/vendor.sig")],
        [("certificate", "file:/etc/keys/root.pem"), ("subject", "CN=Models")],
        [("public_key", "file:/etc/keys/signer.pem")],
        [("identity", "release@vendor.example"), ("issuer", "https://accounts.google.com")],
    ],
    ids=lambda more: "-".join(name for name, _ in more) or "nothing",
)
def test_what_covers_every_file_has_no_weakness(more: list[tuple[str, str]]) -> None:
    assert found(*more) == []


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ([("directory", "1")], ["config.pbtxt, and add a version directory"]),
        ([("directory", "*")], ["rewrite config.pbtxt;"]),
        ([("unsigned", "*")], ["add any file"]),
        ([("unsigned", "a.md"), ("unsigned", "configs/")], ["to 'a.md'", "to 'configs'"]),
        ([("strict", "false")], ["strict = false"]),
        ([("at", "2026-01-01T00:00:00Z")], ["at = 2026-01-01T00:00:00+00:00 accepts certificates that have expired"]),
        ([("certificate", "file:/etc/keys/root.pem")], ["name the signer with 'subject'"]),
        (
            [("identity", "https://x/.github/workflows/a.yml@refs/heads/*"), ("issuer", "https://i")],
            ["accepts what that workflow signs on any such branch or tag"],
        ),
    ],
    ids=lambda value: "-".join(one[0] for one in value) if isinstance(value[0], tuple) else "",
)
def test_each_way_round_the_check_is_named(more: list[tuple[str, str]], texts: list[str]) -> None:
    sentences = found(*more)
    assert len(sentences) == len(texts)
    for sentence, text in zip(sentences, texts, strict=True):
        assert text in sentence


def test_parameters_that_the_agent_refuses_are_refused_here() -> None:
    with pytest.raises(InvalidArgumentError, match="no key or certificate"):
        VerifyAgent.weaknesses(Parameters([]))


def test_the_check_of_a_policy_warns_of_them(tmp_path: Path) -> None:
    (tmp_path / "vendor.pem").touch()
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[[rule]]\nmodels = ["*"]\nagents = []\nbackends = ["onnxruntime"]\ntrust_roots = { vendor = "vendor.pem" }\n'
        'before = [{ agent = "verify", parameters = { trust_root = "vendor", directory = "*" } }]\n'
    )
    result = CliRunner().invoke(command, ["check", str(policy)])
    warnings = [line for line in result.output.splitlines() if line.startswith("warning: ")]
    assert ["agent 'verify': directory" in line or "no demanded guard" in line for line in warnings] == [True, True]
    policy.write_text(policy.read_text().replace(', directory = "*"', ""))
    result = CliRunner().invoke(command, ["check", str(policy), "--strict"])
    assert (result.exit_code, "warning: " in result.output) == (0, False)
