"""Reads docs/rules, the table of the rules and of the deliberate differences to Apache Kafka.

Each file with a number is a chapter of docs/behaviour.md, in that order. It has `title`, perhaps
`text`, and `[[section]]`s with the same two; `[section.RPC-1]` is a rule of the section above it:

- rule, source: as the head of docs/behaviour.md explains
- state: "better", "left out" or "not yet"; without it kbroker does as Kafka, or as `kbroker` says
- kbroker: what kbroker does, or the reason; without it, that of the rule's differences
- untested: true if no test names the rule

`[section.RPC-1.DIF-1]` below a rule is a difference that belongs to it, with an id of its own:

- kafka: without it, the text of the rule
- kbroker, why
- also: other rules to which it belongs

differences.toml has `[DIF-51]`, a difference that belongs to no rule, and the sections of
docs/differences.md without ids. `[[section.rows]]` are rows of a table; their keys are its columns.
Line breaks in a field of a row are spaces.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
STATES = ("", "better", "left out", "not yet")


@dataclass(frozen=True)
class Difference:
    id: str
    kafka: str
    kbroker: str
    why: str
    rules: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """`differences`: the ids of those that belong to it."""

    id: str
    text: str
    source: str
    differences: Sequence[str]
    state: str = ""
    kbroker: str = ""
    untested: bool = False

    @property
    def difference(self) -> str:
        """State, text and ids together; empty if kbroker does the same."""
        text = f"{self.state}: {self.kbroker}" if self.state else self.kbroker
        return f"{text} ({', '.join(self.differences)})" if self.differences else text


class Section(NamedTuple):
    """`title` and `text` may be empty. It has rules, or rows of a table without ids."""

    title: str
    text: str
    rules: Sequence[Rule]
    rows: Sequence[Mapping[str, str]]


class Chapter(NamedTuple):
    title: str
    text: str
    sections: Sequence[Section]


class Table(NamedTuple):
    """`others`: the sections of docs/differences.md after its differences with ids."""

    chapters: Sequence[Chapter]
    differences: Sequence[Difference]
    others: Sequence[Section]

    @property
    def rules(self) -> list[Rule]:
        return [rule for chapter in self.chapters for section in chapter.sections for rule in section.rules]


@cache
def table() -> Table:
    chapters = [_read(path) for path in sorted(FOLDER.glob("[0-9]*.toml"))]
    others = _read(FOLDER / "differences.toml")
    found = [
        *(each for chapter in chapters for section in chapter["section"] for each in _nested(section)),
        *(Difference(name, **fields) for name, fields in _ids(others)),
    ]
    return Table(
        [
            Chapter(
                chapter["title"],
                chapter.get("text", ""),
                [_section(each, found) for each in chapter["section"]],
            )
            for chapter in chapters
        ],
        sorted(found, key=lambda each: int(each.id.removeprefix("DIF-"))),
        [_section(each, ()) for each in others["section"]],
    )


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def _ids(fields: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rules of a section, or the differences of a rule or file; no other key is a table."""
    return ((key, _joined(value)) for key, value in fields.items() if isinstance(value, dict))


def _joined(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: " ".join(text.split()) if isinstance(text, str) else text for key, text in fields.items()}


def _nested(section: Mapping[str, Any]) -> Iterator[Difference]:
    for rule, fields in _ids(section):
        for name, difference in _ids(fields):
            rules = (rule, *difference.pop("also", ()))
            yield Difference(name, rules=rules, **{"kafka": fields["rule"], **difference})


def _section(fields: Mapping[str, Any], found: Sequence[Difference]) -> Section:
    return Section(
        fields.get("title", ""),
        fields.get("text", "").strip(),
        [_rule(name, rule, found) for name, rule in _ids(fields)],
        [_joined(row) for row in fields.get("rows", ())],
    )


def _rule(name: str, fields: Mapping[str, Any], found: Sequence[Difference]) -> Rule:
    own = [each for each in found if name in each.rules]
    rest = {key: value for key, value in fields.items() if not isinstance(value, dict)}
    rest = {"kbroker": "; ".join(each.kbroker for each in own), **rest}
    return Rule(name, rest.pop("rule"), rest.pop("source"), [each.id for each in own], **rest)
