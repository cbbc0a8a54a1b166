"""Where kbroker answers otherwise than Apache Kafka on purpose: each has its reason in docs/differences.md under the same id.

A difference is matched by the script, the place in the answers and both values. Anything else that differs is a bug. One that no
script meets any more is a bug as well: the list tells what is, not what was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.differential.running import Found
from tests.differential.transcript import Json


@dataclass(frozen=True)
class Difference:
    """`path`: a regular expression found in the place; `scripts`: a pattern of names; `holds`: of Kafka's value and kbroker's."""

    id: str
    path: str
    holds: Callable[[Json, Json], bool]
    scripts: str = "*"

    def explains(self, found: Found) -> bool:
        return (
            fnmatchcase(found.script, self.scripts)
            and re.search(self.path, found.path) is not None
            and self.holds(found.kafka, found.kbroker)
        )


def values(kafka: Json, kbroker: Json) -> Callable[[Json, Json], bool]:
    """Exactly these two."""
    return lambda theirs, ours: theirs == kafka and ours == kbroker


NOT_YET_EQUAL = frozenset((Path(__file__).parent / "not_yet_equal.txt").read_text().split())
"""Scripts whose differences are neither mended nor listed so far. It only ever gets shorter."""

KNOWN: Sequence[Difference] = (
    Difference("DIF-1", r"current_leader\.leader_id$", values(0, -1)),
    Difference("DIF-1", r"current_leader\.leader_epoch$", lambda theirs, ours: theirs in (0, "epoch") and ours == -1),
)


def explain(found: Found) -> str | None:
    """The id of the difference that explains this one, or None: a bug of ours, or a difference that is not listed yet."""
    return next((known.id for known in KNOWN if known.explains(found)), None)
