"""Rules of the recipient types that the vectors do not reach."""

import pytest
from repoagent_decrypt.age.keys import parse_identities
from repoagent_decrypt.age.stanzas import FileKey, Stanza
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity, HybridRecipient
from repoagent_decrypt.age.stanzas.scrypt import (
    DEFAULT_WORK_FACTOR,
    MAX_WORK_FACTOR,
    ScryptIdentity,
    ScryptRecipient,
)
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity, X25519Recipient
from repoagent_decrypt.files.errors import HeaderError, InvalidKeyError

SPEC_IDENTITY = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX"
SPEC_RECIPIENT = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"


def test_the_specifications_identity_has_the_specifications_recipient() -> None:
    identity = X25519Identity.parse(SPEC_IDENTITY)
    assert str(identity.recipient) == SPEC_RECIPIENT
    assert identity.export() == SPEC_IDENTITY
    assert "SECRET" not in repr(identity)


@pytest.mark.parametrize("kind", [X25519Identity, HybridIdentity])
def test_keys_survive_text_and_open_what_was_wrapped(kind: type[X25519Identity] | type[HybridIdentity]) -> None:
    identity = kind.parse(kind.generate().export())
    key = FileKey.generate()
    stanzas = identity.recipient.wrap(key)
    opened = identity.unwrap(stanzas)
    assert opened is not None
    assert opened.secret == key.secret
    assert kind.generate().unwrap(stanzas) is None
    assert identity.export() not in repr(identity)


@pytest.mark.parametrize("parse", [X25519Recipient.parse, HybridRecipient.parse, X25519Identity.parse,
                                   HybridIdentity.parse])  # fmt: skip
def test_keys_of_another_prefix_or_length_are_refused(parse: object) -> None:
    assert callable(parse)
    for text in ("split1checkupstagehandshakeupstreamerranterredcaperredlc445v", "age1", "", SPEC_IDENTITY[:-1]):
        with pytest.raises(InvalidKeyError):
            parse(text)


def test_a_recipient_of_low_order_is_refused() -> None:
    with pytest.raises(InvalidKeyError, match="low order"):
        X25519Recipient(bytes(32)).wrap(FileKey.generate())


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(InvalidKeyError):
        X25519Recipient(bytes(31))
    with pytest.raises(InvalidKeyError):
        X25519Identity(bytes(33))
    with pytest.raises(InvalidKeyError):
        HybridIdentity(bytes(31))
    with pytest.raises(HeaderError, match="file key"):
        FileKey(bytes(15))


def test_a_passphrase_opens_what_it_wrapped_up_to_the_limit() -> None:
    key = FileKey.generate()
    stanzas = ScryptRecipient(b"secret", work_factor=4).wrap(key)
    opened = ScryptIdentity(b"secret", max_work_factor=4).unwrap(stanzas)
    assert opened is not None
    assert opened.secret == key.secret
    assert ScryptIdentity(b"wrong").unwrap(stanzas) is None
    with pytest.raises(HeaderError, match="above the limit of 3"):
        ScryptIdentity(b"secret", max_work_factor=3).unwrap(stanzas)


def test_the_work_factors_are_those_of_the_age_tool() -> None:
    assert (DEFAULT_WORK_FACTOR, MAX_WORK_FACTOR) == (18, 22)


def test_a_work_factor_of_a_million_digits_costs_nothing() -> None:
    stanza = Stanza(("scrypt", "AAAAAAAAAAAAAAAAAAAAAA", "9" * 1_000_000), bytes(32))
    with pytest.raises(HeaderError, match="above the limit"):
        ScryptIdentity(b"x").unwrap([stanza])


def test_empty_passphrases_and_silly_work_factors_are_refused() -> None:
    for make in (ScryptIdentity, ScryptRecipient):
        with pytest.raises(InvalidKeyError, match="empty"):
            make(b"")
    with pytest.raises(InvalidKeyError, match="1 to 30"):
        ScryptRecipient(b"x", work_factor=31)


def test_secrets_can_be_wiped_and_do_not_show() -> None:
    key = FileKey.generate()
    assert repr(key) == "FileKey(...)"
    key.wipe()
    assert key.secret == bytes(16)
    word = ScryptIdentity(b"secret")
    word.wipe()
    assert "secret" not in repr(word)
    assert "secret" not in repr(ScryptRecipient(b"secret"))
    assert len(parse_identities(SPEC_IDENTITY.encode(), "test").native) == 1
