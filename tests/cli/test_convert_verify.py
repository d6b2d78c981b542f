"""``repoagent convert verify``: what a builder signed is built again, and what differs is printed."""

import base64
import json
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from repoagent.api import ConversionSource
from repoagent.api.converters import Product
from repoagent.cli.convert import convert
from repoagent.cli.interrupt import _FORWARDED
from repoagent.loader.conversion import cache_key
from repoagent.loader.converting.environments import ConverterSettings, planned
from repoagent.loader.converting.provenance import definition_of, tools_of, write_statement
from repoagent.loader.converting.shared import Trust, Wanted, open_shared
from repoagent.testing import write_files
from tests.loader.converting.samples import CONVERTERS, Upper

PAIR = ("text", "upper")
TEXT = b"abc"
DIGEST = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
Publish = Callable[..., str]


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command takes signals for the process that it runs in, which is the one of the tests here."""
    before = {number: signal.getsignal(number) for number in _FORWARDED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def converters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.converters.BUILT_IN_CONVERTERS", CONVERTERS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "source", {"model.txt": TEXT}) / "model.txt"


@pytest.fixture
def key(tmp_path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ci.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return key


@pytest.fixture
def publish(tmp_path: Path, source: Path, key: ec.EllipticCurvePrivateKey) -> Publish:
    """What a builder signs as the result; returns its key."""

    def put(result: str = "ABC", letters: int = 26, digest: str = DIGEST, **options: str) -> str:
        where = ConversionSource(source.parent, source.name, source.name)
        plan = planned(Upper(), PAIR, where, options, ConverterSettings())
        digests = {source.name: digest}
        made = write_files(tmp_path / "made", {plan.output: result.encode()})
        product = Product({"letters": letters}, ())
        write_statement(made, PAIR, Upper.version, plan, digests, product, datetime.now(UTC), lambda: None)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        shared = open_shared(str(tmp_path / "shared"), private, lambda _model: Trust(), filesystems={}, most=0)
        name = cache_key(PAIR, Upper.version, plan, digests)
        definition = definition_of(PAIR, plan, digests)
        shared.publish(Wanted(name, plan.output, definition, tools_of(Upper.version, plan)), made)
        return name

    return put


@pytest.fixture
def verify(tmp_path: Path, source: Path) -> Callable[..., Result]:
    def run(name: str, *more: str) -> Result:
        words = ["verify", str(tmp_path / "shared"), name, str(source), "--builder", str(tmp_path / "ci.pem"), *more]
        return CliRunner().invoke(convert, words)

    return run


Verify = Callable[..., Result]


def test_the_same_result_is_accepted(publish: Publish, verify: Verify, source: Path) -> None:
    name = publish()
    result = verify(name)
    assert (result.exit_code, result.stdout) == (0, f"{name}: the same result was built again: OK\n"), (
        result.stderr,
        result.exception,
    )
    assert [path.name for path in source.parent.iterdir()] == ["model.txt"]


@pytest.mark.parametrize(
    ("signed", "printed"),
    [
        ({"result": "ABD"}, "model.upper[0].sha256: signed "),
        ({"letters": 27}, "model.upper[1].letters: signed 27, here 26"),
        ({"digest": "0" * 64}, f'resolvedDependencies[0].digest.sha256: signed "{"0" * 64}", here "{DIGEST}"'),
    ],
)
def test_what_differs_is_printed(signed: dict[str, Any], printed: str, publish: Publish, verify: Verify) -> None:
    result = verify(publish(**signed))
    assert result.exit_code == 1
    assert result.stderr.startswith(printed)
    assert result.stderr.count("\n") == 1


def test_another_version_of_a_tool_is_named_and_nothing_is_built(
    publish: Publish, verify: Verify, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "marks").mkdir()
    name = publish(mark=str(tmp_path / "marks"))
    monkeypatch.setenv("SHOUTER", "8")
    result = verify(name)
    assert (result.exit_code, result.stderr) == (1, 'tools.shouter: signed "7", here "8"\n')
    assert not list((tmp_path / "marks").iterdir())


def test_a_statement_under_the_key_of_another_result_is_refused(
    publish: Publish, verify: Verify, tmp_path: Path
) -> None:
    name = publish()
    other = f"convert-{'0' * 64}"
    (tmp_path / "shared" / name).rename(tmp_path / "shared" / other)
    result = verify(other)
    assert (result.exit_code, result.stderr) == (1, f"the statement is that of another key: {name}\n")


def test_what_the_builder_did_not_sign_is_not_built(publish: Publish, verify: Verify, tmp_path: Path) -> None:
    name = publish()
    (statement,) = (tmp_path / "shared" / name / "statements").iterdir()
    document = json.loads(statement.read_text())
    document["payload"] = "e30="
    statement.write_text(json.dumps(document))
    result = verify(name)
    assert result.exit_code == 2
    assert "not signed with this key" in result.stderr


@pytest.mark.parametrize("name", ["../secret", "convert-1", f"convert-{'0' * 64}"])
def test_a_key_that_is_none_or_not_there_is_an_error(name: str, publish: Publish, verify: Verify) -> None:
    publish()
    result = verify(name)
    assert result.exit_code == 2
    assert result.stderr.startswith("repoagent: ")


@pytest.mark.parametrize("payload", [[], {}, {"predicate": 1}, {"predicate": {"buildDefinition": {}}}])
def test_a_signed_statement_of_another_form_is_an_error(
    payload: object, publish: Publish, verify: Verify, key: ec.EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    from repoagent.api.envelopes import sign

    name = publish()
    (statement,) = (tmp_path / "shared" / name / "statements").iterdir()
    statement.write_text(json.dumps(sign(json.dumps(payload).encode(), key)["dsseEnvelope"]))
    result = verify(name)
    assert (result.exit_code, result.stdout) == (2, "")


def test_what_the_builder_signed_about_something_else_is_an_error(
    publish: Publish, verify: Verify, key: ec.EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    from repoagent.api.envelopes import sign

    name = publish()
    (place,) = (tmp_path / "shared" / name / "statements").iterdir()
    statement = json.loads(base64.b64decode(json.loads(place.read_text())["payload"]))
    statement["predicateType"] = "https://slsa.dev/verification_summary/v1"
    place.write_text(json.dumps(sign(json.dumps(statement).encode(), key)["dsseEnvelope"]))
    result = verify(name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "signed, but not in a form that this version knows" in result.stderr
