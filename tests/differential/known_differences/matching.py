"""How a listed difference is recognised: by the script, the place, and both values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.differential.running import Found
from tests.differential.transcript import Json


@dataclass(frozen=True)
class Difference:
    """`path`: a regular expression found in the place. `scripts`: patterns of names. `holds`: a
    condition on Kafka's value and kbroker's. `is_certain`: False if it depends on time."""

    id: str
    path: str
    holds: Callable[[Json, Json], bool]
    scripts: str = "*"
    is_certain: bool = True

    def concerns(self, script: str) -> bool:
        return any(fnmatchcase(script, pattern) for pattern in self.scripts.split())

    def explains(self, found: Found) -> bool:
        return (
            self.concerns(found.script)
            and re.search(self.path, found.path) is not None
            and self.holds(found.kafka, found.kbroker)
        )


def values(kafka: Json, kbroker: Json) -> Callable[[Json, Json], bool]:
    """Exactly these two."""
    return lambda theirs, ours: theirs == kafka and ours == kbroker


def kafka_says(*wanted: Json) -> Callable[[Json, Json], bool]:
    """Kafka answers one of these, kbroker something else."""
    return lambda theirs, ours: theirs in wanted


def any_of(*holds: Callable[[Json, Json], bool]) -> Callable[[Json, Json], bool]:
    return lambda theirs, ours: any(each(theirs, ours) for each in holds)


def no_rows_but_one_with(field: str, wanted: Callable[[Json], bool]) -> Callable[[Json, Json], bool]:
    """Kafka's answer has no rows at all, kbroker's has some row with this value of `field`."""
    return lambda theirs, ours: (
        theirs == [] and any(wanted(row[field]) for topic in ours for row in topic["partitions"])
    )


def only_here(theirs: Json, ours: Json) -> bool:
    """Kafka's answer is empty, kbroker's is not."""
    return theirs == [] and bool(ours)


def only_there(theirs: Json, ours: Json) -> bool:
    return bool(theirs) and ours == []


def more_rows(theirs: Json, ours: Json) -> bool:
    """Kafka answers some of kbroker's rows."""
    return len(theirs) < len(ours) and all(row in ours for row in theirs)
