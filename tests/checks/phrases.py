"""Finds phrases that are not idiomatic technical English (CONTRIBUTING.md, "English").

    python -m tests.checks.phrases [PATHS]      default: everything in SEARCHED

Prints `file:line: "phrase": hint` for each hit in documents, docstrings, comments and other
strings. Line breaks are ignored, so a phrase may cross them. Code in a document or docstring
(`like this`) is not searched, nor is a phrase that directly follows a double quote.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.checks.sources import comments, source

ROOT = Path(__file__).parents[2]
SEARCHED = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "PACKAGE.md",
    "docs",
    "kbroker",
    "plugins",
    "clients",
    "spark",
    "perf",
)
OUTSIDE = frozenset({"build", "dist", "tests", "node_modules"})
"""Folders that are skipped below the given paths; `tests` may still be given itself."""

_SENTENCE = r"(?:(?<=[.:;!*-] )|(?<=^))"
_NO_QUESTION = r"(?![^.:]{0,120}\?)"

PHRASES = {
    r"whoever|whomever": "name the actor: the caller, the client, the task",
    r"who says": "name the actor, say what it does: a caller that passes ...",
    rf"{_SENTENCE}(?-i:Who) {_NO_QUESTION}\w+": "name the actor",
    rf"{_SENTENCE}(?-i:What) (?:is|are|was|were|has|had|does|do|did|there|comes|cannot|can|may|must|stands"
    rf"|holds|belongs|follows|needs|takes|waits|cost|costs) {_NO_QUESTION}\w+": "name the thing",
    r"what (?:is|was|are|were) (?:not|there)": "name the thing",
    r"what there (?:is|was)": "name the thing",
    r"(?:is|are|was|were|be|been|being) (?:not )?told": "is notified, receives",
    r"(?:is|are|was|were|be|been|being) (?:not )?asked": "is queried, read, consulted, requested",
    r"(?:hear|hears|heard) (?:of|that|what|it)": "is notified of, learns",
    r"anew|afresh": "again, from scratch; recreate, reload",
    r"(?:goes|go|going|went) on": "continue, resume",
    r"(?:comes|come|came|coming) again": "is redelivered, retries",
    r"(?:is|are|was|were|be|been) (?:taken|given) back": "is undone, is released",
    r"behind that": "name the thing that it follows",
    r"all else": "everything else",
    r"(?:it|everything|a record|a batch|a commit) counts"
    r"(?= (?:at once|when|until|already|only|from|also|if)\b|[,.;:)])": "is durable, is visible",
    r"none of ours": "not one of kbroker's",
}
ALLOWED: dict[str, tuple[str, ...]] = {
    "tests/differential/scripts/share_session_ends.py": ("anew",),  # the value of a recorded record
}
"""File -> its phrases that stay, each with the reason behind it."""

_MATCHERS = [
    (re.compile(rf"(?<![\w\"“])(?:{phrase})\b", re.IGNORECASE), PHRASES[phrase]) for phrase in PHRASES
]
_CODE = re.compile(r"``.+?``|`[^`\n]+`", re.DOTALL)
_FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)


class Hit(NamedTuple):
    path: Path
    line: int
    phrase: str
    hint: str


def search(paths: Iterable[Path]) -> list[Hit]:
    """All hits in the Python files and documents at and below `paths`."""
    return [
        hit
        for path in paths
        for file in _files(path)
        for line, text in _texts(file)
        for hit in _hits(file, line, text)
        if hit.phrase.lower() not in ALLOWED.get(file.relative_to(ROOT).as_posix(), ())
    ]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = [each for pattern in ("*.py", "*.md") for each in path.rglob(pattern)]
    return sorted(each for each in found if not OUTSIDE.intersection(each.relative_to(path).parts))


def _hits(path: Path, first_line: int, text: str) -> Iterator[Hit]:
    """`text` begins in `first_line`. A blank line ends a sentence."""
    searched = re.sub(r"\n\s*\n", lambda gap: ". ".ljust(len(gap[0])), _without_code(text))
    flat = re.sub(r"\s", " ", searched)
    squeezed, places = _squeeze(flat)
    for matcher, hint in _MATCHERS:
        for match in matcher.finditer(squeezed):
            line = first_line + text.count("\n", 0, places[match.start()])
            yield Hit(path, line, match[0], hint)


def _without_code(text: str) -> str:
    """The same length and lines, with code blanked by `x`, which ends no sentence."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", "x", match[0])

    return _CODE.sub(blank, _FENCE.sub(blank, text))


def _squeeze(text: str) -> tuple[str, list[int]]:
    """Runs of spaces as one, and where each character was."""
    places = [at for at, character in enumerate(text) if character != " " or (at > 0 and text[at - 1] != " ")]
    return "".join(text[at] for at in places), places


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """(first line, text) of each piece of prose."""
    text = path.read_text()
    if path.suffix != ".py":
        yield 1, text
        return
    yield from source(path).strings
    found = [(line, comment.lstrip("#:").strip()) for line, comment in comments(text)]
    for _, lines in groupby(enumerate(found), lambda each: each[1][0] - each[0]):
        block = [comment for _, comment in lines]
        yield block[0][0], "\n".join(comment for _, comment in block)


def main(arguments: list[str]) -> int:
    paths = [Path(each).resolve() for each in arguments] or [ROOT / each for each in SEARCHED]
    found = search(paths)
    for path, line, phrase, hint in found:
        print(f'{path.relative_to(ROOT)}:{line}: "{phrase}": {hint}')
    print(f"{len(found)} phrases")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
