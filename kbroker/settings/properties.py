r"""Files of `name=value` lines as Java reads them (java.util.Properties), so that a file of a Kafka
client or a Kafka broker means the same here.

A line that begins with `#` or `!` is a comment. `\` at the end of a line continues it. `\n`, `\t`
and `\u00e9` are characters; `\` before any other character stands for that character. A name ends
at `=`, `:` or white space. Of a name that is given twice the last value applies.

Three things differ. A file in UTF-8 is read as such, also with a byte order mark; Java reads every
file as ISO-8859-1. A line without a name is an error, and so is the character NUL, which no value
may have: it ends the name of a file, and is in each line of a file in UTF-16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker.errors import OperatorError

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
"""Java's white space within a line; Python's has more."""
_END = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"((?:\\.|[^\\=: \t\f])+)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


class Property(NamedTuple):
    """`line`: the number of the first line, from 1. `fault`: why it cannot be read, if so; name and
    value are empty then."""

    line: int
    name: str
    value: str
    fault: str = ""


def read_text(path: Path) -> str:
    """The text of a file in UTF-8 or, if it is not that, in ISO-8859-1. Raises OSError."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def properties(text: str) -> Iterator[Property]:
    """Every line of the text, also those that a later one overrides."""
    for number, line in _logical_lines(text):
        parts = _LINE.fullmatch(line)
        if parts is None:
            yield Property(number, "", "", "this line has no name; write name=value")
            continue
        try:
            name, value = (_unescaped(part) for part in parts.groups())
        except UnicodeDecodeError:
            why = "a \\u escape is one half of a character; write both, or the character"
            yield Property(number, "", "", why)
        except ValueError as error:
            yield Property(number, "", "", str(error))
        else:
            if "\0" in name + value:
                why = "the character NUL is in no name and no value; a file is text in UTF-8 or ISO-8859-1"
                yield Property(number, "", "", why)
            else:
                yield Property(number, name, value)


def read_properties(text: str, where: str) -> dict[str, str]:
    """The values by name. `where`: what the text comes from, for errors.

    Raises OperatorError for the first line that cannot be read. No error has a value.
    """
    found: dict[str, str] = {}
    for line, name, value, fault in properties(text):
        if fault:
            raise OperatorError(f"{where}:{line}: {fault}")
        found[name] = value
    return found


def as_properties(settings: Mapping[str, str]) -> str:
    """The lines of a file that has these values. Names need no escapes: they are names of
    settings."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text[:1] in tuple(_BLANKS) else text


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, continued ones joined, without comments and empty lines."""
    begun, first = "", 0
    for number, raw in enumerate(_END.split(text), 1):
        line = raw.lstrip(_BLANKS)
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
    """Raises ValueError."""

    def character(found: re.Match[str]) -> str:
        code, plain = found.groups()
        if plain == "u":
            raise ValueError("\\u needs four hexadecimal digits; write \\\\ for a backslash")
        return chr(int(code, 16)) if code else _CONTROL.get(plain, plain)

    found = _ESCAPE.sub(character, text)
    # As in Java, two escapes may stand for one character beyond the first 65 536.
    return found if found.isascii() else found.encode("utf-16", "surrogatepass").decode("utf-16")
