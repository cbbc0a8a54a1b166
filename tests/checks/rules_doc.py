"""Generates docs/behaviour.md and docs/differences.md from docs/rules: `python -m
tests.checks.rules_doc` (or `make docs`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.checks.rules import Difference, Rule, Section, table

DOCS = Path(__file__).parents[2] / "docs"

BEHAVIOUR = """# How kbroker behaves: the rules

Made from the table in `docs/rules` by `make docs`; do not edit.

Everything that a client of share groups can observe, one rule to a row. The rules follow the KIPs,
corrected by the answers of released Kafka. Tests and the scripts of `tests/differential` name the
rules that they show, and `python -m tests.checks.behaviour` prints which test shows which rule. An
id is never reused; a new rule gets the next number after its letters.

*source*: a KIP and, if it has one, its section. A version (`4.2`) means: behaviour of Apache Kafka
since that release that no KIP describes, or that a KIP describes differently. *seen* means: an
answer of a running Apache Kafka 4.4.0 with one node and, apart from the rules about rights, no authorizer.

*kbroker*: empty if kbroker does the same. *better* is an intended difference, where Kafka answers
late, loses or refuses without need, and no client relies on it. *left out* is behaviour that
kbroker does not have for now, with the reason; such rules need no test. *not yet* is planned and
still missing. An id such as DIF-1 leads to the reason in [the differences](differences.md).

Words: SPSO and SPEO are the start and end offset of a share-partition, its *window* lies between
them. A *cached batch* is one unit of the window. Log start is a partition's first offset. DCC is
the delivery complete count (KIP-1226). A number after an answer is the error code; -1 is
UNKNOWN_SERVER_ERROR. The *reset policy* is the group config `share.auto.offset.reset`.
"""

UNTESTED = """## Not yet shown

Rules without a test that names them, marked with `untested` in the table: {ids}.
"""

DIFFERENCES = """# Differences to Apache Kafka

Made from the table in `docs/rules` by `make docs`; do not edit.

`make differential` compares kbroker's answers with those of Apache Kafka 4.4.0, field by field, for
every script in `tests/differential/scripts`. Kafka's answers are stored in
`tests/differential/recorded`; `make record-kafka` records them again, which needs Java and Maven.
Scripts about authentication and authorization have a second Kafka, with an authorizer and SASL
listeners. Scripts that restart their broker or alter its settings have a third one.
Ids and times are mapped, and message texts compare only as null or not null. This page lists every
difference; everything else is equal. A reason begins with the ids of [the rules](behaviour.md) to
which the difference belongs.
"""

KAFKA = "Kafka 4.4.0"


def behaviour() -> str:
    lines = [BEHAVIOUR]
    for chapter in table().chapters:
        lines += [f"## {chapter.title}", "", *_paragraph(chapter.text), *_sections(chapter.sections, "###")]
    untested = [rule.id for rule in table().rules if rule.untested]
    return "\n".join([*lines, UNTESTED.format(ids=", ".join(untested) or "none")])


def differences() -> str:
    rows = _table(["id", KAFKA, "kbroker", "why"], map(_difference, table().differences))
    return "\n".join([DIFFERENCES, *rows, *_sections(table().others, "##")]).rstrip() + "\n"


def _sections(sections: Iterable[Section], level: str) -> Iterator[str]:
    for section in sections:
        yield from _paragraph(section.title and f"{level} {section.title}")
        yield from _paragraph(section.text)
        if section.rules:
            yield from _table(["id", "rule", "source", "kbroker"], map(_rule, section.rules))
        if section.rows:
            names = [KAFKA if key == "kafka" else key for key in section.rows[0]]
            yield from _table(names, (list(row.values()) for row in section.rows))


def _paragraph(text: str) -> Sequence[str]:
    return (text, "") if text else ()


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (names, ["---"] * len(names), *rows):
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")
    yield ""


def _rule(rule: Rule) -> Sequence[str]:
    return rule.id, rule.text, rule.source, rule.difference


def _difference(each: Difference) -> Sequence[str]:
    why = f"{', '.join(each.rules)}: {each.why}" if each.rules else each.why
    return each.id, each.kafka, each.kbroker, why


PAGES = {DOCS / "behaviour.md": behaviour, DOCS / "differences.md": differences}

if __name__ == "__main__":
    for path, render in PAGES.items():
        path.write_text(render())
