"""Bech32 against BIP 173's own vectors, the keys printed in the age specification, and noise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_decrypt.age.primitives.encoding import bech32_decode, bech32_encode
from repoagent_decrypt.files.errors import InvalidKeyError

SPEC_IDENTITY = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX"
SPEC_RECIPIENT = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"
VALID = [  # BIP 173, "Test vectors", those whose data is a whole number of bytes
    "A12UEL5L",
    "a12uel5l",
    "an83characterlonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1tt5tgs",
    "split1checkupstagehandshakeupstreamerranterredcaperred2y9e3w",
]
INVALID = [
    "\x201nwldj5", "\x7f1axkwrx", "pzry9x0s0muk", "1pzry9x0s0muk", "x1b4n0q5v", "li1dgmt3",
    "de1lg7wt\xff", "A1G7SGD8", "10a06t8", "1qzzfhee", "A12uEL5L", "",
]  # fmt: skip


def test_the_specifications_identity_decodes_to_its_bytes() -> None:
    assert bech32_decode(SPEC_IDENTITY) == ("AGE-SECRET-KEY-", b"\x42" * 32)
    assert bech32_encode("AGE-SECRET-KEY-", b"\x42" * 32) == SPEC_IDENTITY


@pytest.mark.parametrize("text", VALID)
def test_valid_strings_of_bip_173_are_read_and_written_back(text: str) -> None:
    assert bech32_encode(*bech32_decode(text)) == text


@pytest.mark.parametrize("text", INVALID)
def test_invalid_strings_of_bip_173_are_refused(text: str) -> None:
    with pytest.raises(InvalidKeyError):
        bech32_decode(text)


@given(st.binary(max_size=200), st.sampled_from(["age", "AGE-SECRET-KEY-", "x1y", "age1pq"]))
def test_what_is_encoded_decodes_again(data: bytes, prefix: str) -> None:
    assert bech32_decode(bech32_encode(prefix, data)) == (prefix, data)


@given(st.integers(0, len(SPEC_RECIPIENT) - 1), st.sampled_from("qpzry9x8gf2tvdw0s3jn54khce6mua7l"))
def test_one_changed_letter_is_always_noticed(position: int, letter: str) -> None:
    changed = SPEC_RECIPIENT[:position] + letter + SPEC_RECIPIENT[position + 1 :]
    if changed != SPEC_RECIPIENT:
        with pytest.raises(InvalidKeyError):
            bech32_decode(changed)


@given(st.text(max_size=120) | st.from_regex(r"\A[a-z]{1,4}1[qpzry9x8gf2tvdw0s3jn54khce6mua7l]{0,60}\Z"))
def test_fuzz_bech32_only_ever_says_invalid_key_and_never_repeats_the_text(text: str) -> None:
    try:
        bech32_decode(text)
    except InvalidKeyError as error:
        message = str(error)
    else:
        return
    assert len(text) < 12 or text not in message


def test_a_mixed_case_prefix_is_refused() -> None:
    with pytest.raises(InvalidKeyError, match="mix"):
        bech32_encode("Age", b"x")
