"""`kbroker share-groups inflight`: the records in flight of a group's share-partitions, read from
the broker's HTTP endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click

from kbroker.cli.params import admin_option, json_option, not_blank
from kbroker.cli.watching import moments, print_all_json, show, watch_options

if TYPE_CHECKING:
    from kbroker.client.admin_endpoint import AdminEndpoint


@click.command()
@click.argument("group", callback=not_blank)
@click.option("--topic", help="Only share-partitions of this topic.")
@watch_options
@click.option(
    "--member-ids",
    is_flag=True,
    help="Also show the members' ids, as `share-groups describe --members` does.",
)
@json_option("The broker's answer: one object, with --watch one per line.")
@admin_option
def inflight(
    group: str,
    topic: str | None,
    watch: bool,
    interval_ms: int,
    member_ids: bool,
    as_json: bool,
    admin: AdminEndpoint,
) -> None:
    """Show which records of GROUP are in flight, which clients hold them and for how long.

    Needs a broker that was started with `kbroker start --admin`.
    """
    from kbroker.cli.inflight_view import draw

    found = moments(lambda: ask_in_flight(admin, group, topic), interval_ms if watch else None)
    if as_json:
        print_all_json(found)
    else:
        show(found, lambda document, width: draw(document, width, member_ids=member_ids), in_place=watch)


def ask_in_flight(admin: AdminEndpoint, group: str, topic: str | None) -> dict[str, Any]:
    """The document of the broker's HTTP endpoint. Raises BrokerUnreachable, and KafkaError with the
    broker's error."""
    from kbroker.client.answers import lacking
    from kbroker.errors import ErrorCode, KafkaError

    query = f"?{urlencode({'topic': topic})}" if topic is not None else ""
    try:
        return admin.get(f"/v1/share-groups/{quote(group, safe='')}/inflight{query}")
    except KafkaError as error:
        refused = {  # The endpoint answers with words, and without a code.
            "Group authorization failed.": (ErrorCode.group_authorization_failed, group),
            "Topic authorization failed.": (ErrorCode.topic_authorization_failed, topic or ""),
        }.get(error.message or "")
        if refused is None:
            raise
        code, name = refused
        raise KafkaError(code, lacking(code, "describe", name)) from error
