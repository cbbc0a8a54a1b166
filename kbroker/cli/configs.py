"""`kbroker configs`: describe, set and delete configs of topics, groups and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.output import Table, print_json, print_table
from kbroker.cli.params import (
    Bootstrap,
    NameValue,
    bootstrap_option,
    connect,
    each_once,
    json_option,
    not_empty,
    options,
)
from kbroker.cli.suggesting import SuggestingGroup

if TYPE_CHECKING:
    from kbroker.client.admin import ConfigEntry, ResourceType


resource_options = options(
    click.option("--topic", metavar="NAME", callback=not_empty, help="Configs of this topic."),
    click.option(
        "--group",
        metavar="G",
        callback=not_empty,
        help="Configs of this share group, which need not exist yet.",
    ),
    click.option(
        "--broker", metavar="ID", help="Configs of the broker with this node id; an empty ID: of all brokers."
    ),
)
"""The resource: exactly one of --topic, --group, --broker."""


def _resource(resource: Mapping[str, str | None]) -> tuple[ResourceType, str]:
    """The one that `resource_options` name."""
    from kbroker.client.admin import ResourceType

    given = [(ResourceType[kind.upper()], name) for kind, name in resource.items() if name is not None]
    if len(given) != 1:
        raise click.UsageError("exactly one of --topic, --group and --broker is needed")
    return given[0]


def _shown(kind: ResourceType, name: str) -> str:
    return f"{kind.name.lower()} {name}" if name else "all brokers"


@click.group(cls=SuggestingGroup)
def configs() -> None:
    """Describe, set and delete configs of topics, groups and brokers.

    `kbroker docs settings` lists them, with their bounds.
    """


@configs.command()
@resource_options
@click.option("--all", "show_all", is_flag=True, help="Include configs that have their default value.")
@json_option("An array of objects: name, value, source, read_only, default.")
@bootstrap_option
def describe(show_all: bool, as_json: bool, bootstrap: Bootstrap, **resource: str | None) -> None:
    """Print configs, their values and where the values come from.

    Exactly one of --topic, --group and --broker is needed. The source is group, topic, dynamic
    broker, dynamic cluster, static broker or default. DEFAULT is the value that applies once the
    config is deleted; - if the broker does not report it.

    \b
    Examples:
      kbroker configs describe --group workers --all
      kbroker configs describe --topic orders --json
    """
    from kbroker.client import admin

    kind, name = _resource(resource)
    with connect(bootstrap) as connection:
        entries = admin.describe_configs(connection, kind, name)
    rows = [
        (e.name, e.value, admin.SOURCES.get(e.source, str(e.source)), e.is_read_only, e.default)
        for e in entries
        if show_all or not e.is_default
    ]
    table = Table(("NAME", "VALUE", "SOURCE", "READ-ONLY", "DEFAULT"), rows)
    if as_json:
        print_json(table.as_json())
    elif rows:
        print_table(*table.without("READ-ONLY"))
    else:
        click.echo("all configs have their default values (--all shows them)")


@configs.command("set")
@resource_options
@click.argument("config", nargs=-1, required=True, type=NameValue(), callback=each_once)
@bootstrap_option
def set_configs(config: dict[str, str], bootstrap: Bootstrap, **resource: str | None) -> None:
    """Set each CONFIG (NAME=VALUE), all or none.

    Exactly one of --topic, --group and --broker is needed.

    \b
    Examples:
      kbroker configs set --group workers share.delivery.count.limit=3
      kbroker configs set --topic orders retention.ms=86400000
    """
    from kbroker.client import admin

    kind, name = _resource(resource)
    with connect(bootstrap) as connection:
        admin.alter_configs(connection, kind, name, set_configs=config)
    click.echo(f"set {', '.join(config)} of {_shown(kind, name)}")


@configs.command()
@resource_options
@click.argument("config", nargs=-1, required=True)
@bootstrap_option
def delete(config: tuple[str, ...], bootstrap: Bootstrap, **resource: str | None) -> None:
    """Reset each CONFIG to its default value, all or none.

    CONFIG is the name of a config that is set on this resource (see `kbroker configs describe`).
    One that is not is refused, and nothing is deleted: a broker may have the value from --broker
    "", a topic or a group from the broker.

    \b
    Examples:
      kbroker configs delete --group workers share.delivery.count.limit
    """
    from kbroker.client import admin

    kind, name = _resource(resource)
    with connect(bootstrap) as connection:
        known = {entry.name: entry for entry in admin.describe_configs(connection, kind, name)}
        for key in config:  # The broker ignores an unset config, as Kafka's does; Kafka's tool refuses it.
            if name and key not in known:
                raise CommandFailed(f"{_shown(kind, name)} has no config {key!r}")
            if key not in known or not known[key].is_own:
                raise CommandFailed(_not_set(kind, name, key, known.get(key)))
        admin.alter_configs(connection, kind, name, delete_configs=dict.fromkeys(config))
    click.echo(f"deleted {', '.join(config)} of {_shown(kind, name)}")


def _not_set(kind: ResourceType, name: str, key: str, entry: ConfigEntry | None) -> str:
    """Why there is nothing to delete. `entry`: the config, whose value has another source."""
    from kbroker.client import admin

    if not name:
        return f"{key} is not set for all brokers"
    text = f"{key} is not set on {_shown(kind, name)}"
    if entry is None or entry.is_default:
        return text
    if entry.source == admin.ALL_BROKERS_SOURCE and kind is admin.ResourceType.BROKER:
        return f'{text}, but for all brokers: kbroker configs delete --broker "" {key}'
    return (
        f"{text}: its value comes from the "
        f"{'start' if kind is admin.ResourceType.BROKER else 'settings'} of the broker"
    )
