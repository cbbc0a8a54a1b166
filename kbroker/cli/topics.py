"""`kbroker topics`: create, list, describe, alter and delete topics.

Longer commands are in separate files and are added at the end of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.exits import refuse
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import COUNT, Bootstrap, NameValue, bootstrap_option, connect, each_once, json_option
from kbroker.cli.suggesting import SuggestingGroup
from kbroker.cli.topics_alter import alter, delete_records
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection


@click.group(cls=SuggestingGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


@topics.command()
@click.argument("topic")
@click.option(
    "--partitions", "-p", type=COUNT, help="Number of partitions; default: the broker's num.partitions."
)
@click.option(
    "--config",
    "configs",
    type=NameValue(),
    multiple=True,
    callback=each_once,
    help="A topic config; may be repeated for other configs.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed without a change if the topic exists.")
@bootstrap_option
def create(
    topic: str, partitions: int | None, configs: dict[str, str], if_not_exists: bool, bootstrap: Bootstrap
) -> None:
    """Create TOPIC.

    \b
    Examples:
      kbroker topics create orders --partitions 3 --config retention.ms=86400000
    """
    from kbroker.client import admin

    with connect(bootstrap) as connection:
        try:
            admin.create_topic(connection, topic, partitions=partitions or -1, config=configs)
        except KafkaError as error:
            if error.code is not ErrorCode.topic_already_exists or not if_not_exists:
                raise
            click.echo(f"topic {topic} exists already")
            return
    click.echo(f"created topic {topic}")


@topics.command("list")
@click.option(
    "--internal",
    is_flag=True,
    help="Include topics with names of Kafka's internal topics, such as __consumer_offsets.",
)
@json_option("An array of names.")
@bootstrap_option
def list_topics(internal: bool, as_json: bool, bootstrap: Bootstrap) -> None:
    """List the names of all topics, one per line."""
    from kbroker.client import admin

    with connect(bootstrap) as connection:
        names = [topic.name for topic in admin.topics(connection) if internal or not topic.is_internal]
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)


@topics.command()
@click.argument("topic", nargs=-1)
@json_option(
    "An array of objects: name, topic_id, partitions (partition, start_offset, end_offset), configs."
)
@bootstrap_option
def describe(topic: tuple[str, ...], as_json: bool, bootstrap: Bootstrap) -> None:
    """Print partitions, offsets and configs of topics.

    Describes each TOPIC, or all topics. Only configs that are set on the topic are shown. If a
    topic does not exist, the others are described, and the exit code is 1.
    """
    from kbroker.client import admin
    from kbroker.client.answers import reason

    problems: list[str] = []
    described: list[dict[str, Any]] = []
    with connect(bootstrap) as connection:
        for name in topic or [found.name for found in admin.topics(connection)]:
            try:
                described.append(_describe(connection, name))
            except KafkaError as error:
                problems.append(reason(error.code, error.message))
    if as_json:
        print_json(described)
    elif described or not topic:
        _print(described)
    refuse(problems)


def _print(described: list[dict[str, Any]]) -> None:
    rows = [
        (
            item["name"],
            row["partition"],
            row["start_offset"],
            row["end_offset"],
            row["end_offset"] - row["start_offset"],
        )
        for item in described
        for row in item["partitions"]
    ]
    print_table(("TOPIC", "PARTITION", "START-OFFSET", "END-OFFSET", "OFFSETS"), rows)
    for item in described:
        if item["configs"]:
            click.echo(
                f"configs of {item['name']}: "
                + " ".join(f"{name}={value}" for name, value in item["configs"].items())
            )


def _describe(connection: Connection, name: str) -> dict[str, Any]:
    from kbroker.client import admin

    (topic,) = admin.topics(connection, [name])
    starts = admin.list_offsets(connection, topic.name, topic.partitions, admin.EARLIEST)
    ends = admin.list_offsets(connection, topic.name, topic.partitions, admin.LATEST)
    configs = admin.describe_configs(connection, admin.ResourceType.TOPIC, topic.name)
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": [
            {"partition": p, "start_offset": starts[p], "end_offset": ends[p]} for p in topic.partitions
        ],
        "configs": {
            entry.name: entry.value for entry in configs if admin.SOURCES.get(entry.source) == "topic"
        },
    }


@topics.command()
@click.argument("topic", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Succeed without a change if a topic does not exist.")
@click.option("--force", is_flag=True, help="Delete even the topic of a queue that has unfinished jobs.")
@bootstrap_option
def delete(topic: tuple[str, ...], if_exists: bool, force: bool, bootstrap: Bootstrap) -> None:
    """Delete each TOPIC with all its records and its share state.

    The topic of a queue that has unfinished jobs is refused without --force. If a topic cannot be
    deleted, the others are, and the exit code is 1.
    """
    from kbroker.cli.queues.found import why_not_to_delete
    from kbroker.client import admin

    problems = []
    with connect(bootstrap) as connection:
        kept = {} if force else why_not_to_delete(connection, topic)
        for name in dict.fromkeys(topic):
            if name in kept:
                problems.append(f"topic {name} was not deleted: {kept[name]}")
                continue
            try:
                admin.delete_topic(connection, name)
            except KafkaError as error:
                is_missing = error.code is ErrorCode.unknown_topic_or_partition
                if is_missing and if_exists:
                    click.echo(f"there is no topic {escaped(name)}")
                else:
                    problems.append(
                        f"there is no topic {name}"
                        if is_missing
                        else f"topic {name} could not be deleted: {error.message}"
                    )
            else:
                click.echo(f"deleted topic {escaped(name)}")
    refuse(problems)


topics.add_command(alter)
topics.add_command(delete_records)
