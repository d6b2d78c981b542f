"""What an access file may say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from repoagent_server.access import Grant, NotAuthenticatedError, Right
from repoagent_server.access.credentials import given
from repoagent_server.program.access_command import access

from repoagent.errors import ConfigError
from server_stub.tests.access.conftest import Follow, Issuer, client, digest

KEY = "s3cret-that-nobody-may-repeat"


def _caller(follow: Follow, *tables: str, key: bytes) -> Any:
    return follow(*tables).access.caller(given([b"Bearer " + key], []))


def test_a_client_has_the_rights_of_all_its_grants(follow: Follow) -> None:
    text = client("a", models="one", rights="infer") + 'grants = [{ models = ["two"], rights = ["manage"] }]\n'
    caller = _caller(follow, text, key=b"a-key")
    assert (caller.may(Right.INFER, "one"), caller.may(Right.MANAGE, "two")) == (True, True)
    assert (caller.may(Right.MANAGE, "one"), caller.may(Right.INFER, "two")) == (False, False)
    assert not caller.may_all(Right.INFER)


@pytest.mark.parametrize("key", ["old", "new"])
def test_a_client_may_have_several_keys(follow: Follow, key: str) -> None:
    text = client("a", keys=[digest("old"), digest("new")])
    assert _caller(follow, text, key=key.encode()).name == "a"


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("fraud-*", "fraud-eu", True),
        ("fraud-*", "Fraud-eu", False),
        ("fraud-*", "fraud-", True),
        ("fraud-*", "not-fraud-eu", False),
        ("fraud-*", "fraud-eu/../secret", False),
        ("fraud-*", "fraud-x\nsecret", True),
        ("fraud-?", "fraud-12", False),
        ("[ab]*", "a1", True),
        ("*a", "x/a", False),
        ("*", "x/a", True),
        ("caf\u00e9", "cafe\u0301", False),
    ],
)
def test_patterns_are_those_of_a_shell_for_one_name(pattern: str, name: str, covered: bool) -> None:
    assert Grant((pattern,), frozenset(Right)).covers(name) is covered


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("clients = 7", "clients: expected a table"),
        ("[client.a]", "unknown key 'client'; known are clients, issuers, open; did you mean 'clients'?"),
        (client("a").replace("rights", "right"), "unknown key 'right'"),
        (client("a", rights="read"), "unknown 'read'; known are infer, metadata, manage"),
        (client("a", rights=""), 'it needs "models"'),
        (client("a", models="x/*"), "no name of a model has a slash"),
        (client("a", certificates=[]), 'it needs "keys", "certificates" or "issuer"'),
        (client("a", certificates=["example.com"]), "is not a name of a certificate"),
        (client("a", issuer="corp"), "must be the name of a table [issuers.NAME]"),
        (client("a", claims={"g": "x"}, keys=[digest("k")]), '"claims" mean nothing'),
        (client("a", keys=[digest("k")]) + client("b", keys=[digest("k")]), "belongs to the client 'a' already"),
        ('[clients."a b"]', "is not a valid name"),
        ('open = ["http"]', "unknown 'http'; known are metrics"),
        ("not toml", "not a TOML file"),
        ("x = " + "[" * 10_000, "not a TOML file"),
    ],
    ids=range(15),
)
def test_what_is_not_understood_is_an_error(follow: Follow, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        follow(text)
    assert told in raised.value.message
    assert "access.toml" in raised.value.message


@pytest.mark.parametrize("entry", [KEY, f"sha256:{KEY}", digest("k")[:-1], digest("k").upper(), f"{digest('k')}\n", 7])
def test_a_key_in_clear_text_is_refused_with_advice_and_not_repeated(follow: Follow, entry: Any) -> None:
    text = client("a", keys=[entry])
    with pytest.raises(ConfigError) as raised:
        follow(text)
    assert "`repoagent access key NAME` makes a key" in raised.value.message
    assert KEY not in raised.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    from repoagent_server.access.access_file import AccessFile

    with pytest.raises(ConfigError, match=r"^the access file '.*gone\.toml' cannot be read: No such file"):
        AccessFile(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"algorithms": ["HS256"]}, "unknown 'HS256'"),
        ({"algorithms": ["none"]}, "unknown 'none'"),
        ({"algorithms": []}, 'it needs "algorithms"'),
        ({"audience": ""}, 'it needs "audience"'),
        ({"issuer": 1}, 'it needs "issuer"'),
        ({"key_set": "http://login.test/keys"}, "must begin with https"),
        ({"key_set": "file:///etc/keys"}, "expected https"),
        ({"key_set": "gone.json"}, "key_set: the key set '"),
        ({"leeway_seconds": 301}, "from 0 to 300"),
        ({"leeway_seconds": True}, "from 0 to 300"),
        ({"algorithms": ["RS256"]}, "has no key for RS256"),
    ],
    ids=str,
)
def test_an_issuer_must_say_how_its_tokens_are_verified(
    follow: Follow, issuer: Issuer, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        follow(issuer.table(**more))
    assert told in raised.value.message


def test_two_issuers_of_one_name_are_refused(follow: Follow, issuer: Issuer) -> None:
    with pytest.raises(ConfigError, match="two entries have the same"):
        follow(issuer.table("a"), issuer.table("b"))


def test_the_command_makes_a_key_whose_lines_a_server_takes(path: Path, follow: Follow) -> None:
    made = CliRunner().invoke(access, ["key", "fraud-team"])
    assert made.exit_code == 0, made.output
    key = made.stderr.split()[-1]
    assert key not in made.stdout
    assert _caller(follow, made.stdout, key=key.encode()).name == "fraud-team"
    checked = CliRunner().invoke(access, ["check", str(path)])
    assert checked.stdout.splitlines() == ["fraud-team: infer, metadata for *", f"{path}: ok (1 client)"]
    assert CliRunner().invoke(access, ["key", "fraud-team"]).stderr.split()[-1] != key


def test_a_key_is_for_the_models_and_rights_that_are_asked_for(follow: Follow) -> None:
    flags = ["--model", "fraud-*", "--model", '\u00e9"', "--right", "infer", "--right", "manage"]
    made = CliRunner().invoke(access, ["key", "fraud-team", *flags])
    caller = _caller(follow, made.stdout, key=made.stderr.split()[-1].encode())
    assert [caller.may(Right.INFER, model) for model in ("fraud-1", '\u00e9"', "other")] == [True, True, False]
    assert (caller.may(Right.MANAGE, "fraud-1"), caller.may(Right.METADATA, "fraud-1")) == (True, False)
    assert CliRunner().invoke(access, ["key", "x", "--right", "infr"]).exit_code == 2


@pytest.mark.parametrize("model", ["models/fraud-1", "./fraud-1", "/models/*", "..", ""])
def test_no_key_is_made_for_a_path(model: str) -> None:
    """A server calls models by their names, so the key would be for nothing."""
    made = CliRunner().invoke(access, ["key", "fraud-team", "--model", model])
    assert made.exit_code == 2
    assert "this is for names" in made.stderr
    assert not made.stdout


@pytest.mark.parametrize("name", ["a.b", "a@b", "a-b", "a:1"])
def test_names_with_dots_become_one_table(follow: Follow, name: str) -> None:
    made = CliRunner().invoke(access, ["key", name])
    assert _caller(follow, made.stdout, key=made.stderr.split()[-1].encode()).name == name


def test_the_command_refuses_a_name_that_no_client_can_have() -> None:
    assert "not a valid name" in str(CliRunner().invoke(access, ["key", 'x"]']).exception)


def test_the_command_refuses_a_file_that_no_server_takes(path: Path) -> None:
    path.write_text(json.dumps({}))
    assert isinstance(CliRunner().invoke(access, ["check", str(path)]).exception, ConfigError)


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o664, 0), (0o606, 1)])
def test_a_file_that_every_user_can_change_is_reported(
    follow: Follow, path: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    path.touch()
    path.chmod(mode)
    follow(client("a"))
    assert caplog.text.count("every user of this machine can change the access file") == warnings


def test_an_empty_file_lets_nobody_in_and_warns_of_it(follow: Follow, caplog: pytest.LogCaptureFixture) -> None:
    file = follow("")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith("is in force: 0 clients, so every key is refused")
    with pytest.raises(NotAuthenticatedError):
        file.access.caller(given([b"Bearer x"], []))
