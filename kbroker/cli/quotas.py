"""`kbroker quotas`: how much users, client ids and addresses may use."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import (
    Bootstrap,
    FiniteRange,
    bootstrap_option,
    connect,
    json_option,
    not_empty,
    options,
)
from kbroker.cli.suggesting import SuggestingGroup

if TYPE_CHECKING:
    from kbroker.client.quota_admin import ListedQuotas
    from kbroker.security.quotas import Component, Entity

_TYPES: Final = ("user", "client-id", "ip")
_COLUMNS: Final = ("USER", "CLIENT ID", "IP", "QUOTA", "LIMIT")
_DEFAULT: Final = "(default)"
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMG]?)(i?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3}


class RateType(click.ParamType[float]):
    """Bytes a second, such as `500000` or `1MB`."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _SIZE.fullmatch(str(value))
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is not a number of bytes a second, such as 500000 or 1MB", param, ctx)
        base = 1024 if found[3] else 1000
        rate = float(found[1]) * base ** _POWERS[found[2].upper()]
        if math.isinf(rate):
            self.fail(f"{value!r} is too large", param, ctx)
        return float(int(rate))


class _Limit(NamedTuple):
    key: str
    noun: str
    is_bytes: bool = False


LIMITS: Final = {
    "produce_rate": _Limit("producer_byte_rate", "produce-rate", is_bytes=True),
    "fetch_rate": _Limit("consumer_byte_rate", "fetch-rate", is_bytes=True),
    "request_percentage": _Limit("request_percentage", "request-percentage"),
    "connection_rate": _Limit("connection_creation_rate", "connection-rate"),
}
"""By the parameters of `set`; the nouns are also what `remove --quota` takes."""


entity_options = options(
    click.option(
        "--user", "-u", metavar="NAME", callback=not_empty, help="This user; ANONYMOUS: without a log-in."
    ),
    click.option("--default-user", is_flag=True, help="Every user without quotas of its own."),
    click.option("--client-id", "-c", metavar="ID", callback=not_empty, help="Clients with this id."),
    click.option("--default-client-id", is_flag=True, help="Every client id without quotas of its own."),
    click.option("--ip", metavar="ADDRESS", callback=not_empty, help="The clients at this IP address."),
    click.option("--default-ip", is_flag=True, help="Every address without quotas of its own."),
)
"""`--user`, `--client-id`, `--ip`, and the same for defaults."""


@click.group(cls=SuggestingGroup)
def quotas() -> None:
    """List, set and remove quotas: how much users, client ids and addresses may use.

    A client that has exceeded a quota gets its answer, and then has to wait. A quota of a user with
    a client id comes before that of the user, and that before the default for users; those of
    client ids come last.
    """


@quotas.command("list")
@entity_options
@json_option(
    "An array of objects: user, client_id and ip as far as they matter (null: the default), and "
    "quotas by Kafka's names."
)
@bootstrap_option
def list_quotas(as_json: bool, bootstrap: Bootstrap, **chosen: Any) -> None:  # noqa: ANN401 - options
    """List quotas: all, or those that name the given user, client id or address.

    \b
    Examples:
      kbroker quotas list
      kbroker quotas list --user alice --json
    """
    from kbroker.client import quota_admin

    wanted = _components(_names(chosen))
    with connect(bootstrap) as connection:
        found = quota_admin.describe(connection, wanted)
    if as_json:
        print_json([_as_json(each) for each in found])
    elif found:
        rows = [
            (*_columns(each.entity), _noun(key), _text(key, value))
            for each in found
            for key, value in each.values.items()
        ]
        print_table(_COLUMNS, rows)
    else:
        click.echo("there are no such quotas")


@quotas.command("set")
@click.option("--produce-rate", type=RateType(), metavar="BYTES",
              help="Bytes a second that producers may send: 500000, 1MB; 1MiB is 1048576.")  # fmt: skip
@click.option("--fetch-rate", type=RateType(), metavar="BYTES",
              help="Bytes a second that consumers and workers may fetch.")  # fmt: skip
@click.option("--request-percentage", type=FiniteRange(min=0, min_open=True), metavar="PERCENT",
              help="How much of the broker's time requests may take.")  # fmt: skip
@click.option("--connection-rate", type=click.IntRange(min=1), metavar="N",
              help="Connections a second that an address may open; with --ip or --default-ip.")  # fmt: skip
@entity_options
@json_option(
    "An object: user, client_id and ip as far as they matter (null: the default), and all quotas "
    "that it then has, by Kafka's names."
)
@bootstrap_option
def set_quotas(as_json: bool, bootstrap: Bootstrap, **chosen: Any) -> None:  # noqa: ANN401 - options
    """Set quotas of a user, of a client id, of both together, or of an address.

    They are in force at once. Quotas that are not named stay as they are.

    \b
    Examples:
      kbroker quotas set --user alice --produce-rate 1MB --fetch-rate 5MB
      kbroker quotas set --default-user --request-percentage 20
      kbroker quotas set --user app --client-id batch --fetch-rate 500KB
      kbroker quotas set --default-ip --connection-rate 10
    """
    values: dict[str, float | None] = {
        limit.key: float(chosen[name]) for name, limit in LIMITS.items() if chosen[name] is not None
    }
    if not values:
        raise click.UsageError(
            "a quota is needed: --produce-rate, --fetch-rate, --request-percentage or --connection-rate"
        )
    _alter(bootstrap, chosen, values, as_json=as_json)


@quotas.command()
@click.option("--quota", "nouns", type=click.Choice([each.noun for each in LIMITS.values()]), multiple=True,
              help="Only this quota; may be repeated.  [default: all]")  # fmt: skip
@entity_options
@json_option(
    "An object: user, client_id and ip as far as they matter (null: the default), and the quotas "
    "that are left."
)
@bootstrap_option
def remove(nouns: tuple[str, ...], as_json: bool, bootstrap: Bootstrap, **chosen: Any) -> None:  # noqa: ANN401
    """Remove quotas of exactly the given user, client id, both together, or address.

    Others may hold for these clients then.

    \b
    Examples:
      kbroker quotas remove --user alice
      kbroker quotas remove --default-user --quota request-percentage
    """
    keys = [each.key for each in LIMITS.values() if not nouns or each.noun in nouns]
    _alter(bootstrap, chosen, dict.fromkeys(keys), as_json=as_json)


def _alter(
    bootstrap: Bootstrap, chosen: Mapping[str, Any], values: Mapping[str, float | None], *, as_json: bool
) -> None:
    """Set or remove, and print the quotas that the entity then has."""
    from kbroker.client import quota_admin
    from kbroker.security.quotas import entity_of

    names = _names(chosen)
    if not names:
        raise click.UsageError("whose quotas? --user, --client-id, --ip, or one of the --default- options")
    entity, exactly = entity_of(names), _components(names)
    with connect(bootstrap) as connection:
        if all(value is None for value in values.values()):
            present = quota_admin.describe(connection, exactly, strict=True)
            removed = [key for each in present for key in each.values if key in values]
            if not removed:
                raise CommandFailed("there are no such quotas: `kbroker quotas list` shows all")
            values = dict.fromkeys(removed)
        quota_admin.alter(connection, entity, values)
        found = quota_admin.describe(connection, exactly, strict=True)
    if as_json:
        print_json(_as_json(found[0]) if found else {**_as_names(entity), "quotas": {}})
    else:
        click.echo(f"{_told(entity)}: {_all_of(found[0].values) if found else 'no quotas'}")


def _names(chosen: Mapping[str, Any]) -> dict[str, str | None]:
    """The entity that the options name, by type; None: the default."""
    names: dict[str, str | None] = {}
    for kind in _TYPES:
        option = kind.replace("-", "_")
        name, is_default = chosen[option], chosen[f"default_{option}"]
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --default-{kind} exclude each other")
        if name is not None or is_default:
            names[kind] = name
    if "ip" in names and len(names) > 1:
        raise click.UsageError("an address has quotas of its own: --ip goes with no user and no client id")
    return names


def _components(names: Mapping[str, str | None]) -> list[Component]:
    from kbroker.security.quotas import DEFAULT, EXACT, Component

    return [Component(kind, DEFAULT if name is None else EXACT, name) for kind, name in names.items()]


def _columns(entity: Entity) -> tuple[str, ...]:
    names = dict(entity)
    return tuple("" if kind not in names else names[kind] or _DEFAULT for kind in _TYPES)


def _as_names(entity: Entity) -> dict[str, str | None]:
    """As in Kafka's own outputs null is the default; a type that does not matter is left out."""
    return {kind.replace("-", "_"): name for kind, name in entity}


def _as_json(found: ListedQuotas) -> dict[str, Any]:
    return {**_as_names(found.entity), "quotas": dict(found.values)}


def _noun(key: str) -> str:
    return next((each.noun for each in LIMITS.values() if each.key == key), key)


def _text(key: str, value: float) -> str:
    if any(each.is_bytes for each in LIMITS.values() if each.key == key):
        unit = next((unit for unit in reversed(_POWERS) if value >= 1000 ** _POWERS[unit]), "")
        return f"{value / 1000 ** _POWERS[unit]:g} {unit}B/s"
    return f"{value:g} %" if key == "request_percentage" else f"{value:g}/s"


def _all_of(values: Mapping[str, float]) -> str:
    return ", ".join(f"{_noun(key)} {_text(key, value)}" for key, value in values.items())


def _told(entity: Entity) -> str:
    return ", ".join(
        f"{kind.replace('-', ' ')} {_DEFAULT if name is None else name}"
        for kind, name in sorted(entity, key=lambda each: _TYPES.index(each[0]))
    )
