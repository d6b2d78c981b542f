"""Tables as Triton logs them."""

from collections.abc import Sequence

__all__ = ["table"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their header, with rules; begins and ends with a line break."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [rule, _row(header, widths), rule, *(_row(row, widths) for row in rows), rule]
    return "\n" + "\n".join(lines) + "\n"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "|".join(["", *(f" {cell.ljust(width)} " for cell, width in zip(cells, widths, strict=True)), ""])
