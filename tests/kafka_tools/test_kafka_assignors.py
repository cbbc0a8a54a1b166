"""kbroker's assignors of consumer groups against Kafka's own, called directly: equal answers to
equal input."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.groups.assignors.cases import VECTORS, answer, cases, chain, flat, moves, uneven
from tests.kafka_tools.java import MISSING
from tests.kafka_tools.kafka_assignors import Answer, kafka_answers, vectors

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


def test_equal_answers_to_equal_questions() -> None:
    given = [
        *cases(1, 1500),
        *(chain(topics) for topics in range(1, 12)),
        *(uneven(Random(seed)) for seed in range(150)),
    ]
    answers = kafka_answers(given)
    assert [
        (case, theirs) for case, theirs in zip(given, answers, strict=True) if answer(case) != theirs
    ] == []


def test_members_in_another_order() -> None:
    """In the order of Kafka's hash map: as even as Kafka's result, and no further moves, if all
    have the same subscription."""
    random = Random(2)
    given = [
        case
        for case in cases(2, 800)
        if case["assignor"] == "uniform" and len({tuple(each["topics"]) for each in case["members"]}) == 1
    ]
    for case in given:
        random.shuffle(case["members"])
    for case, theirs in zip(given, kafka_answers(given), strict=True):
        ours = answer(case)
        assert loads(ours) == loads(theirs)
        before = {each["id"]: each["assigned"] for each in case["members"]}
        assert moves(before, ours) <= moves(before, theirs)


def loads(assignment: Answer) -> list[int]:
    return sorted(len(flat(assigned)) for assigned in assignment.values())


def test_the_stored_answers_are_kafka_s() -> None:
    assert json.loads(VECTORS.read_text()) == vectors()
