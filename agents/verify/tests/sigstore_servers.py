"""The services of a private Sigstore on loopback: certificates for tokens of CI, and entries in the log.

Sources: the REST interfaces of Fulcio (``/api/v2/signingCert``) and Rekor 1 (``/api/v1/log/entries``).
"""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agents.verify.tests.private_sigstore import PrivateSigstore
from tests.file_server import FileServer, Request

_JSON = {"Content-Type": "application/json"}


def token(workflow: str, issuer: str) -> str:
    """What CI gives a job of ``workflow``: ``OWNER/NAME/.github/workflows/FILE@REF``. No one verifies its signature."""
    now = int(datetime.now(UTC).timestamp())
    claims = {"iss": issuer, "aud": "sigstore", "sub": f"repo:{workflow}", "iat": now, "exp": now + 600}
    parts = ({"alg": "HS256", "typ": "JWT"}, {**claims, "job_workflow_ref": workflow})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return f"{'.'.join(encoded)}.{base64.urlsafe_b64encode(bytes(32)).rstrip(b'=').decode()}"


class SigstoreServers(FileServer):
    """Both services at one address."""

    def __init__(self, sigstore: PrivateSigstore) -> None:
        super().__init__()
        self._sigstore = sigstore
        self.handlers.append(self._serve)

    def trust_config(self) -> str:
        """What the clients of a private Sigstore are given."""
        service = {
            "url": self.url,
            "majorApiVersion": 1,
            "validFor": {"start": "2020-01-01T00:00:00Z"},
            "operator": "test",
        }
        signing = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service],
            "oidcUrls": [service],
            "rekorTlogUrls": [service],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaUrls": [],
            "tsaConfig": {"selector": "ANY"},
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": json.loads(self._sigstore.trusted_root()),
            "signingConfig": signing,
        }
        return json.dumps(document)

    def _serve(self, request: Request) -> bool:
        if request.target == "/.well-known/openid-configuration":  # asked for even where there is a token
            places = {"authorization_endpoint": f"{self.url}/auth", "token_endpoint": f"{self.url}/token"}
            request.answer(200, json.dumps(places).encode(), _JSON)
            return True
        body = json.loads(request.body())
        if request.target == "/api/v2/signingCert":
            document = self._issue(request.headers["Authorization"].removeprefix("Bearer "), body)
        elif request.target == "/api/v1/log/entries":
            document = self._enter(body)
        else:
            return False
        request.answer(201, json.dumps(document).encode(), _JSON)
        return True

    def _issue(self, given: str, body: dict[str, str]) -> dict[str, Any]:
        part = given.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        asked = x509.load_pem_x509_csr(base64.b64decode(body["certificateSigningRequest"]))
        identity = x509.UniformResourceIdentifier(f"https://github.com/{claims['job_workflow_ref']}")
        begin = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
        leaf = self._sigstore.issue(asked.public_key(), identity, claims["iss"], begin)
        chain = [leaf, self._sigstore.authority, self._sigstore.root]
        pems = [one.public_bytes(Encoding.PEM).decode() for one in chain]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": pems}}}

    def _enter(self, body: dict[str, Any]) -> dict[str, Any]:
        proposed = body["spec"]["proposedContent"]
        envelope = json.loads(proposed["envelope"])
        leaf = x509.load_pem_x509_certificate(base64.b64decode(proposed["verifiers"][0]))
        payload, signature = (
            base64.b64decode(text) for text in (envelope["payload"], envelope["signatures"][0]["sig"])
        )
        entry = self._sigstore.enter(leaf, payload, signature, datetime.now(UTC), promise=True)
        proof = entry["inclusionProof"]
        return {
            "a" * 80: {
                "body": entry["canonicalizedBody"],
                "integratedTime": int(entry["integratedTime"]),
                "logID": base64.b64decode(entry["logId"]["keyId"]).hex(),
                "logIndex": int(entry["logIndex"]),
                "verification": {
                    "inclusionProof": {
                        "checkpoint": proof["checkpoint"]["envelope"],
                        "hashes": [base64.b64decode(one).hex() for one in proof["hashes"]],
                        "logIndex": int(proof["logIndex"]),
                        "rootHash": base64.b64decode(proof["rootHash"]).hex(),
                        "treeSize": int(proof["treeSize"]),
                    },
                    "signedEntryTimestamp": entry["inclusionPromise"]["signedEntryTimestamp"],
                },
            }
        }
