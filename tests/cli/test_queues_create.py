"""`kbroker queues create` against a real broker: what it creates, when run again, when aborted
anywhere, and when parts exist already."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kbroker.cli.exits import INTERRUPTED, OK, REFUSED, UNREACHABLE
from kbroker.client import admin, group_admin
from kbroker.client.queues.settings import ALWAYS, SETTINGS, Part, Queue, look, wish_of
from kbroker.client.queues.values import shown
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import require_engine
from tests.checks.cli_doc import CLI_DOC
from tests.cli.conftest import Command
from tests.cli.consumer_groups import member
from tests.cli.queue_calls import Changes, queue_name

STEPS = ["create_topics", "incremental_alter_configs", "create_topics", "alter_share_group_offsets"]
"""Dead letter topic, configs of the share group, topic, share state."""
GROUP_CONFIGS = sum(each.part is Part.GROUP for each in SETTINGS.values()) + len(ALWAYS[Part.GROUP]) + 1
"""The number of configs of a new queue's share group; the dead letter topic's name is the last
one."""


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return queue_name(request)


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Changes:
    return Changes(monkeypatch)


def found(broker: RunningBroker, name: str) -> Queue:
    with broker.connect() as connection:
        return look(connection, name)


def topics(broker: RunningBroker) -> set[str]:
    with broker.connect() as connection:
        return {topic.name for topic in admin.topics(connection)}


def join(broker: RunningBroker, group: str, *subscribed: str) -> None:
    """A member of a share group, for as long as its session lasts."""
    with broker.connect() as connection:
        fields = {"group_id": group, "member_id": "M1", "member_epoch": 0, "rack_id": None}
        joined = connection.call("share_group_heartbeat", subscribed_topic_names=subscribed, **fields)
    assert joined.error_code == 0


# --- what it makes ---


def test_a_queue_has_all_its_parts_and_the_defaults_of_the_table(
    command: Command, broker: RunningBroker, queue: str, changes: Changes
) -> None:
    ran = command("queues", "create", queue)
    assert (ran.code, ran.err) == (OK, "")
    assert ran.lines == [
        f"created dead letter topic dlq.{queue}",
        f"set {GROUP_CONFIGS} configs of share group {queue}",
        f"created topic {queue}",
        f"share group {queue} begins at offset 0",
        f"queue {queue} is ready: `kbroker queues send {queue}` sends it jobs, `kbroker docs workers` shows "
        "workers",
        "each worker gets 1 job at a time; more with --prefetch N --update",
    ]
    assert changes.made == STEPS
    made = found(broker, queue)
    own = {
        part: {each.config: each.default for each in SETTINGS.values() if each.part is part}
        | dict(ALWAYS[part])
        for part in Part
    }
    assert made.own(Part.GROUP) == own[Part.GROUP] | {"errors.deadletterqueue.topic.name": f"dlq.{queue}"}
    assert made.own(Part.DEAD_LETTERS) == own[Part.DEAD_LETTERS]
    assert made.own(Part.TOPIC) == own[Part.TOPIC]
    assert own[Part.TOPIC] == {"kbroker.queue.retention": "workqueue", "kbroker.payload.check": "true"}
    assert made.topic is not None
    assert made.dead_letter_topic is not None
    assert (len(made.topic.partitions), len(made.dead_letter_topic.partitions)) == (1, 1)
    assert [(row.partition, row.start_offset) for row in made.offsets] == [(0, 0)]


def test_every_option(command: Command, broker: RunningBroker, queue: str) -> None:
    given = {
        "prefetch": ("5", "5"), "delay": ("2s", "2000"), "multiplier": ("1.5", "1.5"),
        "max-delay": ("1h30m", "5400000"),
        "jitter": ("0", "0.0"), "deliveries": ("3", "3"), "lock-max": ("0", "0"),
        "assignment": ("simple", "simple"),
        "in-flight-limit": ("span", "span"), "scheduling": ("false", "false"), "ordering": ("key", "key"),
        "retention": ("unfinished", "unfinished"), "ttl": ("10m", "600000"),
        "keep-dead-letters": ("forever", "-1"), "committed": (None, "read_committed"),
    }  # fmt: skip
    assert given.keys() == SETTINGS.keys()
    words = [(f"--{name}", text) for name, (text, _) in given.items()]
    options = [word for pair in words for word in pair if word is not None]
    letters = f"{queue}.given-up"
    assert command("queues", "create", queue, "-p", "3", "--dead-letters", letters, *options).code == OK
    made = wish_of(found(broker, queue))
    assert made.settings == {name: text for name, (_, text) in given.items()}
    assert (made.partitions, made.dead_letters, made.configs) == (3, letters, {})


def test_committed_is_switched_on_and_off(command: Command, broker: RunningBroker, queue: str) -> None:
    level = "share.isolation.level"
    assert command("queues", "create", "--committed", queue).code == OK
    assert found(broker, queue).own(Part.GROUP)[level] == "read_committed"
    (line,) = (each for each in command("queues", "describe", queue).lines if "settings" in each)
    assert line.split() == ["settings", "committed", "true"]
    assert "committed = true" in command("queues", "export", queue).lines
    ran = command("queues", "create", queue, "--no-committed")
    assert ran.err.splitlines()[0] == f"kbroker: queue {queue}: committed is true, requested is false"
    assert command("queues", "create", queue, "--no-committed", "--update").code == OK
    assert found(broker, queue).own(Part.GROUP)[level] == "read_uncommitted"


def test_without_dead_letters(command: Command, broker: RunningBroker, queue: str) -> None:
    assert command("queues", "create", queue, "--no-dead-letters").code == OK
    assert f"dlq.{queue}" not in topics(broker)
    assert command("queues", "create", queue).lines == [f"queue {queue} exists; there is nothing to change"]
    ran = command("queues", "create", queue, "--dead-letters", f"dlq.{queue}")
    assert ran.err.splitlines()[:2] == [
        f"kbroker: queue {queue}: dead letter topic dlq.{queue} does not exist",
        f"kbroker: queue {queue}: dead-letters is none, requested is dlq.{queue}",
    ]
    assert command("queues", "create", queue, "--dead-letters", f"dlq.{queue}", "--update").code == OK
    assert found(broker, queue).dead_letter_topic is not None


def test_a_job_that_is_sent_before_the_first_worker_is_not_lost(command: Command, queue: str) -> None:
    assert command("queues", "create", queue).code == OK
    assert command("queues", "send", queue, "first").code == OK
    assert command("share-consume", queue, "-g", queue, "-n", "1").lines == ["first"]


def test_the_documented_defaults_are_those_of_the_table() -> None:
    section = CLI_DOC.read_text().partition("## kbroker queues create\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `--([a-z-]+)[^`]*` \| (.*) \|$", section, re.MULTILINE))
    for name, setting in SETTINGS.items():
        assert f"(`{setting.config}`" in rows[name]
        assert rows[name].endswith(f"| default: {shown(setting, setting.default)}"), name


# --- run again, or cut off ---


def test_run_again_it_changes_nothing_and_says_so(command: Command, queue: str, changes: Changes) -> None:
    options = ("--prefetch", "4", "--multiplier", "3", "-p", "2")
    assert command("queues", "create", queue, *options).code == OK
    changes.no_more()
    for arguments in ((), options, (*options, "--update"), ("--multiplier", "3.0")):
        ran = command("queues", "create", queue, *arguments)
        assert (ran.code, ran.lines[0]) == (OK, f"queue {queue} exists; there is nothing to change")
        assert ran.err.splitlines() == [
            f"kbroker: queue {queue}: {line}"
            for line, option in (
                ("prefetch stays 4; a new queue would have 1", "--prefetch"),
                ("multiplier stays 3; a new queue would have 2", "--multiplier"),
            )
            if option not in arguments
        ]
    assert changes.made == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
def test_cut_off_at_any_step_the_same_command_does_the_rest(
    command: Command, broker: RunningBroker, queue: str, changes: Changes, number: int, before: bool
) -> None:
    options = ("--prefetch", "3", "-p", "2", "--keep-dead-letters", "1d")
    changes.at(number, before=before)
    assert command("queues", "create", queue, *options).code == INTERRUPTED
    done = list(changes.made)
    assert done == STEPS[: number - before]
    changes.no_more()
    ran = command("queues", "create", queue, *options)
    assert (ran.code, ran.err) == (OK, "")
    assert changes.made == STEPS[len(done) :]
    made = found(broker, queue)
    assert made.is_whole
    wish = wish_of(made)
    assert (wish.partitions, wish.settings["prefetch"], wish.settings["keep-dead-letters"]) == (
        2,
        "3",
        "86400000",
    )
    assert [(row.partition, row.start_offset) for row in made.offsets] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
def test_the_broker_is_killed_at_any_step(
    command: Command, queue: str, changes: Changes, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_test_broker(storage=require_engine("segment")) as victim:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", victim.bootstrap)
        changes.at(number, before=True, strike=victim.kill)
        ran = command("queues", "create", queue)
        assert (ran.code, ran.err.count("\n")) == (UNREACHABLE, 1)
        victim.restart()
        changes.no_more()
        assert command("queues", "create", queue).code == OK
        assert changes.made == STEPS[number - 1 :]
        assert command("queues", "create", queue).lines == [
            f"queue {queue} exists; there is nothing to change"
        ]


def test_a_worker_that_comes_between_topic_and_share_state(
    command: Command, broker: RunningBroker, queue: str, changes: Changes
) -> None:
    """The broker refuses to alter the offsets of a group with members. The members have initialized
    the share state, from the first job on."""
    changes.at(4, before=True)
    assert command("queues", "create", queue).code == INTERRUPTED
    assert command("queues", "send", queue, "early").code == OK
    join(broker, queue, queue)
    ran = command("queues", "create", queue)
    assert (ran.code, ran.lines) == (OK, [f"queue {queue} exists; there is nothing to change"])
    assert command("share-consume", queue, "-g", queue, "-n", "1").lines == ["early"]


def test_a_worker_that_comes_right_before_the_share_state(
    command: Command, broker: RunningBroker, queue: str, changes: Changes
) -> None:
    changes.at(4, before=True, strike=lambda: join(broker, queue, queue))
    ran = command("queues", "create", queue)
    assert (ran.code, ran.err) == (OK, "")
    assert command("queues", "send", queue, "job").code == OK
    assert command("share-consume", queue, "-g", queue, "-n", "1").lines == ["job"]


# --- what differs ---


def test_what_differs_is_said_line_by_line_and_altered_on_demand(
    command: Command, broker: RunningBroker, queue: str, changes: Changes
) -> None:
    assert command("queues", "create", queue, "--delay", "5s").code == OK
    changes.no_more()
    options = ("--prefetch", "4", "--delay", "2s", "-p", "3", "--keep-dead-letters", "forever")
    ran = command("queues", "create", queue, *options)
    assert (ran.code, ran.out) == (REFUSED, "")
    assert ran.err.splitlines() == [
        f"kbroker: queue {queue}: keep-dead-letters is 30d, requested is forever",
        f"kbroker: queue {queue}: prefetch is 1, requested is 4",
        f"kbroker: queue {queue}: delay is 5s, requested is 2s",
        f"kbroker: queue {queue}: partitions is 1, requested is 3",
        f"kbroker: queue {queue} was not changed: --update alters it",
    ]
    assert changes.made == []
    ran = command("queues", "create", queue, *options, "--update")
    assert (ran.code, ran.lines[-1]) == (OK, f"queue {queue} is altered")
    made = found(broker, queue)
    wish = wish_of(made)
    assert (wish.partitions, wish.settings["prefetch"], wish.settings["delay"]) == (3, "4", "2000")
    assert wish.settings["keep-dead-letters"] == "-1"
    assert [(row.partition, row.start_offset) for row in made.offsets] == [(0, 0), (1, 0), (2, 0)]
    assert command("queues", "create", queue, *options).lines == [
        f"queue {queue} exists; there is nothing to change"
    ]


def another_makes_it(broker: RunningBroker, changes: Changes, queue: str, before: int) -> None:
    """Just before the request with that number."""
    other = [
        sys.executable,
        "-m",
        "kbroker",
        "queues",
        "create",
        queue,
        "--ttl",
        "5m",
        "-b",
        broker.bootstrap,
    ]

    def make() -> None:
        changes.no_more()
        subprocess.run(other, check=True, timeout=60, capture_output=True)

    changes.at(before, before=True, strike=make)


@pytest.mark.parametrize("before", [1, 3])
def test_two_at_once(
    command: Command, broker: RunningBroker, changes: Changes, queue: str, before: int
) -> None:
    """Another command creates the queue just before this one turns a topic into it."""
    another_makes_it(broker, changes, queue, before)
    ran = command("queues", "create", queue, "--ttl", "5m")
    assert (ran.code, ran.lines[-1]) == (OK, f"queue {queue} exists; there is nothing to change")
    assert found(broker, queue).is_whole


def test_two_that_differ_at_once(
    command: Command, broker: RunningBroker, changes: Changes, queue: str
) -> None:
    another_makes_it(broker, changes, queue, 1)
    ran = command("queues", "create", queue, "--ttl", "10m")
    assert ran.code == REFUSED
    assert ran.err.splitlines() == [
        f"kbroker: queue {queue}: ttl is 5m, requested is 10m",
        f"kbroker: queue {queue} was not changed: --update alters it",
    ]


def test_a_new_queue_that_would_alter_a_dead_letter_topic(command: Command, queue: str) -> None:
    assert command("topics", "create", f"{queue}-letters").code == OK
    ran = command("queues", "create", queue, "--dead-letters", f"{queue}-letters")
    assert (
        ran.err.splitlines()[-1]
        == f"kbroker: queue {queue} was not created: --update creates it and alters that"
    )
    assert command("queues", "create", queue, "--dead-letters", f"{queue}-letters", "--update").code == OK


def test_what_was_done_as_json(command: Command, queue: str) -> None:
    made = command("queues", "create", queue, "--json").json
    assert (made["queue"], made["created"], made["altered"], len(made["steps"])) == (queue, True, False, 4)
    assert made["differences"] == made["unlike_a_new_queue"] == []
    difference = {"setting": "delay", "present": "1s", "wanted": "2s"}
    ran = command("queues", "create", queue, "--delay", "2s", "--json")
    unchanged = {"created": False, "altered": False, "steps": [], "unlike_a_new_queue": []}
    assert (ran.code, ran.json) == (REFUSED, {"queue": queue, "differences": [difference], **unchanged})
    assert ran.err == f"kbroker: queue {queue} was not changed: --update alters it\n"
    updated = command("queues", "create", queue, "--delay", "2s", "--update", "--json").json
    assert (updated["altered"], updated["steps"]) == (True, [f"set 1 config of share group {queue}"])
    again = command("queues", "create", queue, "--json").json
    assert (again["altered"], again["steps"], again["differences"]) == (False, [], [])
    assert again["unlike_a_new_queue"] == [{"setting": "delay", "present": "2s", "wanted": "1s"}]


def test_partitions_are_never_taken_away(command: Command, queue: str, changes: Changes) -> None:
    assert command("queues", "create", queue, "-p", "2").code == OK
    changes.no_more()
    ran = command("queues", "create", queue, "-p", "1", "--prefetch", "7", "--update")
    text = f"topic {queue} has 2 partitions, and partitions are never taken away: ask for 2 or more"
    assert ran == (REFUSED, "", f"kbroker: {text}\n")
    assert changes.made == []


def test_a_dead_letter_topic_that_went_missing(command: Command, broker: RunningBroker, queue: str) -> None:
    assert command("queues", "create", queue).code == OK
    assert command("topics", "delete", f"dlq.{queue}").code == OK
    ran = command("queues", "create", queue)
    assert ran.code == REFUSED
    assert f"dead letter topic dlq.{queue} does not exist" in ran.err
    assert command("queues", "create", queue, "--update").code == OK
    assert found(broker, queue).own(Part.DEAD_LETTERS)["errors.deadletterqueue.group.enable"] == "true"


# --- parts that exist already ---


def test_a_topic_that_exists_is_made_a_queue_on_demand_only(
    command: Command, broker: RunningBroker, queue: str, changes: Changes
) -> None:
    broker.create_topic(queue, partitions=2)
    changes.no_more()
    ran = command("queues", "create", queue)
    assert (ran.code, ran.out) == (REFUSED, "")
    assert f"topic {queue} exists already and is no queue: what it holds would become jobs" in ran.err
    assert changes.made == []
    assert f"dlq.{queue}" not in topics(broker)
    for arguments in (
        ("describe", queue),
        ("peek", queue),
        ("send", queue, "x"),
        ("purge", queue),
        ("delete", queue),
    ):
        ran = command("queues", *arguments)
        text = (
            f"there is no queue {queue}, only a topic of this name: `kbroker queues create {queue} "
            "--update` turns it into a queue"
        )
        assert ran == (REFUSED, "", f"kbroker: {text}\n")
    assert command("queues", "create", queue, "--update").code == OK
    assert [(row.partition, row.start_offset) for row in found(broker, queue).offsets] == [(0, 0), (1, 0)]


def test_a_consumer_group_of_the_name(
    command: Command, broker: RunningBroker, queue: str, topic: str, changes: Changes
) -> None:
    with member(broker, queue, topic):
        text = (
            f"group {queue} is a consumer group, and a queue needs the name for its share group: choose "
            "another one"
        )
        assert command("queues", "create", queue, "--update") == (REFUSED, "", f"kbroker: {text}\n")
        missing = f"kbroker: there is no queue {queue}: group {queue} is a consumer group\n"
        assert command("queues", "describe", queue).err == missing
    assert changes.made == []
    assert command("groups", "delete", queue).code == OK


def test_a_share_group_of_another_topic(
    command: Command, broker: RunningBroker, queue: str, topic: str, changes: Changes
) -> None:
    join(broker, queue, topic)
    changes.no_more()
    ran = command("queues", "create", queue)
    assert ran.code == REFUSED
    assert f"share group {queue} exists already, without a topic of its name" in ran.err
    assert changes.made == []
    assert command("queues", "create", queue, "--update").code == OK
    assert found(broker, queue).is_whole


def test_a_plain_share_group_and_its_topic_of_one_name(
    command: Command, broker: RunningBroker, queue: str, changes: Changes
) -> None:
    broker.create_topic(queue)
    broker.set_group_config(queue, {"share.delivery.count.limit": "3"})
    join(broker, queue, queue)
    changes.no_more()
    lines = command("queues", "create", queue).err.splitlines()
    assert f"kbroker: queue {queue}: prefetch is 0, requested is 1" in lines
    assert f"kbroker: queue {queue}: assignment is simple, requested is all" in lines
    assert not any("deliveries" in line for line in lines), "it was set by somebody"
    assert changes.made == []
    assert (
        command("queues", "create", queue, "--update").err
        == f"kbroker: queue {queue}: deliveries stays 3; a new queue would have 10\n"
    )
    with broker.connect() as connection:
        assert group_admin.describe_share_group(connection, queue).assignor == "all"


def test_a_topic_of_the_dead_letters_name_that_is_for_something_else(
    command: Command, broker: RunningBroker, queue: str, changes: Changes
) -> None:
    broker.create_topic(f"dlq.{queue}", config={"retention.ms": "1000"})
    changes.no_more()
    ran = command("queues", "create", queue)
    assert (ran.code, ran.err.splitlines()[0]) == (
        REFUSED,
        f"kbroker: queue {queue}: dead letter topic: errors.deadletterqueue.group.enable is false, "
        "requested is true",
    )
    assert changes.made == []
    ran = command("queues", "create", queue, "--update")
    assert (ran.code, ran.err) == (
        OK,
        f"kbroker: queue {queue}: keep-dead-letters stays 1s; a new queue would have 30d\n",
    )


# --- what the broker refuses ---


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--deliveries", "11"],
            "must be less than or equal to group.share.max.delivery.count.limit, which is 10; to raise that",
        ),
        (["--delay", "20m"], "would have a delay that is longer than its max-delay: ask for both"),
        (["--dead-letters", "__letters"], "it must not begin with __"),
        (["--dead-letters", "a b"], "Topic name is invalid: 'a b'"),
    ],
)
def test_nothing_is_made_where_a_later_step_would_be_refused(
    command: Command, queue: str, changes: Changes, arguments: list[str], text: str
) -> None:
    ran = command("queues", "create", queue, *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (REFUSED, "", 1)
    assert text in ran.err
    assert changes.made == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("two words", "Topic name is invalid: 'two words'"),
        ("..", "Topic name is invalid"),
        ("__share_group_state", "names that begin with __ are for topics of brokers"),
        ("x" * 250, "is not 1 to 249 characters"),
        ("x" * 248, "is not 1 to 249 characters"),  # the prefix dlq. is added
    ],
)
def test_bad_names(command: Command, changes: Changes, name: str, text: str) -> None:
    ran = command("queues", "create", name)
    assert (ran.code, ran.out, ran.err.count("\n")) == (REFUSED, "", 1)
    assert text in ran.err
    assert changes.made == []


def test_a_queue_is_not_its_own_dead_letter_topic(command: Command, queue: str, changes: Changes) -> None:
    ran = command("queues", "create", queue, "--dead-letters", queue)
    assert ran == (
        REFUSED,
        "",
        f"kbroker: queue {queue} cannot be its own dead letter topic: choose another one\n",
    )
    assert changes.made == []


# --- order of keys ---


def test_more_partitions_would_break_the_order_of_keys(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    """Also for a topic with another name than the share group. With Kafka's tools the restriction
    is not enforced."""
    assert command("queues", "create", queue, "--ordering", "key").code == OK
    why = f"share group {queue} keeps the order of keys on topic {queue}, and more partitions break it"
    for refused in (
        ("queues", "create", queue, "-p", "2", "--update"),
        ("topics", "alter", queue, "-p", "2"),
    ):
        answer = command(*refused)
        assert answer.code == REFUSED
        assert answer.err.startswith(f"kbroker: {why}")
        assert answer.err.endswith("use --force then\n")
        assert answer.err.count("\n") == 1
    assert partitions(broker, queue) == 1
    assert command("topics", "alter", queue, "-p", "2", "--force").code == OK
    assert command("queues", "create", queue, "-p", "3", "--update", "--force").code == OK
    assert partitions(broker, queue) == 3
    assert command("queues", "create", queue, "--ordering", "none", "--update").code == OK
    assert command("topics", "alter", queue, "-p", "4").code == OK


def test_a_group_of_another_name_keeps_order_on_a_topic(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    other = f"{queue}.other"
    assert command("topics", "create", other).code == OK
    assert command("configs", "set", "--group", queue, "kbroker.queue.ordering=key").code == OK
    assert command("topics", "alter", other, "-p", "2").code == OK
    with broker.connect() as connection:
        starts = {group_admin.TopicPartition(other, 0): 0}
        assert group_admin.alter_share_group_offsets(connection, queue, starts) == {}
    refused = command("topics", "alter", other, "-p", "3")
    assert (refused.code, f"share group {queue} keeps" in refused.err) == (REFUSED, True)
    assert command("topics", "alter", other, "-p", "3", "--force").code == OK


def partitions(broker: RunningBroker, topic: str) -> int:
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [topic])
    return len(found.partitions)
