"""Identity files and recipients files."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_decrypt.age.keys import holds_secret_key, parse_identities, parse_recipients, recipients_of
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.files.errors import InvalidKeyError


def test_an_identity_file_may_hold_comments_several_keys_and_kinds() -> None:
    first, second = X25519Identity.generate(), HybridIdentity.generate()
    text = f"# created: today\n# public key: x\n{first.export()}\n\n  {second.export()}  \r\nAGE-PLUGIN-YUBIKEY-1QQQQ\n"
    found = parse_identities(text.encode(), "keys.txt")
    assert [type(identity) for identity in found.native] == [X25519Identity, HybridIdentity]
    assert [identity.kind for identity in found.foreign] == ["plugin"]
    assert recipients_of(parse_identities(first.export().encode(), "k"), "k") == [str(first.recipient)]
    with pytest.raises(InvalidKeyError, match="given by its owner"):
        recipients_of(found, "keys.txt")


def test_an_ssh_key_is_taken_whole() -> None:
    found = parse_identities(b"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n", "id")
    assert [identity.kind for identity in found.foreign] == ["ssh"]
    assert "abc" not in repr(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "holds no identity"),
        (b"# only a comment\n", "holds no identity"),
        (b"\xff\xfe", "not a text"),
        (b"# one\nhello", "keys.txt, line 2: not an identity"),
        (b"age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj", "this is a recipient"),
        (b"AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEZ", "checksum"),
    ],
)
def test_a_bad_identity_file_is_named_with_its_line_but_never_quoted(text: bytes, message: str) -> None:
    with pytest.raises(InvalidKeyError, match=message) as error:
        parse_identities(text, "keys.txt")
    assert "keys.txt" in str(error.value)
    assert "GFPYYSJZ" not in str(error.value)


def test_a_recipients_file_may_hold_every_kind() -> None:
    text = "\n".join(
        [
            "# who may read",
            str(X25519Identity.generate().recipient),
            str(HybridIdentity.generate().recipient),
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN alice@host",
            "age1yubikey1qwt50d05nh5vutpdzmlg5wn80xq5negm4uj9ghv0snvdd3yysf5yw3rhl3t",
        ]
    )
    found = parse_recipients(text.encode(), "people.txt")
    assert len(found.native) == 2
    assert len(found.foreign) == 2


def test_a_secret_key_among_the_recipients_is_refused_without_showing_it() -> None:
    secret = X25519Identity.generate().export()
    with pytest.raises(InvalidKeyError, match="secret key") as error:
        parse_recipients(secret.encode(), "people.txt")
    assert secret not in str(error.value)


def test_secret_keys_are_recognised_in_any_case_and_place() -> None:
    secret = X25519Identity.generate().export()
    assert holds_secret_key(secret.lower())
    assert holds_secret_key(f"env:{secret}")
    assert holds_secret_key("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert not holds_secret_key("file:/run/secrets/age.key")


@given(
    st.binary(max_size=200)
    | st.from_regex(rb"\A(AGE-SECRET-KEY-(PQ-)?1|AGE-PLUGIN-|age1(pq1)?|ssh-)[A-Za-z0-9\n#]{0,80}\Z")
)
def test_fuzz_any_key_file_is_read_or_an_invalid_key(data: bytes) -> None:
    with suppress(InvalidKeyError):
        parse_identities(data, "keys")
    with suppress(InvalidKeyError):
        parse_recipients(data, "people")
