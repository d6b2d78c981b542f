"""T6: each example of docs/reference/policy.md, as it stands there, against the attacks that the page names."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from repoagent.cli.policy import policy as command
from tests.hostile.policy.ground import COMMANDS, ROADS, Ground, Road, by_a_load_request, digest_list, sha256

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "policy.md"
CONFIG = b'backend: "onnxruntime" max_batch_size: 8\n'

Weights = Callable[[float], bytes]


def example(heading: str) -> str:
    """The policy below ``heading``, for the model ``m``."""
    section = PAGE.read_text().split(f"### {heading}\n")[1]
    found = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1].replace('"fraud-eu"]', '"m"]')


@pytest.fixture(params=[*ROADS, *COMMANDS], ids=lambda name: name.replace(" ", "-"))
def road(request: pytest.FixtureRequest) -> Road:
    """The ways to load a model here, and those to give it to another server."""
    return {**ROADS, **COMMANDS}[request.param]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=[name.replace(" ", "-") for name in COMMANDS])
def test_another_server_gets_the_honest_model(ground: Ground, honest: dict[str, bytes], command: Road) -> None:
    policy = re.sub(r"[0-9a-f]{64}", sha256(digest_list(honest)), example("Pin the weights"))
    assert command(ground, policy) == ""


@pytest.fixture
def honest(ground: Ground, weights: Weights) -> dict[str, bytes]:
    """The model as the operator wants it, with its digest file, in the repository."""
    files = {"config.pbtxt": CONFIG, "1/model.onnx": weights(1)}
    ground.write(files | {"SHA256SUMS": digest_list(files)})
    return files


def tampering(files: Mapping[str, bytes], weights: Weights) -> dict[str, dict[str, bytes]]:
    """What the owner writes into the model, by name of the attack. Each fits a digest file of the owner's own."""
    changes = {
        "other weights": {"1/model.onnx": weights(666)},
        "a new version": {"2/model.onnx": weights(666)},
        "another configuration": {"config.pbtxt": CONFIG + b"version_policy { all {} }\n"},
        "a further configuration": {"configs/cpu.pbtxt": CONFIG},
    }
    return {name: {**change, "SHA256SUMS": digest_list({**files, **change})} for name, change in changes.items()}


ATTACKS = ["other weights", "a new version", "another configuration", "a further configuration"]


class TestPinned:
    """The example "Pin the weights"; the page names what it stops."""

    @pytest.fixture
    def policy(self, honest: dict[str, bytes]) -> str:
        return re.sub(r"[0-9a-f]{64}", sha256(digest_list(honest)), example("Pin the weights"))

    def test_the_honest_model_is_served(self, ground: Ground, policy: str) -> None:
        assert by_a_load_request(ground, policy) == ""

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_the_owner_rewrites_files_and_the_digest_file(
        self, ground: Ground, road: Road, policy: str, honest: dict[str, bytes], weights: Weights, attack: str
    ) -> None:
        ground.write(tampering(honest, weights)[attack])
        refusal = road(ground, policy)
        assert "Mismatched SHA256 hash for file SHA256SUMS" in refusal or "does not allow a load to bring" in refusal

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_the_owner_leaves_the_digest_file_as_it_is(
        self, ground: Ground, policy: str, honest: dict[str, bytes], weights: Weights, attack: str
    ) -> None:
        change = tampering(honest, weights)[attack]
        change.pop("SHA256SUMS")
        ground.write(change)
        assert re.search("changed: |not listed: ", by_a_load_request(ground, policy))

    def test_the_owner_deletes_the_digest_file(self, ground: Ground, policy: str) -> None:
        (ground.repository / "m" / "SHA256SUMS").unlink()
        assert "manifest SHA256SUMS cannot be read" in by_a_load_request(ground, policy)

    def test_the_owner_adds_a_model_of_another_name(self, ground: Ground, policy: str, weights: Weights) -> None:
        (ground.repository / "m").rename(ground.path / "away")
        ground.write({"1/model.onnx": weights(666)})
        assert "does not allow backend 'onnxruntime'" in by_a_load_request(ground, policy.replace('["m"]', '["n"]'))

    def test_nothing_is_left_to_warn_of(self, ground: Ground, policy: str) -> None:
        assert warnings(ground, policy) == []


class TestTrusted:
    """The example "Digests from the operator"; the page names what it stops."""

    @pytest.fixture
    def policy(self, ground: Ground, honest: dict[str, bytes]) -> str:
        (ground.path / "fraud-eu.SHA256SUMS").write_bytes(digest_list(honest))
        (ground.repository / "m" / "SHA256SUMS").unlink()
        return example("Digests from the operator")

    def test_the_honest_model_is_served(self, ground: Ground, policy: str) -> None:
        assert by_a_load_request(ground, policy) == ""

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_the_owner_changes_files(
        self, ground: Ground, road: Road, policy: str, honest: dict[str, bytes], weights: Weights, attack: str
    ) -> None:
        ground.write(tampering(honest, weights)[attack])
        assert re.search("changed: |not listed: |does not allow a load to bring", road(ground, policy))

    def test_a_release_is_a_new_digest_file(self, ground: Ground, policy: str, weights: Weights) -> None:
        released = {"config.pbtxt": CONFIG, "1/model.onnx": weights(2)}
        ground.write(released)
        core = ground.core(policy)
        (ground.path / "fraud-eu.SHA256SUMS").write_bytes(digest_list(released))
        core.load("m")
        assert core.model_ready("m")

    def test_nothing_is_left_to_warn_of(self, ground: Ground, policy: str) -> None:
        assert warnings(ground, policy) == []


class TestSigned:
    """The example "Signed by the vendor"; the page names what it stops, and what it does not."""

    @pytest.fixture
    def key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    @pytest.fixture
    def release(
        self, ground: Ground, weights: Weights, key: ec.EllipticCurvePrivateKey
    ) -> Callable[[float], dict[str, bytes]]:
        def write(value: float) -> dict[str, bytes]:
            files = {"config.pbtxt": CONFIG, "1/model.onnx": weights(value)}
            model = ground.write(files)
            files["model.sig"] = sign(model, Identity(key), Serialization(), signature="model.sig")
            ground.write(files)
            return files

        return write

    @pytest.fixture
    def policy(
        self, ground: Ground, key: ec.EllipticCurvePrivateKey, release: Callable[[float], dict[str, bytes]]
    ) -> str:
        (ground.path / "vendor.pem").write_bytes(public_pem(key))
        release(1)
        return example("Signed by the vendor")

    def test_the_honest_model_is_served(self, ground: Ground, policy: str) -> None:
        assert by_a_load_request(ground, policy) == ""

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_the_owner_changes_files(
        self, ground: Ground, road: Road, policy: str, weights: Weights, attack: str
    ) -> None:
        changes = tampering({}, weights)[attack]
        del changes["SHA256SUMS"]
        ground.write(changes)
        assert re.search("changed after signing: |not signed: |does not allow a load to bring", road(ground, policy))

    @pytest.mark.parametrize("name", ["SHA256SUMS", ".gitignore", ".git/config", "3/.keep"])
    def test_the_owner_adds_a_file_of_any_name(self, ground: Ground, policy: str, name: str) -> None:
        ground.write({name: b"x"})
        assert f"not signed: {name}" in by_a_load_request(ground, policy)

    def test_the_owner_signs_with_a_key_of_their_own(self, ground: Ground, policy: str, weights: Weights) -> None:
        model = ground.write({"1/model.onnx": weights(666)})
        own = Identity(ec.generate_private_key(ec.SECP256R1()))
        ground.write({"model.sig": sign(model, own, Serialization(), signature="model.sig")})
        assert "which is not trusted" in by_a_load_request(ground, policy)

    def test_the_owner_deletes_the_signature(self, ground: Ground, policy: str) -> None:
        (ground.repository / "m" / "model.sig").unlink()
        assert "the model is not signed" in by_a_load_request(ground, policy)

    def test_an_older_release_is_served_as_the_page_says(
        self, ground: Ground, policy: str, release: Callable[[float], dict[str, bytes]]
    ) -> None:
        older = release(1)
        release(2)
        ground.write(older)
        assert by_a_load_request(ground, policy) == ""

    def test_nothing_is_left_to_warn_of(self, ground: Ground, policy: str) -> None:
        assert warnings(ground, policy) == []


class TestEncrypted:
    """The example "Encrypted only"; the page names what it stops."""

    @pytest.fixture
    def policy(self, ground: Ground, weights: Weights) -> str:
        identity = X25519Identity.generate()
        (ground.path / "m.key").write_text(identity.export())
        ground.write({"config.pbtxt": CONFIG, "1/model.onnx": weights(1)})
        plain = ground.repository / "m" / "1" / "model.onnx"
        encrypt_file(plain, plain.with_name("model.onnx.age"), [identity.recipient])
        plain.unlink()
        return example("Encrypted only").replace("/etc/repoagent/fraud-eu.key", str(ground.path / "m.key"))

    def test_the_honest_model_is_served(self, ground: Ground, policy: str) -> None:
        assert by_a_load_request(ground, policy) == ""

    def test_plain_weights_beside_a_decoy_that_is_encrypted(
        self, ground: Ground, road: Road, policy: str, weights: Weights
    ) -> None:
        directory = ground.write({"1/model.onnx": weights(666)})
        (directory / "1" / "model.onnx.age").rename(directory / "1" / "decoy.age")
        refusal = road(ground, policy)
        assert "'1/model.onnx' in a version directory is not encrypted" in refusal or "to bring" in refusal

    @pytest.mark.parametrize("place", ["2/model.onnx", "1/sub/model.onnx", "01/model.onnx"])
    def test_plain_weights_anywhere_in_a_version(
        self, ground: Ground, policy: str, weights: Weights, place: str
    ) -> None:
        ground.write({place: weights(666)})
        assert f"'{place}' in a version directory is not encrypted" in by_a_load_request(ground, policy)

    def test_plain_weights_alone(self, ground: Ground, policy: str, weights: Weights) -> None:
        directory = ground.write({"1/model.onnx": weights(666)})
        (directory / "1" / "model.onnx.age").unlink()
        assert "there is nothing to decrypt" in by_a_load_request(ground, policy)

    def test_a_key_of_the_owners_own(self, ground: Ground, policy: str) -> None:
        entry = '{ name: "decrypt" parameters { key: "identity" value: "env:HOME" } }'
        ground.write({"config.pbtxt": CONFIG + f"model_repository_agents {{ agents [ {entry} ] }}".encode()})
        assert "agent 'decrypt': not allowed for model 'm'" in by_a_load_request(ground, policy)

    def test_the_page_says_what_is_left(self, ground: Ground, policy: str) -> None:
        (warning,) = warnings(ground, policy)
        assert "no demanded guard covers every file" in warning


def warnings(ground: Ground, policy: str) -> list[str]:
    """What ``policy check`` warns of."""
    ground.policy.write_text(policy)
    result = CliRunner().invoke(command, ["check", str(ground.policy)])
    assert result.exit_code == 0
    return [line for line in result.output.splitlines() if line.startswith("warning: ")]
