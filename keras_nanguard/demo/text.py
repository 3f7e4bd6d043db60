"""Plain-text tables and paragraphs of the demo, at most 100 columns wide."""

import textwrap

WIDTH = 100


def heading(text, underline="="):
    return f"\n{text}\n{underline * len(text)}"


def paragraph(text, indent=""):
    """`text` as one wrapped paragraph."""
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=indent, subsequent_indent=indent)


def table(header, rows):
    """Columns as wide as their widest cell; the first is set flush left, the others flush right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join("  " + line.rstrip() for line in lines)


def number(value):
    """A loss for people: four digits, and `nan` as it is."""
    return f"{value:.4f}"


def several(values, most=6):
    """`3, 8, 21 and 4 more`."""
    shown = ", ".join(str(value) for value in values[:most])
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")
