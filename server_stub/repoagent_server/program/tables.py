"""Tables as Triton logs them."""

from collections.abc import Sequence

__all__ = ["table"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their header, with rules; begins and ends with a line break."""
    rows = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [rule, _row(header, widths), rule, *(_row(row, widths) for row in rows), rule]
    return "\n" + "\n".join(lines) + "\n"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "|".join(["", *(f" {cell.ljust(width)} " for cell, width in zip(cells, widths, strict=True)), ""])


def _printable(cell: str) -> str:
    """``cell`` on one line, whatever a name or a reason may hold."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cell)
