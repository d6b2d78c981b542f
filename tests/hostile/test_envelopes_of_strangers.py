"""T3: what claims to be signed is read before its signature is verified: it takes neither time nor memory."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from repoagent_attest.cli import attest_group

from repoagent.api import envelopes
from repoagent.api.envelopes import sign, verify
from repoagent.errors import InvalidArgumentError

KEY = ec.generate_private_key(ec.SECP256R1())


def test_an_envelope_has_few_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a hash of the whole payload: of 12 MB with a hundred thousand signatures, half an hour."""
    envelope = sign(b"{}", KEY)["dsseEnvelope"]
    (good,) = envelope["signatures"]
    bad = {"keyid": "", "sig": base64.b64encode(b"no signature").decode()}
    assert verify({**envelope, "signatures": [bad] * 15 + [good]}, KEY.public_key()) == b"{}"
    monkeypatch.setattr(envelopes, "holds", lambda *_: pytest.fail("it was tried"))
    with pytest.raises(InvalidArgumentError, match="has 100000 signatures, expected at most 16"):
        verify({**envelope, "signatures": [bad] * 100_000}, KEY.public_key())


@pytest.mark.parametrize("where", ["", "verificationMaterial"])
def test_a_receipt_has_few_values(where: str, tmp_path: Path) -> None:
    """A server that is asked for one sends 256 MB of brackets, which would be gigabytes of lists."""
    values: list[list[int]] = [[] for _ in range(20_000)]
    bundle: Any = sign(b"{}", KEY)
    document = {"summary": {**bundle, where: values} if where else bundle, "details": bundle, "more": values}
    (tmp_path / "sent.json").write_text(json.dumps(document))
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(pem)
    words = ["verify", str(tmp_path / "sent.json"), "--public-key", str(tmp_path / "key.pem")]
    result = CliRunner().invoke(attest_group, words)
    assert result.exit_code == 2
    assert "more than 10000 values" in result.output
