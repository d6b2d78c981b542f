"""Tokens that nobody signed, that were signed for something else, or whose headers choose how they are verified."""

import base64
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_server.access import NotAuthenticatedError
from repoagent_server.access.access_file import AccessFile
from repoagent_server.access.credentials import given

from server_stub.tests.access.conftest import AUDIENCE, ISSUER, Follow, Issuer, client


@pytest.fixture
def file(follow: Follow, issuer: Issuer) -> AccessFile:
    return follow(issuer.table(), client("people", issuer="corp"))


def _refused(file: AccessFile, token: str | bytes) -> str:
    with pytest.raises(NotAuthenticatedError) as raised:
        file.access.caller(given([b"Bearer " + (token if isinstance(token, bytes) else token.encode())], []))
    return raised.value.message


def _part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _claims(**more: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, **more}


def test_a_good_token_is_taken(file: AccessFile, issuer: Issuer) -> None:
    assert file.access.caller(given([f"Bearer {issuer.token()}".encode()], [])).name == "people/alice"
    assert file.access.caller(given([f"Bearer {issuer.token(aud=['x', AUDIENCE])}".encode()], [])).name


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "others"}, "InvalidAudienceError: Audience doesn't match"),
        ({"iss": "https://others.test/"}, "its issuer or its algorithm is not in the access file"),
        ({"headers": {"kid": "two"}}, "issuer 'corp' has no such key"),
    ],
)
def test_the_log_has_the_reason_and_the_answer_has_not(
    file: AccessFile, issuer: Issuer, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], reason: str
) -> None:
    caplog.set_level(logging.DEBUG)
    assert _refused(file, issuer.token(**claims)) == "the token is not valid"
    assert reason in caplog.text


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", "HS256", "es256", "ES384", "RS256", "ES256K"])
@pytest.mark.parametrize("signature", ["", "AA", _part(bytes(64))])
def test_an_algorithm_that_the_file_does_not_name(file: AccessFile, name: str, signature: str) -> None:
    token = ".".join([_part({"alg": name, "kid": "one", "typ": "JWT"}), _part(_claims()), signature])
    assert _refused(file, token) == "the token is not valid"


@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
def test_the_public_key_as_a_shared_secret(file: AccessFile, issuer: Issuer, form: str) -> None:
    public = issuer.key.public_key()
    encodings = {"pem": serialization.Encoding.PEM, "der": serialization.Encoding.DER}
    if form == "jwk":
        secret = json.dumps(issuer.public()).encode()
    else:
        secret = public.public_bytes(encodings[form], serialization.PublicFormat.SubjectPublicKeyInfo)
    import hashlib
    import hmac

    signed = f"{_part({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{_part(_claims())}"
    signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    assert _refused(file, f"{signed}.{_part(signature)}") == "the token is not valid"


@pytest.mark.parametrize(
    "signature",
    [bytes(64), b"\xff" * 64, b"", b"\0", bytes.fromhex("30060201000201 00".replace(" ", ""))],
    ids=["zeros", "ones", "empty", "short", "der"],
)
def test_signatures_that_fit_everything(file: AccessFile, signature: bytes) -> None:
    token = ".".join([_part({"alg": "ES256", "kid": "one"}), _part(_claims()), _part(signature)])
    _refused(file, token)


@pytest.mark.parametrize(
    "kid",
    [
        "../../../dev/null",
        "/dev/null",
        "' UNION SELECT 'key",
        "two",
        "",
        "one\0",
        "One",
        "x" * 4000,
        1,
        None,
        ["one"],
        {},
    ],
    ids=lambda kid: repr(kid)[:30],
)
def test_a_key_is_found_by_its_whole_name(file: AccessFile, issuer: Issuer, kid: Any) -> None:
    stranger = ec.generate_private_key(ec.SECP256R1())
    header = _part({"alg": "ES256", "kid": kid})
    body = f"{header}.{_part(_claims())}"
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    r, s = decode_dss_signature(stranger.sign(body.encode(), ec.ECDSA(hashes.SHA256())))
    _refused(file, f"{body}.{_part(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}")


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c", "x5t"])
def test_a_key_that_a_token_brings_is_not_looked_at(file: AccessFile, issuer: Issuer, name: str) -> None:
    stranger = Issuer(issuer.folder)
    values = {"jwk": stranger.public(), "x5c": ["AA"]}
    token = stranger.token(headers={name: values.get(name, "http://127.0.0.1:1/keys")})
    assert _refused(file, token) == "the token is not valid"


@pytest.mark.parametrize(
    "headers",
    [{"typ": "logout+jwt"}, {"typ": "secevent+jwt"}, {"crit": ["exp"]}, {"crit": []}, {"b64": True}, {"typ": 7}],
    ids=str,
)
def test_a_signed_token_for_another_purpose(file: AccessFile, issuer: Issuer, headers: Mapping[str, Any]) -> None:
    try:
        token = issuer.token(headers=headers)
    except Exception:  # PyJWT does not write it; so by hand.
        token = _signed(issuer, {"alg": "ES256", "kid": "one", **headers}, _claims())
    if json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "==")).get("b64") is None and "b64" in headers:
        token = _signed(issuer, {"alg": "ES256", "kid": "one", **headers}, _claims())
    assert _refused(file, token) == "the token is not valid"


def _signed(issuer: Issuer, header: Any, claims: Any) -> str:
    """A token with any header and any claims, with a good signature."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    body = f"{_part(header)}.{_part(claims)}"
    r, s = decode_dss_signature(issuer.key.sign(body.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{body}.{_part(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


_NOW: Callable[[], int] = lambda: int(time.time())  # noqa: E731


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://login.test"},
        {"iss": [ISSUER]},
        {"iss": None},
        {"iss": {"a": ISSUER}},
        {"aud": "other"},
        {"aud": []},
        {"aud": [["models"]]},
        {"aud": {"models": 1}},
        {"aud": "model"},
        {"exp": None},
        {"exp": "never"},
        {"exp": 0},
        {"exp": -1},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"exp": [9999999999]},
        {"exp": "9" * 5000},
        {"nbf": 9999999999},
        {"iat": 9999999999},
        {"iat": "x"},
    ],
    ids=lambda claims: repr(claims)[:40],
)
def test_claims_that_are_not_as_they_must_be(file: AccessFile, issuer: Issuer, claims: Mapping[str, Any]) -> None:
    told = {name: value for name, value in _claims(**claims).items() if value is not None}
    _refused(file, _signed(issuer, {"alg": "ES256", "kid": "one", "typ": "JWT"}, told))


@pytest.mark.parametrize(
    "token",
    [
        b"..",
        b"a.b.c",
        b"....",
        b".".join([b"e30"] * 3),
        b".".join([b"W10"] * 3),
        b".".join([b"bnVsbA"] * 3),
        b"%s.e30." % base64.urlsafe_b64encode(b'{"alg":"ES256","alg":"none","kid":"one"}').rstrip(b"="),
        b"%s.e30.e30" % base64.urlsafe_b64encode(b'{"alg":["ES256"]}').rstrip(b"="),
        b"%s.e30.e30" % base64.urlsafe_b64encode(b'{"a":' * 1000 + b"1" + b"}" * 1000).rstrip(b"="),
    ],
    ids=range(9),
)
def test_what_is_hardly_a_token(file: AccessFile, token: bytes) -> None:
    assert _refused(file, token) in ("the token is not valid", "the key is not valid")


def test_deep_claims_of_a_signed_token_are_refused_not_a_crash(file: AccessFile, issuer: Issuer) -> None:
    deep = json.dumps(_claims(x=7)).replace("7}", "[" * 2500 + "]" * 2500 + "}").encode()
    token = _signed(issuer, {"alg": "ES256", "kid": "one"}, deep)
    assert len(token) < 8192
    _refused(file, token)


def test_a_token_of_one_client_is_not_that_of_another(follow: Follow, issuer: Issuer) -> None:
    file = follow(
        issuer.table(),
        client("team", issuer="corp", claims={"groups": "data", "email_verified": "yes"}),
        client("scoped", issuer="corp", claims={"scope": "models.infer"}),
    )

    def name(**claims: Any) -> str:
        try:
            return file.access.caller(given([f"Bearer {issuer.token(**claims)}".encode()], [])).client.name
        except NotAuthenticatedError as error:
            return error.message

    assert name(groups=["x", "data"], email_verified="yes") == "team"
    assert name(scope="openid models.infer") == "scoped"
    refused = "the token is valid, but its claims belong to no client of the access file"
    for claims in (
        {"groups": ["data"]},
        {"groups": "database", "email_verified": "yes"},
        {"groups": {"data": 1}, "email_verified": "yes"},
        {"groups": ["data"], "email_verified": True},
        {"scope": "models.infer.not"},
        {"scope": "models.infer,x"},
    ):
        assert name(**claims) == refused


def test_verified_tokens_do_not_pile_up(file: AccessFile, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent_server.access.rules._TOKENS", 3)
    for number in range(10):
        file.access.caller(given([f"Bearer {issuer.token(jti=str(number))}".encode()], []))
    assert len(file.access.rules._verified) <= 3
