"""`kbroker share-groups inflight`: the records in flight of a group's share-partitions, read from
the broker's HTTP endpoint."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.params import Address, admin_option, json_option, not_blank
from kbroker.cli.watching import moments, print_all_json, show, watch_options

_TIMEOUT_S = 30.0


@click.command()
@click.argument("group", callback=not_blank)
@click.option("--topic", help="Only share-partitions of this topic.")
@watch_options
@click.option(
    "--member-ids",
    is_flag=True,
    help="Also show the members' ids, as `share-groups describe --members` does.",
)
@json_option
@admin_option
def inflight(
    group: str,
    topic: str | None,
    watch: bool,
    interval_ms: int,
    member_ids: bool,
    as_json: bool,
    admin: Address,
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


def ask_in_flight(admin: Address, group: str, topic: str | None) -> dict[str, Any]:
    """The document of the broker's HTTP endpoint. Raises BrokerUnreachable, and CommandFailed with
    the broker's error."""
    from kbroker.client.rpc import BrokerUnreachable

    query = f"?{urlencode({'topic': topic})}" if topic is not None else ""
    connection = http.client.HTTPConnection(admin.host, admin.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/v1/share-groups/{quote(group, safe='')}/inflight{query}")
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
        document = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError("no object")
    except (http.client.HTTPException, ValueError) as error:
        raise BrokerUnreachable(
            f"{admin} does not answer as a broker's --admin endpoint does; is it the Kafka port?"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerUnreachable(
            f"cannot connect to {admin}: {reason}; was the broker started with --admin?"
        ) from error
    finally:
        connection.close()
    if status != http.HTTPStatus.OK:
        raise CommandFailed(str(document.get("error", f"{admin} answered {status}")))
    return document
