"""The options that choose dead letters, shared by the commands of `kbroker dead-letters`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.exits import CommandFailed, say
from kbroker.cli.params import DateTimeType, options
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.admin import Topic
    from kbroker.client.rpc import Connection
    from kbroker.client.topic_logs import Damage
    from kbroker.redrive.dead_letters import Choice

CAUSES = ("rejected", "exhausted", "expired")
"""As in kbroker.redrive.dead_letters, repeated so that `--help` need not import that module."""


class PlaceType(click.ParamType[tuple[int, int]]):
    """The place of a dead letter: `PARTITION:OFFSET`."""

    name = "PARTITION:OFFSET"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        partition, _, offset = str(value).partition(":")
        if not (
            partition.isascii()
            and partition.isdigit()
            and offset.isascii()
            and offset.isdigit()
            and len(offset) < 19
        ):
            self.fail(f"{value!r} is not {self.name}", param, context)
        return int(partition), int(offset)


choice_options = options(
    click.option("--group", metavar="GROUP", help="Only records that this share group gave up."),
    click.option("--source-topic", metavar="TOPIC", help="Only records of this topic."),
    click.option(
        "--cause",
        type=click.Choice(CAUSES),
        help="Only records that were given up for this cause: rejected, deliveries exhausted, or expired.",
    ),
    click.option(
        "--since",
        "since_ms",
        type=DateTimeType(),
        help="Only dead letters at or after this time: YYYY-MM-DDTHH:mm:SS[.sss], UTC unless a zone is "
        "given.",
    ),
    click.option("--until", "until_ms", type=DateTimeType(), help="Only dead letters before this time."),
    click.option(
        "--at",
        "places",
        type=PlaceType(),
        multiple=True,
        help="Only the dead letter at this place; may be repeated.",
    ),
)
"""The options that choose dead letters. A dead letter must match all that are given."""


def find_topic(connection: Connection, name: str) -> Topic:
    """Raises CommandFailed if there is none, or if it is the topic of a queue whose dead letters
    are elsewhere."""
    from kbroker.client import admin

    try:
        found = admin.topics(connection, [name])[0]
    except KafkaError as error:
        if error.code is ErrorCode.unknown_topic_or_partition:
            raise CommandFailed(f"there is no topic {name}") from error
        raise
    if letters := _dead_letters_elsewhere(connection, name):
        raise CommandFailed(
            f"{name} is no dead letter topic: the dead letters of the queue {name} are in {letters}"
        )
    return found


def _dead_letters_elsewhere(connection: Connection, topic: str) -> str | None:
    """The dead letter topic of the group of this name, if dead letters may not be written to
    `topic` itself."""
    from kbroker.client import admin
    from kbroker.client.queues.settings import DEAD_LETTER_TOPIC

    def value(kind: admin.ResourceType, config: str) -> str | None:
        entries = admin.describe_configs(connection, kind, topic)
        return next((each.value for each in entries if each.name == config), None)

    try:
        if value(admin.ResourceType.TOPIC, "errors.deadletterqueue.group.enable") == "true":
            return None
        return value(admin.ResourceType.GROUP, DEAD_LETTER_TOPIC)
    except KafkaError:  # The user may not read configs, or the broker has none of groups.
        return None


def tell(damage: Damage) -> None:
    say(str(damage))


def choice_of(chosen: dict[str, Any]) -> Choice:
    from kbroker.redrive.dead_letters import Choice

    # the order of the places does not matter
    return Choice(**{**chosen, "places": tuple(sorted(set(chosen["places"])))})
