"""The fixtures of the hostile tests of the whole program."""

from tests.hostile.conftest import _opens, at_open, decoder_folder, new_core, outside, reasons, repository, workspace

__all__ = ["_opens", "at_open", "decoder_folder", "new_core", "outside", "reasons", "repository", "workspace"]
