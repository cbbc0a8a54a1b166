"""The answers of Kafka's own assignors to the cases of tests/groups/assignors/cases.py.

`python -m tests.kafka_tools.kafka_assignors` stores the answers to some of them, with the cases,
for tests without Java.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.groups.assignors.cases import VECTORS, Case, cases, chain, two_topics_of_equal_weight, uneven
from tests.kafka_tools.java import run

PROGRAM = Path(__file__).parent / "AssignorProgram.java"
SEED, COUNT = 848, 50

Answer = dict[str, dict[str, list[int]]]


def kafka_answers(given: Sequence[Case]) -> list[Answer]:
    """Kafka's assignments, with an empty one for a member that Kafka leaves out."""
    ended = run(str(PROGRAM), given=json.dumps(given))
    assert ended.code == 0, ended.errors
    found: list[Answer] = json.loads(ended.lines[-1])
    return [
        {each["id"]: answer.get(each["id"], {}) for each in case["members"]}
        for case, answer in zip(given, found, strict=True)
    ]


def vectors() -> list[dict[str, Any]]:
    given = [
        *cases(SEED, COUNT),
        two_topics_of_equal_weight(),
        chain(9),
        *(uneven(Random(seed)) for seed in range(12)),
    ]
    return [
        {"case": case, "answer": answer} for case, answer in zip(given, kafka_answers(given), strict=True)
    ]


if __name__ == "__main__":
    VECTORS.write_text("[\n" + ",\n".join(json.dumps(each) for each in vectors()) + "\n]\n")
