"""`kbroker queues` against a real broker: listing, describing, filling, purging and deleting
queues."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer

from kbroker.cli import watching
from kbroker.cli.exits import INTERRUPTED, OK, REFUSED, UNREACHABLE, USAGE
from kbroker.cli.inflight import ask_in_flight
from kbroker.cli.queues.describe import JobRates
from kbroker.client import admin, group_admin
from kbroker.client.admin_endpoint import AdminEndpoint
from kbroker.client.broker_process import free_port
from kbroker.client.queues.report import report
from kbroker.client.queues.settings import look
from kbroker.client.rpc import Connection
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import require_engine
from tests.cli.conftest import Command
from tests.cli.consumer_groups import until
from tests.cli.queue_calls import Changes, queue_name
from tests.cli.queue_workers import answer, summary, taken, worker
from tests.cli.test_deleting_records import at_a_terminal
from tests.cli.test_queues_create import GROUP_CONFIGS


@pytest.fixture(scope="module")
def admin_broker() -> Iterator[RunningBroker]:
    """A broker that serves HTTP."""
    with open_test_broker(storage=require_engine("segment"), extra_args=["--admin", "0"]) as running:
        yield running


@pytest.fixture
def broker(admin_broker: RunningBroker) -> RunningBroker:
    return admin_broker


@pytest.fixture
def http(broker: RunningBroker) -> str:
    return broker.ready_line.rpartition("admin http://")[2].rstrip(")")


@pytest.fixture
def queue(request: pytest.FixtureRequest, command: Command) -> str:
    """A new queue, whose jobs are redelivered without a wait."""
    name = queue_name(request)
    assert command("queues", "create", name, "--delay", "0").code == OK
    return name


def test_jobs_are_sent_and_looked_at(command: Command, queue: str) -> None:
    sent = command(
        "queues",
        "send",
        queue,
        "one",
        "two words",
        "--key",
        "k",
        "--header",
        "origin=test",
        "--header",
        "origin=x=y",
    )
    assert (sent.code, sent.out) == (OK, "")
    assert sent.err.startswith(f"2 jobs confirmed in {queue}, 0 failed")
    first, second = command("queues", "peek", queue, "--json").json
    assert first.pop("timestamp_ms") > 1_700_000_000_000
    headers = [{"name": "origin", "value": "test"}, {"name": "origin", "value": "x=y"}]
    assert first == {
        "partition": 0,
        "offset": 0,
        "due_ms": None,
        "key": "k",
        "value": "one",
        "headers": headers,
    }
    assert second["value"] == "two words"
    rows = [line.split(None, 4) for line in command("queues", "peek", queue, "-n", "1").lines]
    assert [rows[0], rows[1][0], rows[1][3:]] == [["AT", "TIME", "KEY", "VALUE"], "0:0", ["k", "one"]]
    assert summary(command, queue)["unfinished"] == 2, "nothing was taken"


def test_jobs_from_standard_input(command: Command, broker: RunningBroker, queue: str) -> None:
    send = [sys.executable, "-m", "kbroker", "queues", "send", queue, "-b", broker.bootstrap]
    ran = subprocess.run(send, input=b"a\r\nb\n\nc\xff", capture_output=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (OK, b"")
    found = command("queues", "peek", queue, "--json").json
    assert [each.get("value", each.get("value_base64")) for each in found] == ["a", "b", "", "Y/8="]
    assert [each["key"] for each in found] == [None] * 4


def test_jobs_that_are_typed(command: Command, broker: RunningBroker, queue: str) -> None:
    code, out, err = at_a_terminal(broker, b"typed\n\x04", ["queues", "send", queue])
    assert (code, out) == (OK, "")
    assert err.startswith("kbroker: each line is a job; Ctrl-D at the beginning of a line ends the input\n")
    assert [each["value"] for each in command("queues", "peek", queue, "--json").json] == ["typed"]


def test_peek_begins_where_the_group_does(command: Command, broker: RunningBroker, queue: str) -> None:
    command("queues", "send", queue, *(f"job {number}" for number in range(20)))
    assert len(command("queues", "peek", queue).lines) == 1 + 10
    assert (
        command(
            "share-groups", "reset-offsets", queue, "--topic", queue, "--to-offset", "17", "--execute"
        ).code
        == OK
    )
    assert [each["offset"] for each in command("queues", "peek", queue, "-n", "100", "--json").json] == [
        17,
        18,
        19,
    ]
    assert command("queues", "purge", queue, "--yes").code == OK
    assert command("queues", "peek", queue) == (OK, "", f"kbroker: there are no jobs in queue {queue}\n")
    assert command("queues", "peek", queue, "--json").json == []


def test_peek_at_several_partitions(
    command: Command, request: pytest.FixtureRequest, broker: RunningBroker
) -> None:
    queue = queue_name(request)
    assert command("queues", "create", queue, "-p", "3").code == OK
    for partition in (0, 2):
        produce = [
            sys.executable,
            "-m",
            "kbroker",
            "produce",
            queue,
            "-p",
            str(partition),
            "-b",
            broker.bootstrap,
        ]
        subprocess.run(produce, input=b"a\nb\nc\n", check=True, capture_output=True, timeout=60)
    places = [
        (each["partition"], each["offset"])
        for each in command("queues", "peek", queue, "-n", "5", "--json").json
    ]
    assert places == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]


# --- list, describe ---


def test_a_list_of_queues_is_not_one_of_topics_or_groups(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    broker.create_topic(f"{queue}-topic")
    command("share-groups", "reset-offsets", f"{queue}-group", "--topic", queue, "--to-earliest", "--execute")
    command("queues", "send", queue, "a", "b")
    letters = f"dlq.{queue}"
    names = {
        "name": queue,
        "partitions": 1,
        "unfinished": 2,
        "workers": 0,
        "dead_letters": 0,
        "dead_letter_topic": letters,
    }
    assert [row for row in command("queues", "list", "--json").json if row["name"].startswith(queue)] == [
        names
    ]
    lines = [line.split() for line in command("queues", "list").lines]
    assert lines[0] == ["QUEUE", "PARTITIONS", "UNFINISHED", "WORKERS", "DEAD-LETTERS"]
    assert [queue, "1", "2", "0", "0"] in lines


def test_a_broker_without_queues_says_so(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_test_broker(storage="memory", state_storage="memory") as empty:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", empty.bootstrap)
        ran = command("queues", "list")
        assert ran == (OK, "", "kbroker: there are no queues: `kbroker queues create NAME` creates one\n")
        assert command("queues", "list", "--json").json == []
        assert command("queues", "export") == (OK, "", "")


VERDICTS = {
    b"accept": AcknowledgeType.ACCEPT,
    b"reject": AcknowledgeType.REJECT,
    b"release": AcknowledgeType.RELEASE,
}


@pytest.fixture
def at_work(command: Command, broker: RunningBroker, queue: str, http: str) -> Iterator[dict[str, Any]]:
    """The description of a queue of six jobs: one is done, one is dead, one waits for its
    redelivery, one or two are held by a worker, and the others are ready."""
    line = f"queues create {queue} --prefetch 2 --delay 1h --max-delay 2h --update"
    assert command(*line.split()).code == OK
    command("queues", "send", queue, "accept", "reject", "release", "hold", "x", "y")
    with worker(broker, queue, "worker-7") as consumer:
        held: list[bytes] = []
        while b"hold" not in held:
            for message in consumer.poll(0.1):
                value = message.value()
                assert isinstance(value, bytes)
                if value in VERDICTS:
                    answer(consumer, message, VERDICTS[value])
                else:
                    held.append(value)

        def settled() -> dict[str, Any] | None:
            document = command("queues", "describe", queue, "--admin", http, "--json").json
            is_done = document["dead_letters"] == 1 and document["unfinished"] == 4
            return dict(document) if is_done else None

        yield until("the dead letter is written, and its record is saved as done", settled)


def test_a_queue_at_work_is_described(
    command: Command, queue: str, http: str, at_work: dict[str, Any]
) -> None:
    (busy,) = at_work["workers"]
    jobs = busy["jobs"]
    assert (busy["client_id"], busy["host"], busy["in_group"]) == ("worker-7", "127.0.0.1", True)
    assert 1 <= jobs <= 2
    assert 0 < busy["left_ms"] <= 30_000
    assert at_work["oldest_age_ms"] > 0
    names = ("unfinished", "ready", "in_flight", "waiting", "archiving", "dead_letters")
    assert [at_work[name] for name in names] == [4, 3 - jobs, jobs, 1, 0, 1]
    assert at_work["settings_unlike_defaults"] == {"prefetch": "2", "delay": "1h", "max-delay": "2h"}
    lines = [line.split() for line in command("queues", "describe", queue, "--admin", http).lines]
    assert lines[0] == ["queue", queue]
    assert ["waiting", "1,", "the", "next", "one", "is", "due", "in"] in [line[:8] for line in lines]
    for line in (["workers", "1"], ["dead", "letters", "1", "in", f"dlq.{queue}"]):
        assert line in lines
    assert ["settings", "prefetch", "2,", "delay", "1h,", "max-delay", "2h"] in lines
    assert lines[-2] == ["WORKER", "HOST", "MEMBER-ID", "JOBS", "LOCK-LEFT", "HOLDS"]
    assert lines[-1][:4] == ["worker-7", "127.0.0.1", busy["member_id"], str(jobs)]
    assert lines[-1][-1] == ("0:3" if jobs == 1 else "0:3-4")  # "hold" is the fourth job.


@pytest.mark.usefixtures("at_work")
def test_without_the_endpoint_it_stays_open_who_holds_what(command: Command, queue: str) -> None:
    plain = command("queues", "describe", queue, "--json").json
    names = ("unfinished", "ready", "in_flight", "waiting")
    assert [plain[name] for name in names] == [4, None, None, None]
    assert (plain["workers"][0]["jobs"], plain["workers"][0]["held"]) == (None, None)
    assert "in flight     -  (shown with --admin PORT)" in command("queues", "describe", queue).out


def test_the_oldest_job_is_the_first_that_is_not_finished(
    command: Command, broker: RunningBroker, queue: str, http: str
) -> None:
    """Jobs that were finished out of order, or removed, do not matter, and without jobs there is no
    age."""
    command("queues", "send", queue, "first")
    first_ms = command("queues", "peek", queue, "--json").json[0]["timestamp_ms"]
    command("queues", "send", queue, "second")
    second_ms = command("queues", "peek", queue, "--json").json[1]["timestamp_ms"]
    assert sent_ms(command, queue, http) == pytest.approx(first_ms, abs=5_000)
    with worker(broker, queue) as consumer:
        answer(consumer, taken(consumer), AcknowledgeType.ACCEPT)
        assert second_ms - first_ms > 0
        document = command("queues", "describe", queue, "--admin", http, "--json").json
        assert document["unfinished"] == 1
        host, _, port = http.rpartition(":")
        with broker.connect() as connection:
            in_flight = ask_in_flight(AdminEndpoint(host, int(port)), queue, queue)
            found = report(connection, look(connection, queue), in_flight)
        assert found.oldest_ms == second_ms
        answer(consumer, taken(consumer), AcknowledgeType.ACCEPT)
        assert command("queues", "describe", queue, "--admin", http, "--json").json["oldest_age_ms"] is None
    assert "  oldest        -" in command("queues", "describe", queue).lines


def sent_ms(command: Command, queue: str, http: str) -> float:
    document = command("queues", "describe", queue, "--admin", http, "--json").json
    return time.time() * 1000 - float(document["oldest_age_ms"])


def test_describe_goes_on_until_it_is_interrupted(
    command: Command, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = count(1)

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        if next(times) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", sleep)
    ran = command("queues", "describe", queue, "--watch", "--interval-ms", "500", "--json")
    assert (ran.code, [each["name"] for each in ran.json_lines]) == (INTERRUPTED, [queue] * 3)
    times = count(1)
    ran = command("queues", "describe", queue, "--watch", "--interval-ms", "500")
    assert (ran.code, ran.lines.count(f"queue {queue}")) == (INTERRUPTED, 3)


def test_rates_between_two_moments() -> None:
    rates = JobRates()
    moments = [(0.0, 5, 5), (2.0, 25, 20), (3.0, 25, 21), (3.0, 25, 21), (5.0, 26, 22)]
    found = [rates.of({"sent": sent, "unfinished": left}, now_s) for now_s, sent, left in moments]
    assert [(each["sent_per_s"], each["finished_per_s"]) for each in found] == [
        (None, None), (10.0, 2.5), (0.0, 0.0), (None, None), (0.5, 0.0),
    ]  # fmt: skip


def test_watching_shows_rates(
    command: Command, broker: RunningBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, producer = count(1), Producer({"bootstrap.servers": broker.bootstrap})

    def sleep(_: float) -> None:
        if next(times) == 2:
            raise KeyboardInterrupt
        producer.produce(queue, "job")
        assert producer.flush(60.0) == 0

    monkeypatch.setattr(watching.time, "sleep", sleep)
    _, first, second = command("queues", "describe", queue, "--watch").out.split(f"queue {queue}\n")
    assert "sent/s" not in first
    assert re.search(r"\n  rates +[0-9.]+ sent/s, 0 finished/s\n", second)


def test_a_queue_that_is_deleted_while_it_is_listed_is_left_out(
    command: Command, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{queue}-other"
    command("queues", "create", other)
    describe = group_admin.describe_share_group

    def deleted_first(connection: Connection, group: str) -> group_admin.ShareGroupDescription:
        if group == other:
            group_admin.delete_groups(connection, [other])
        return describe(connection, group)

    monkeypatch.setattr(group_admin, "describe_share_group", deleted_first)
    found = [row["name"] for row in command("queues", "list", "--json").json]
    assert queue in found
    assert other not in found


def test_describe_with_an_endpoint_that_is_none(command: Command, queue: str) -> None:
    port = free_port()
    ran = command("queues", "describe", queue, "--admin", str(port))
    assert (ran.code, ran.out) == (UNREACHABLE, "")
    assert "was the broker started with --admin?" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe"],
        ["peek"],
        ["pause"],
        ["resume"],
        ["purge", "--yes"],
        ["delete"],
        ["export"],
        ["send", "job"],
    ],
)
def test_a_queue_that_does_not_exist(command: Command, arguments: list[str]) -> None:
    ran = command("queues", arguments[0], "no-such-queue", *arguments[1:])
    text = (
        "there is no queue no-such-queue: `kbroker queues create no-such-queue` creates one, "
        "`kbroker queues list` lists the existing ones"
    )
    assert ran == (REFUSED, "", f"kbroker: {text}\n")


def test_a_queue_that_is_made_in_part(
    command: Command, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it has its topic, jobs can be sent; otherwise the line says what to do."""
    name = queue_name(request)
    changes = Changes(monkeypatch)
    changes.at(3, before=True)
    assert command("queues", "create", name).code == INTERRUPTED
    why = (
        f"queue {name} is incomplete: `kbroker queues create {name}` creates the missing parts, "
        f"`kbroker queues delete {name}` removes the others"
    )
    for arguments in (("describe", name), ("send", name, "job")):
        assert command("queues", *arguments) == (REFUSED, "", f"kbroker: {why}\n")
    changes.no_more()
    assert command("queues", "delete", name, "--with-dead-letters").code == OK
    assert command("queues", "create", name).lines[0] == f"created dead letter topic dlq.{name}"


# --- pause, resume ---


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    """The worker finishes the jobs that it holds."""
    command("queues", "send", queue, "a", "b")
    with worker(broker, queue) as consumer:
        held = taken(consumer)
        assert command("queues", "pause", queue) == (OK, f"paused queue {queue}\n", "")
        assert command("queues", "pause", queue, "--json").json == {
            "queue": queue,
            "paused": True,
            "changed": False,
        }
        answer(consumer, held, AcknowledgeType.ACCEPT)
        assert len(consumer.poll(1.0)) == 0
        assert command("queues", "describe", queue).lines[0].startswith(f"queue {queue}, paused")
        assert command("queues", "describe", queue, "--json").json["paused"] is True
        assert command("queues", "resume", queue) == (OK, f"resumed queue {queue}\n", "")
        assert taken(consumer).value() == b"b"
    assert command("queues", "resume", queue) == (OK, "", f"kbroker: queue {queue} is not paused\n")
    assert command("queues", "describe", queue, "--json").json["paused"] is False


# --- purge ---


def test_a_purged_queue_has_no_jobs_and_takes_new_ones(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    command("queues", "send", queue, "a", "b", "c")
    assert command("queues", "purge", queue, "--yes") == (OK, f"dropped 3 jobs of queue {queue}\n", "")
    assert summary(command, queue)["unfinished"] == 0
    assert command("queues", "purge", queue, "--yes") == (
        OK,
        "",
        f"kbroker: there are no jobs in queue {queue}\n",
    )
    command("queues", "send", queue, "d", "e")
    assert command("queues", "purge", queue, "--yes", "--json").json == {"queue": queue, "dropped": 2}
    command("queues", "send", queue, "f")
    with worker(broker, queue) as consumer:
        assert taken(consumer).value() == b"f"


def test_purge_asks_first(command: Command, broker: RunningBroker, queue: str) -> None:
    command("queues", "send", queue, "a")
    code, out, err = at_a_terminal(broker, b"n\n", ["queues", "purge", queue])
    assert (code, out) == (REFUSED, "")
    assert f"Drop 1 job of queue {queue} permanently?" in err
    ran = command("queues", "purge", queue)
    assert (ran.code, ran.err) == (
        USAGE,
        "kbroker: nothing was deleted: there is no terminal to confirm on, so --yes is needed\n",
    )
    assert summary(command, queue)["unfinished"] == 1
    code, out, _ = at_a_terminal(broker, b"y\n", ["queues", "purge", queue])
    assert (code, out) == (OK, f"dropped 1 job of queue {queue}\n")


def test_a_queue_with_workers_is_purged_with_force_only(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    """The workers resume by themselves, but lose the jobs that they held."""
    command("queues", "send", queue, "a", "b", "c")
    with worker(broker, queue) as consumer:
        message = taken(consumer)
        ran = command("queues", "purge", queue, "--yes", "--force")
        assert ran == (OK, f"dropped 3 jobs of queue {queue}\n", "")
        assert summary(command, queue)["unfinished"] == 0
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        (refusal,) = consumer.commit_sync(60.0).values()
        assert refusal is not None
        command("queues", "send", queue, "d")
        message = taken(consumer)
        assert message.value() == b"d"
        answer(consumer, message, AcknowledgeType.ACCEPT)


def test_a_queue_with_workers_is_not_purged(command: Command, broker: RunningBroker, queue: str) -> None:
    command("queues", "send", queue, "a", "b")
    with worker(broker, queue) as consumer:
        message = taken(consumer)
        killed = "(one that was killed counts for 45 s more)"
        text = f"queue {queue} has 1 worker {killed}: stop them first, or put them out with --force"
        assert command("queues", "purge", queue, "--yes") == (REFUSED, "", f"kbroker: {text}\n")
        answer(consumer, message, AcknowledgeType.ACCEPT)
    assert command("queues", "purge", queue, "--yes").out == f"dropped 1 job of queue {queue}\n"


# --- delete ---


def left_of(broker: RunningBroker, queue: str) -> set[str]:
    with broker.connect() as connection:
        topics = {f"topic {topic.name}" for topic in admin.topics(connection) if topic.name.endswith(queue)}
        groups = {f"group {group}" for group in group_admin.group_types(connection) if group == queue}
        return (
            topics
            | groups
            | {f"configs {group}" for group in admin.groups_with_configs(connection) if group == queue}
        )


def test_a_queue_is_deleted_and_its_dead_letters_stay(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    command("queues", "send", queue, "a")
    ran = command("queues", "delete", queue, "--yes")
    assert ran == (OK, f"deleted queue {queue}\n", f"kbroker: its dead letters stay in topic dlq.{queue}\n")
    assert left_of(broker, queue) == {f"topic dlq.{queue}"}
    assert (
        command("queues", "create", queue).lines[0] == f"set {GROUP_CONFIGS} configs of share group {queue}"
    )
    assert summary(command, queue)["unfinished"] == 0
    assert command("queues", "delete", queue, "--json").json == {
        "queue": queue,
        "deleted": True,
        "dead_letter_topic": f"dlq.{queue}",
    }


def test_jobs_and_dead_letters_are_not_deleted_unasked(
    command: Command, broker: RunningBroker, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "letters").write_text("a\n", encoding="utf-8")
    everything = left_of(broker, queue)
    refused = (
        USAGE,
        "",
        "kbroker: nothing was deleted: there is no terminal to confirm on, so --yes is needed\n",
    )
    command("queues", "send", queue, "a")
    assert command("queues", "delete", queue) == refused
    command("queues", "purge", queue, "--yes")
    assert command("produce", f"dlq.{queue}", str(tmp_path / "letters")).code == OK
    assert command("queues", "delete", queue, "--with-dead-letters") == refused
    assert left_of(broker, queue) == everything
    assert command("queues", "delete", queue).code == OK, "neither is lost"


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_deletion_that_is_cut_off_is_finished_by_the_same_command(
    command: Command,
    broker: RunningBroker,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    before: bool,
) -> None:
    changes = Changes(monkeypatch)
    changes.at(number, before=before)
    assert command("queues", "delete", queue, "--with-dead-letters").code == INTERRUPTED
    changes.no_more()
    ran = command("queues", "delete", queue, "--with-dead-letters")
    if (number, before) == (3, False):
        assert (ran.code, changes.made) == (REFUSED, []), "all of it was done"
    else:
        assert (ran.code, ran.out) == (OK, f"deleted queue {queue}\n")
    assert left_of(broker, queue) == set()


def test_a_queue_with_workers_is_deleted_with_force_only(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    command("queues", "send", queue, "a")
    with worker(broker, queue) as consumer:
        taken(consumer)
        text = (
            f"queue {queue} has 1 worker (one that was killed counts for 45 s more): stop them first, "
            "or put them out with --force"
        )
        assert command("queues", "delete", queue) == (REFUSED, "", f"kbroker: {text}\n")
        assert len(left_of(broker, queue)) == 4
        ran = command("queues", "delete", queue, "--force", "--with-dead-letters", "--yes")
        assert (ran.code, ran.out) == (OK, f"deleted queue {queue}\n")
        assert f"warning: 1 worker of queue {queue} was removed from the group" in ran.err
        assert left_of(broker, queue) == set()


def test_a_topic_that_is_no_dead_letter_topic_is_not_deleted(
    command: Command, broker: RunningBroker, queue: str, topic: str
) -> None:
    """A group's configs may name any topic."""
    broker.set_group_config(queue, {"errors.deadletterqueue.topic.name": topic})
    text = f"topic {topic} is for something else than dead letters: delete without --with-dead-letters"
    assert command("queues", "delete", queue, "--with-dead-letters") == (REFUSED, "", f"kbroker: {text}\n")
    assert command("queues", "delete", queue).err == f"kbroker: its dead letters stay in topic {topic}\n"


def test_a_dead_letter_topic_that_another_queue_uses_is_not_deleted(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    other = f"{queue}-other"
    assert command("queues", "create", other, "--dead-letters", f"dlq.{queue}").code == OK
    text = f"dead letter topic dlq.{queue} is used by {other}, too: delete without --with-dead-letters"
    assert command("queues", "delete", queue, "--with-dead-letters") == (REFUSED, "", f"kbroker: {text}\n")
    assert len(left_of(broker, queue)) == 4
    assert command("queues", "delete", queue).code == OK
    assert command("queues", "delete", other, "--with-dead-letters").code == OK
    assert left_of(broker, queue) == set()
