"""`kbroker share-groups`: list and describe share groups, with the columns of Kafka's own tool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import Address, bootstrap_option, connect, json_option
from kbroker.logging_setup import escaped

if TYPE_CHECKING:
    from kbroker.client.admin import ShareGroup, ShareMember


@click.group("share-groups")
def share_groups() -> None:
    """List and describe share groups."""


@share_groups.command("list")
@click.option("--state", "show_state", is_flag=True, help="Also print the state of each group.")
@json_option
@bootstrap_option
def list_groups(show_state: bool, as_json: bool, bootstrap: Address) -> None:
    """Ids of all share groups, one per line."""
    from kbroker.client import admin

    with connect(bootstrap) as connection:
        groups = admin.groups(connection)
    if as_json:
        print_json([{"group": group.group_id, "state": group.state} for group in groups])
    elif show_state:
        print_table(("GROUP", "STATE"), [(group.group_id, group.state) for group in groups])
    else:
        for group in groups:
            click.echo(escaped(group.group_id))


@share_groups.command()
@click.argument("group", nargs=-1)
@click.option("--members", "view", flag_value="members", help="Members and their assignments.")
@click.option("--state", "view", flag_value="state", default="state", help="State, epochs and number of members (default).")
@json_option
@bootstrap_option
def describe(group: tuple[str, ...], view: str, as_json: bool, bootstrap: Address) -> None:
    """Describe each GROUP, or all share groups."""
    from kbroker.client import admin

    with connect(bootstrap) as connection:
        names = group or tuple(found.group_id for found in admin.groups(connection))
        described = [admin.describe_share_group(connection, name) for name in names]
    if as_json:
        print_json([_as_json(one) for one in described])
    elif view == "members":
        columns = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "MEMBER-EPOCH", "ASSIGNMENT")
        print_table(columns, [_member_row(one, member) for one in described for member in one.members])
    else:
        rows = [(one.group_id, one.state, one.group_epoch, one.assignment_epoch, len(one.members)) for one in described]
        print_table(("GROUP", "STATE", "GROUP-EPOCH", "ASSIGNMENT-EPOCH", "#MEMBERS"), rows)


def _member_row(group: ShareGroup, member: ShareMember) -> tuple[str | int, ...]:
    count = sum(len(partitions) for partitions in member.assignment.values())
    text = ";".join(f"{topic}:{_joined(partitions)}" for topic, partitions in sorted(member.assignment.items()))
    return group.group_id, member.member_id, member.client_host, member.client_id, count, member.member_epoch, text


def _joined(partitions: Iterable[int]) -> str:
    return ",".join(map(str, partitions))


def _as_json(group: ShareGroup) -> dict[str, object]:
    return {**group._asdict(), "members": [member._asdict() for member in group.members]}
