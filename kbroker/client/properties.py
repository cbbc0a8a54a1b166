r"""Files of `name=value` lines as Java reads them (java.util.Properties), so that a file of a Kafka
client means the same here.

A line that begins with `#` or `!` is a comment. `\` at the end of a line continues it. `\n`, `\t`
and `\u00e9` are characters; `\` before any other character stands for that character. A name ends
at `=`, `:` or white space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kbroker.errors import OperatorError

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_LINE = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", re.DOTALL)


def read_properties(text: str, where: str) -> dict[str, str]:
    """The values by name, in the order of the file. `where`: what the text comes from, for errors.

    Raises OperatorError for a line without a name, for a name that is given twice, and for half a
    character. No error has a value.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise OperatorError(f"{where}:{number}: this line has no name; write name=value")
        try:
            name, value = (_unescaped(part) for part in parts.groups())
        except UnicodeDecodeError:
            raise OperatorError(
                f"{where}:{number}: a \\u escape is one half of a character; write both, or the character"
            ) from None
        if name in found:
            raise OperatorError(f"{where}:{number}: {name} is given more than once")
        found[name] = value
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, continued ones joined, without comments and empty lines."""
    begun, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not begun:
            if not line or line[0] in "#!":
                continue
            first = number
        if _is_continued(line):
            begun += line[:-1]
            continue
        yield first, begun + line
        begun = ""
    if begun:
        yield first, begun


def _is_continued(line: str) -> bool:
    """Whether the last backslash is not itself escaped."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        code, plain = found.groups()
        return chr(int(code, 16)) if code else _CONTROL.get(plain, plain)

    found = _ESCAPE.sub(character, text)
    # As in Java, two escapes may stand for one character beyond the first 65 536.
    return found if found.isascii() else found.encode("utf-16", "surrogatepass").decode("utf-16")
