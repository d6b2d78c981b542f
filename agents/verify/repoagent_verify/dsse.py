"""DSSE: what a signature over an envelope covers.

Source: the DSSE protocol 1.0, and the OpenSSF Model Signing specification, section 6.7.
"""

from typing import Final

__all__ = ["PAYLOAD_TYPE", "pre_authentication_encoding", "pre_authentication_encoding_of_0_2"]

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"


def pre_authentication_encoding(payload: bytes) -> bytes:
    """The bytes that are signed: the payload's type and the payload, each with its length in front."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def pre_authentication_encoding_of_0_2(payload: bytes) -> bytes:
    """What version 0.2 of the reference tool signed by mistake: the payload as Python shows bytes."""
    text = f"DSSEV1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} {payload!r}"
    return text.encode()
