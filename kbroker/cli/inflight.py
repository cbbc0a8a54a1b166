"""`kbroker share-groups inflight`: what is in flight in a group's share-partitions, asked of the broker's HTTP endpoint."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.output import print_json
from kbroker.cli.params import Address, admin_option, json_option, not_blank

if TYPE_CHECKING:
    from rich.console import Console, Group

_TIMEOUT_S = 30.0


@click.command()
@click.argument("group", callback=not_blank)
@click.option("--topic", help="Only share-partitions of this topic.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, showing it anew at an interval.")
@click.option("--interval-ms", type=click.IntRange(100, 3_600_000), default=1000, show_default=True, help="The interval of --watch.")
@click.option("--member-ids", is_flag=True, help="Also the members' ids, as `share-groups describe --members` shows them.")
@json_option
@admin_option
def inflight(group: str, topic: str | None, watch: bool, interval_ms: int, member_ids: bool, as_json: bool, admin: Address) -> None:
    """Show which records of GROUP are in flight, which clients hold them and for how long.

    Needs a broker that was started with `kbroker start --admin`.
    """
    moments = _moments(admin, group, topic, interval_ms / 1000 if watch else None)
    if as_json:
        for document in moments:
            print_json(document)
    else:
        _show(moments, in_place=watch and sys.stdout.isatty(), member_ids=member_ids)


def _moments(admin: Address, group: str, topic: str | None, interval_s: float | None) -> Iterator[dict[str, Any]]:
    yield _ask(admin, group, topic)
    while interval_s is not None:
        time.sleep(interval_s)
        yield _ask(admin, group, topic)


def _show(moments: Iterator[dict[str, Any]], *, in_place: bool, member_ids: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if in_place:
        with Live(_lines(console, next(moments), member_ids), console=console, auto_refresh=False) as live:
            for document in moments:
                live.update(_lines(console, document, member_ids), refresh=True)
    else:
        _print(console, next(moments), member_ids)
        for document in moments:
            click.echo()
            _print(console, document, member_ids)


def _print(console: Console, document: dict[str, Any], member_ids: bool) -> None:
    from kbroker.cli.inflight_view import draw

    for line in draw(document, console.width, member_ids=member_ids):
        console.print(line, soft_wrap=True)


def _lines(console: Console, document: dict[str, Any], member_ids: bool) -> Group:
    """For a terminal: a line that is too long for it is cut, so that the picture stays in place."""
    from rich.console import Group

    from kbroker.cli.inflight_view import draw

    lines = draw(document, console.width, member_ids=member_ids)
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _ask(admin: Address, group: str, topic: str | None) -> dict[str, Any]:
    """Raises BrokerUnreachable, and CommandFailed with what the broker refuses."""
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
        raise BrokerUnreachable(f"{admin} does not answer as a broker's --admin endpoint does; is it the Kafka port?") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerUnreachable(f"cannot connect to {admin}: {reason}; was the broker started with --admin?") from error
    finally:
        connection.close()
    if status != http.HTTPStatus.OK:
        raise CommandFailed(str(document.get("error", f"{admin} answered {status}")))
    return document
