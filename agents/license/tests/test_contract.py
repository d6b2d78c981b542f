"""The agent keeps what every agent promises. It must be installed where this runs, as its entry point is looked up."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from repoagent_license.agent import LicenseAgent
from repoagent_license.license_file import issue_license
from repoagent_license.terms import Terms

from repoagent.testing import AgentContract

pytestmark = pytest.mark.slow

KEY = Ed25519PrivateKey.generate()
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


def model(expires: datetime) -> dict[str, bytes]:
    signed = issue_license(KEY, Terms(("*",), BEGIN, expires))
    return {"1/model.onnx": b"weights", "license.json": signed}


class TestContract(AgentContract):
    agent = LicenseAgent
    entry_point = "license"
    parameters = {"license": "license.json", "public_key": "fake:vendor.pem"}
    secrets = {"vendor.pem": KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)}
    good_model = model(expires=datetime(9000, 1, 1, tzinfo=UTC))
    bad_model = model(expires=datetime(2021, 1, 1, tzinfo=UTC))
    readme = Path(__file__).parents[1] / "README.md"
