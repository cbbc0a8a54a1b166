"""Subscriptions by a regular expression: RE2's syntax, whole names, alone or beside a list of
names.

Expressions are resolved in the background. `an_expression` shows the answers to heartbeats
meanwhile, the others wait for the result.
"""

from __future__ import annotations

from tests.differential.consumers import Consumer, describe, group_of, wait_for_partitions
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.offset_commits import commit
from tests.differential.scripts.offset_deletions import delete_offsets


def topics(s: Session, *names: str) -> list[Topic]:
    return [s.topic(name=f"{s.name}-{name}") for name in names]


def resolved(s: Session, member: Consumer, partitions: int) -> None:
    """Send heartbeats until so many partitions are assigned to the member; the last answer is a
    step."""

    def count() -> bool:
        answer = member.silently(0, **subscribed(s, member))
        return (
            answer.assignment is not None
            and sum(len(row.partitions) for row in answer.assignment.topic_partitions) == partitions
        )

    s.until(count, f"{member.member_id} has {partitions} partitions", every_s=0.1)


def subscribed(s: Session, member: Consumer) -> dict[str, object]:
    answer = s.prepare(
        "consumer_group_describe", 1, group_ids=[member.group_id], include_authorized_operations=False
    )
    row = next(row for row in answer.groups[0].members if row.member_id == member.member_id)
    regex, names = row.subscribed_topic_regex, row.subscribed_topic_names
    return {"subscribed_topic_regex": regex, "subscribed_topic_names": names, "rebalance_timeout": 60_000}


def note(s: Session, member: Consumer) -> None:
    """The epoch depends on how long it took; the assignment and the subscription do not."""
    answer = s.prepare(
        "consumer_group_describe", 1, group_ids=[member.group_id], include_authorized_operations=False
    )
    for row in answer.groups[0].members:
        assigned = sorted(
            (each.topic_name.removeprefix(s.name), sorted(each.partitions))
            for each in row.assignment.topic_partitions
        )
        s.note(f"{row.member_id} has", [row.subscribed_topic_regex.replace(s.name, "…"), assigned])


@script(seconds=2.0)
def an_expression(s: Session) -> None:
    one, two, other = topics(s, "one", "two", "other")
    group = group_of(s, "g", one, two, other)
    member = Consumer(s, group, "m")
    member.join(subscribed_topic_names=None, subscribed_topic_regex=f"{s.name}-(one|two)")
    resolved(s, member, 2)
    note(s, member)
    member.beat(subscribed_topic_regex=f"{s.name}-t.*")
    resolved(s, member, 1)
    note(s, member)
    member.beat(subscribed_topic_regex="")
    resolved(s, member, 0)
    note(s, member)


@script()
def the_first_answers(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join(subscribed_topic_names=None, subscribed_topic_regex="nothing-is-named-so")
    describe(s, group)


@script(seconds=2.0)
def whole_names_are_matched(s: Session) -> None:
    one, longer = topics(s, "one", "one-longer")
    group = group_of(s, "g", one, longer)
    member = Consumer(s, group, "m")
    member.silently(0, rebalance_timeout=60_000, subscribed_topic_regex=f"{s.name}-one")
    resolved(s, member, 1)
    note(s, member)
    member.silently(subscribed_topic_regex=f"^{s.name}-one.*$")
    resolved(s, member, 2)
    note(s, member)


@script()
def expressions_that_are_none(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    for regex in (
        "(",
        "[a",
        "*",
        "a**",
        "(?=x)",
        r"\1",
        "(?<!a)b",
        "a{2,1}",
        "a{1001}",
        r"\c",
        "(?P<n",
        "é(",
        r"\Qa",
    ):
        member.join(subscribed_topic_names=None, subscribed_topic_regex=regex)
    member.join("missing")
    member.beat(subscribed_topic_regex="(")
    member.beat()
    describe(s, group)


@script()
def expressions_of_re2(s: Session) -> None:
    group = group_of(s)
    for index, regex in enumerate((r"\Qa.b\E", r"(?i)a", r"\pL+", r"(?P<n>a)", "[[:alpha:]]", "(?s)a")):
        Consumer(s, group, f"m{index}").join(subscribed_topic_names=None, subscribed_topic_regex=regex)


@script()
def expressions_of_newer_re2(s: Session) -> None:
    group = group_of(s)
    for index, regex in enumerate(("a{1000}", "(?<n>a)", "", r"\z", r"\C", r"[[:word:]]")):
        Consumer(s, group, f"m{index}").join(subscribed_topic_names=None, subscribed_topic_regex=regex)


@script(seconds=2.0)
def an_expression_and_names(s: Session) -> None:
    one, two, other = topics(s, "one", "two", "other")
    group = group_of(s, "g", one, two, other)
    member = Consumer(s, group, "m")
    member.silently(
        0,
        rebalance_timeout=60_000,
        subscribed_topic_names=[other.name],
        subscribed_topic_regex=f"{s.name}-(one|two)",
    )
    resolved(s, member, 3)
    note(s, member)
    member.silently(subscribed_topic_names=[])
    resolved(s, member, 2)
    note(s, member)
    member.silently(subscribed_topic_regex="", subscribed_topic_names=[one.name])
    resolved(s, member, 1)
    note(s, member)


@script(seconds=2.0)
def two_members_with_one_expression(s: Session) -> None:
    """Their random ids decide which member gets which topic."""
    one, two = topics(s, "one", "two")
    group = group_of(s, "g", one, two)
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    regex = f"{s.name}-.*"
    m.silently(0, rebalance_timeout=60_000, subscribed_topic_regex=regex)
    resolved(s, m, 2)
    n.silently(0, subscribed_topic_regex=regex, rebalance_timeout=60_000)
    stays = m.silently().assignment.topic_partitions
    m.silently(
        topic_partitions=[{"topic_id": row.topic_id, "partitions": list(row.partitions)} for row in stays]
    )
    taken = n.silently().assignment.topic_partitions
    s.note("what stays, and what is taken", [len(stays), len(taken)])
    s.note("both", sorted(s.names.topics[row.topic_id] for row in (*stays, *taken)))
    s.note("the epochs are the same", m.epoch == n.epoch)


@script(seconds=15.0)
def a_new_topic_matches(s: Session) -> None:
    (one,) = topics(s, "one")
    group = group_of(s, "g", one)
    member = Consumer(s, group, "m")
    member.silently(0, rebalance_timeout=60_000, subscribed_topic_regex=f"{s.name}-.*")
    resolved(s, member, 1)
    (late,) = topics(s, "late")
    wait_for_partitions(s, group, late)
    resolved(s, member, 2)
    note(s, member)


@script()
def an_expression_of_version_0(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join("missing", subscribed_topic_regex="missing")
    old = Consumer(s, group, "m", version=0, epoch=member.epoch)
    old.beat(subscribed_topic_names=["missing"], rebalance_timeout=60_000)
    describe(s, group, version=0)


@script(seconds=2.0)
def offsets_of_topics_that_match(s: Session) -> None:
    one, two, other = topics(s, "one", "two", "other")
    group = group_of(s, "g", one, two, other)
    commit(s, group, {one: {0: 1}, two: {0: 1}, other: {0: 1}})
    member = Consumer(s, group, "m")
    member.silently(
        0, rebalance_timeout=60_000, subscribed_topic_names=[two.name], subscribed_topic_regex=f"{s.name}-one"
    )
    resolved(s, member, 2)
    delete_offsets(s, group, {one.name: [0], two.name: [0], other.name: [0]})


@script(seconds=2.0)
def the_owner_of_an_expression_leaves(s: Session) -> None:
    (one,) = topics(s, "one")
    group = group_of(s, "g", one)
    member = Consumer(s, group, "m")
    member.silently(0, rebalance_timeout=60_000, subscribed_topic_regex=f"{s.name}-one")
    resolved(s, member, 1)
    member.leave()
    describe(s, group)
    again = Consumer(s, group, "n")
    again.silently(0, rebalance_timeout=60_000, subscribed_topic_regex=f"{s.name}-one")
    resolved(s, again, 1)
    note(s, again)
