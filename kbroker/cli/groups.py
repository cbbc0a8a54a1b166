"""`kbroker groups`: all groups of the broker, whatever their type (KIP-1043)."""

from __future__ import annotations

import click

from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import Address, bootstrap_option, connect, json_option

TYPES = ("classic", "consumer", "share", "streams")


@click.group()
def groups() -> None:
    """List groups of all types."""


@groups.command("list")
@click.option("--share", is_flag=True, help="Only share groups.")
@click.option("--group-type", type=click.Choice(TYPES, case_sensitive=False), help="Only groups of this type.")
@click.option("--protocol", metavar="PROTOCOL", help="Only groups whose members speak this protocol, such as share.")
@json_option
@bootstrap_option
def list_groups(share: bool, group_type: str | None, protocol: str | None, as_json: bool, bootstrap: Address) -> None:
    """Ids, types and protocols of groups.

    \b
    Examples:
      kbroker groups list
      kbroker groups list --group-type share --json
    """
    if share and (group_type is not None or protocol is not None):
        raise click.UsageError("--share excludes --group-type and --protocol")
    from kbroker.client import group_admin

    types = ("share",) if share else () if group_type is None else (group_type,)
    with connect(bootstrap) as connection:
        found = [each for each in group_admin.groups(connection, types) if protocol in (None, each.protocol)]
    if as_json:
        print_json([{"group": each.group_id, "type": each.type, "protocol": each.protocol, "state": each.state} for each in found])
    else:
        print_table(("GROUP", "TYPE", "PROTOCOL"), [(each.group_id, each.type, each.protocol) for each in found])
