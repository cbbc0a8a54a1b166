"""Subscriptions of consumer groups: regular expressions, and when their topics are resolved."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.consumer.subscriptions import Subscriptions
from kbroker.groups.expressions import CACHED_BYTES, MAX_LENGTH, MEMORY_BYTES, Expressions
from tests.groups.consumer.world import Client, Topics, World

INVALID = ErrorCode.invalid_regular_expression


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("a", "ab", "b"):
        world.topics.put(name, 1)
    return world


def join(
    world: World, regex: str, *names: str, member_id: str = "m", code: ErrorCode = ErrorCode.none
) -> Client:
    client = Client(world, member_id, *names)
    return client.join(code, subscribed_topic_names=names or None, subscribed_topic_regex=regex)


def test_the_first_answer_has_the_topics_whose_whole_names_match(world: World) -> None:
    member = join(world, "a.?")
    assert (member.told, member.epoch) == ({("a", 0), ("ab", 0)}, 2)
    assert join(world, "b", member_id="n").has == {("b", 0)}


def test_topics_that_come_and_go(world: World) -> None:
    member = join(world, "a.*")
    world.topics.put("ac", 2)
    assert member.beat().has == {("a", 0), ("ab", 0), ("ac", 0), ("ac", 1)}
    world.topics.put("bc", 1)
    assert member.beat().told is None
    member.has.discard(("ab", 0))
    world.topics.remove("ab")
    assert member.beat().told == {("a", 0), ("ac", 0), ("ac", 1)}
    world.restart()
    world.topics.put("ad", 1)
    assert ("ad", 0) in member.beat().has


def test_names_and_an_expression_are_united(world: World) -> None:
    member = join(world, "a", "b")
    assert member.has == {("a", 0), ("b", 0)}
    assert world.groups.subscribed("g")("a")
    assert not world.groups.subscribed("g")("ab")
    member.beat(subscribed_topic_regex="")
    member.beat()
    assert (member.has, world.describe().members[0].subscribed_topic_regex) == ({("b", 0)}, "")


def test_an_expression_that_matches_nothing_makes_no_epoch(world: World) -> None:
    assert join(world, "nothing").epoch == 1
    assert join(world, "nothing either", member_id="n").epoch == 1
    # As in Kafka: another member has that expression already.
    assert join(world, "nothing", member_id="o").epoch == 2


@pytest.mark.parametrize("regex", ["(", "*", "[a", "(?=x)", r"\1", "a{1001}"])
def test_what_is_none_is_refused_and_changes_nothing(world: World, regex: str) -> None:
    refused = join(world, regex, code=INVALID)
    assert regex in (refused.answer.error_message or "")
    assert world.group_ids.type_of("g") is None
    member = join(world, "a")
    member.beat(INVALID, subscribed_topic_regex=regex)
    assert member.beat().has == {("a", 0)}


def test_matching_takes_linear_time() -> None:
    expressions = Expressions()
    with pytest.raises(KafkaError):
        expressions.compiled("(a{999}){999}")
    assert expressions.compiled("(a*)*b").fullmatch("a" * 5000) is None


@pytest.mark.parametrize("regex", ["a" * (MAX_LENGTH + 1), ".{0,1000}" * 2, r"\pL{0,1000}", "(a?){1000}" * 9])
def test_what_takes_too_much_room_is_refused(world: World, regex: str) -> None:
    refused = join(world, regex, code=INVALID)
    assert len(refused.answer.error_message or "") < MAX_LENGTH


def test_a_choice_between_many_names_is_taken(world: World) -> None:
    names = [f"{number * 7919 % 99991:05}-x" for number in range(500)]
    join(world, "|".join(names)[:MAX_LENGTH])


def test_compiled_expressions_are_bounded_in_bytes() -> None:
    expressions = Expressions()
    for number in range(2 * CACHED_BYTES // MEMORY_BYTES):
        expressions.compiled(f"(x{number}|.*)y")
    assert len(expressions) <= CACHED_BYTES // MEMORY_BYTES
    assert expressions.is_known(f"(x{number}|.*)y")
    assert not expressions.is_known("(x0|.*)y")


def test_only_the_names_of_changed_topics_are_matched_again() -> None:
    topics = Topics()
    for number in range(100):
        topics.put(f"t{number}", 1)
    subscriptions = Subscriptions(topics)
    assert len(subscriptions.resolve("t.*")) == 100
    compiled = Recorded(subscriptions.expressions.compiled("t.*"))
    subscriptions.expressions.add("t.*", compiled)
    topics.put("t100", 1)
    topics.put("other", 1)
    topics.remove("t5")
    assert subscriptions.resolve("t.*") == frozenset(f"t{number}" for number in range(101) if number != 5)
    assert sorted(compiled.texts) == ["other", "t100"]
    topics.put("t5", 1)
    assert len(subscriptions.resolve("t.*")) == 101
    assert compiled.texts[2:] == ["t5"]


class Recorded:
    """A compiled expression, and the texts that it was matched with."""

    programsize = 1

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.texts: list[str] = []

    def fullmatch(self, text: str) -> Any:
        self.texts.append(text)
        return self._compiled.fullmatch(text)


def test_what_was_found_out_does_not_pile_up() -> None:
    topics = Topics()
    topics.put("t", 1)
    subscriptions = Subscriptions(topics)
    for number in range(5_000):
        assert subscriptions.hash(frozenset({"t", f"missing-{number}"})) != 0
    assert subscriptions.hash(frozenset({"missing"})) == 0


def test_the_library_is_loaded_with_the_first_expression() -> None:
    program = "import sys, kbroker.groups.routing; assert 're2' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
