"""What README.md promises, taken out of it: commands, programs and what they print. Also run by `.ci/run`, without pytest.

    python3 tests/readme.py commands          the commands, one a line
    python3 tests/readme.py check N OUTPUT    whether the file OUTPUT has the lines shown for command N (from 0)
"""

import re
import sys
from pathlib import Path

PATH = Path(__file__).parents[1] / "README.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(language):
    """`(text, shown)` of each fenced block of a language; `shown` is the `text` block that comes before the next, or `None`."""
    blocks = _BLOCK.findall(PATH.read_text(encoding="utf-8"))
    nexts = [*blocks[1:], ("", "")]
    return [(text, after if then == "text" else None) for (kind, text), (then, after) in zip(blocks, nexts) if kind == language]


def missing(shown, printed):
    """The lines of `shown` that `printed` does not have in this order. How large numbers are, and spaces, do not matter."""
    lines = iter(_alike(printed))
    return [line for line in _alike(shown) if line not in lines]


def _alike(text):
    return [re.sub(r"[=-]{2,}", "-", re.sub(r"\d[\d.:]*", "0", " ".join(line.split()))) for line in text.splitlines() if line.strip()]


def main(argv):
    commands = examples("sh")
    if argv == ["commands"]:
        print("".join(text for text, _ in commands), end="")
        return 0
    _, number, path = argv
    lost = missing(commands[int(number)][1], Path(path).read_text(encoding="utf-8"))
    for line in lost:
        print(f"README.md shows a line that was not printed: {line}", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
