"""Parameter types and options that several commands share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kbroker.cli.security_options import command_config_option, security_of
from kbroker.client.spans import parse_span

if TYPE_CHECKING:
    from kbroker.client.admin_endpoint import AdminEndpoint
    from kbroker.client.rpc import Connection
    from kbroker.client.security import ClientSecurity

COUNT = click.IntRange(1, (1 << 31) - 1)
"""A positive int32, of the protocol or of a client's setting."""
INDEX = click.IntRange(0, (1 << 31) - 1)


class FiniteRange(click.FloatRange):
    """For click, nan is within any range, and inf within one without a maximum."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
F = TypeVar("F", bound=Callable[..., Any])


def options(*parts: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options and arguments as one decorator, in the order of the help."""

    def add(function: F) -> F:
        for part in reversed(parts):
            function = part(function)
        return function

    return add


class Address(NamedTuple):
    """Printed as HOST:PORT, with brackets around an IPv6 host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Bootstrap(NamedTuple):
    """A broker: its address, and how to speak to it. Printed as its address."""

    address: Address
    security: ClientSecurity

    def __str__(self) -> str:
        return str(self.address)


class AddressType(click.ParamType[Address]):
    """`HOST:PORT` or `[IPV6]:PORT`."""

    name = "HOST:PORT"

    def __init__(self, lowest_port: int = 1) -> None:
        self._lowest_port = lowest_port

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        text = str(value)
        host, _, port_text = text.rpartition(":")
        in_brackets = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if in_brackets else host
        if (
            in_brackets != (":" in host)
            or not _is_host(host)
            or not (port_text.isascii() and port_text.isdigit())
        ):
            self.fail(f"{text!r} is not {self.name}", param, context)
        port = int(port_text)
        if not self._lowest_port <= port <= 65_535:
            self.fail(f"port {port} is not between {self._lowest_port} and 65535", param, context)
        return Address(host, port)


class AdminAddressType(AddressType):
    """`HOST:PORT`, or only a port, which then means 127.0.0.1."""

    name = "[HOST:]PORT"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> Address:
        text = str(value)
        return super().convert(
            f"127.0.0.1:{text}" if text.isascii() and text.isdigit() else value, param, context
        )


class AdminUrl(NamedTuple):
    address: Address
    has_tls: bool


class AdminUrlType(click.ParamType[AdminUrl]):
    """`[HOST:]PORT`, or `https://HOST:PORT` for an endpoint with TLS."""

    name = "[HOST:]PORT"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> AdminUrl:
        if isinstance(value, AdminUrl):
            return value
        text = str(value)
        scheme, separator, rest = text.partition("://")
        if separator and scheme not in ("http", "https"):
            self.fail(f"{text!r} is neither {self.name} nor https://HOST:PORT", param, context)
        address = AdminAddressType().convert(rest.rstrip("/") if separator else text, param, context)
        return AdminUrl(address, scheme == "https" and bool(separator))


def _admin_option(text: str, *, required: bool) -> Callable[[F], F]:
    return click.option(
        "--admin",
        type=AdminUrlType(),
        required=required,
        envvar="KBROKER_ADMIN",
        show_envvar=True,
        callback=_admin_endpoint,
        help=text,
    )


def _admin_endpoint(
    context: click.Context, param: click.Parameter, url: AdminUrl | None
) -> AdminEndpoint | None:
    """`--command-config` is eager, so it has been read."""
    if url is None:
        return None
    from kbroker.client.admin_endpoint import AdminEndpoint
    from kbroker.errors import OperatorError

    security = security_of(context)
    try:
        tls = security.admin_tls() if url.has_tls else None
    except OperatorError as error:
        raise click.UsageError(str(error), context) from error
    return AdminEndpoint(*url.address, tls, security.admin_login())


admin_option = options(
    _admin_option(
        "Address at which the broker serves HTTP (`kbroker start --admin`); https://HOST:PORT with TLS.",
        required=True,
    ),
    command_config_option,
)
"""`--admin`: where the broker serves HTTP, an AdminEndpoint; and `--command-config`."""
optional_admin_option = _admin_option(
    "Address at which the broker serves HTTP (`kbroker start --admin`), or https://HOST:PORT; shows more.",
    required=False,
)
"""For a command with `--command-config`."""


def _is_host(text: str) -> bool:
    """Whether a resolver accepts it: no part of a name is empty or longer than 63 characters."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return text != "" and text.isprintable() and " " not in text


class NameValue(click.ParamType[tuple[str, str]]):
    """`name=value`, as in Kafka's property files; the value may be empty and may contain `=`."""

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, content = str(value).partition("=")
        if not equals or not name.strip():
            self.fail(f"{value!r} is not NAME=VALUE", param, context)
        return name.strip(), content.strip()


class TopicPartitionsType(click.ParamType[tuple[str, "tuple[int, ...] | None"]]):
    """`TOPIC`, or `TOPIC:0,1,2` for some of its partitions: (name, numbers or None for all)."""

    name = "TOPIC[:N,...]"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, tuple[int, ...] | None]:
        if isinstance(value, tuple):
            return value
        topic, colon, numbers = str(value).partition(":")
        if not topic.strip():
            self.fail(f"{value!r} has no topic", param, context)
        parts = [part.strip() for part in numbers.split(",")] if colon else []
        for part in parts:
            if not (part.isascii() and part.isdigit()) or int(part) >= 1 << 31:
                self.fail(f"{part!r} in {value!r} is not a partition", param, context)
        return topic, tuple(map(int, parts)) if colon else None


class DateTimeType(click.ParamType[int]):
    """`YYYY-MM-DDTHH:mm:SS.sss` with Z or an offset such as +02:00, otherwise in UTC. Converted to
    milliseconds since 1970.

    The format of Kafka's Utils.getDateTime; in addition a space may replace the T, and seconds and
    milliseconds may be omitted.
    """

    name = "YYYY-MM-DDTHH:mm:SS.sss"
    _FORMAT = re.compile(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T "
        r"][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
    )

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if not self._FORMAT.fullmatch(text):
            example = "2027-01-01T08:00, with seconds and a zone where needed"
            self.fail(f"{text!r} is not {self.name}; write {example}", param, context)
        try:
            when = datetime.fromisoformat(text)
        except ValueError as error:
            self.fail(f"{text!r} is not a time: {error}", param, context)
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        since_1970_ms = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        if since_1970_ms < 0:
            self.fail(f"{text!r} is before 1970", param, context)
        return since_1970_ms


class DurationType(click.ParamType[int]):
    """`PnDTnHnMnS` of ISO 8601, of which any part may be missing. Converted to milliseconds."""

    name = "PnDTnHnMnS"
    _FORMAT = re.compile(
        r"P(?=.)(?:([0-9]{1,6})D)?(?:T(?=.)(?:([0-9]{1,8})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,11}(?:\.[0-9]{1,9})?)S)?)?",
        re.IGNORECASE,
    )

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = self._FORMAT.fullmatch(str(value))
        if found is None:
            self.fail(f"{str(value)!r} is not {self.name}", param, context)
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


class SpanType(click.ParamType[int]):
    """`500ms`, `30s`, `10m`, `1h30m`, `30d`, or 0: milliseconds."""

    name = "DURATION"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            span_ms = parse_span(str(value))
        except ValueError as error:
            self.fail(str(error), param, context)
        if span_ms >= 1 << 63:  # Requests have no place for it.
            self.fail(f"{str(value)!r} is too long", param, context)
        return span_ms


class ChoicesType(click.ParamType[tuple[str, ...]]):
    """Some of these words, separated by commas, in any case; an empty text means all of them."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self._words = words

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        by_lower_case = {word.lower(): word for word in self._words}
        found = []
        for part in str(value).split(",") if value else ():
            word = by_lower_case.get(part.strip().lower())
            if word is None:
                self.fail(f"{part.strip()!r} is not one of {', '.join(self._words)}", param, context)
            found.append(word)
        return tuple(found)


def partitions_option(text: str) -> Callable[[F], F]:
    """`--partition`, which may be repeated."""
    return click.option("--partition", "-p", "partitions", type=INDEX, multiple=True, help=text)


def states_option(words: Sequence[str]) -> Callable[[F], F]:
    """`--state [STATES]` of commands that list groups."""
    return click.option(
        "--state",
        "states",
        type=ChoicesType("STATES", words),
        is_flag=False,
        flag_value="",
        metavar="[STATES]",
        help=f"Also print the state of each group; with STATES ({', '.join(words)}; separated by "
        f"commas) list only groups in these states.",
    )


def each_once(
    context: click.Context, param: click.Parameter, value: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    """Callback for several NAME=VALUE; refuses a name that is given twice."""
    counts = Counter(name for name, _ in value)
    for name, count in counts.items():
        if count > 1:
            raise click.BadParameter(f"{name} is given {count} times", context, param)
    return dict(value)


def not_empty(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback for an option that may be omitted, but not empty."""
    if value == "":
        raise click.BadParameter("must not be empty", context, param)
    return value


def not_blank(context: click.Context, param: click.Parameter, value: str) -> str:
    """Callback for an argument that must not be blank, such as an id."""
    if not value.strip():
        raise click.BadParameter("must not be empty", context, param)
    return value


def each_not_blank(context: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Callback for several ids; removes duplicates."""
    return tuple(dict.fromkeys(not_blank(context, param, each) for each in value))


groups_options = options(
    click.argument("group", nargs=-1, callback=each_not_blank),
    click.option(
        "--group",
        "-g",
        "more_groups",
        metavar="GROUP",
        multiple=True,
        callback=each_not_blank,
        help="The same as GROUP; may be repeated.",
    ),
)
"""`GROUP...`, and `--group GROUP` as in Kafka's tools; `chosen_groups` combines them."""


def chosen_groups(group: tuple[str, ...], more_groups: tuple[str, ...], all_groups: bool) -> tuple[str, ...]:
    """The named groups, without duplicates; empty for all groups. Raises UsageError unless either
    names or --all-groups are given."""
    names = tuple(dict.fromkeys(group + more_groups))
    if bool(names) == all_groups:
        raise click.UsageError("either GROUP or --all-groups is needed, not both")
    return names


def bootstrap_option_with(*more_names: str) -> Callable[[F], F]:
    """`--bootstrap-server`, the broker's address, with these additional names, and
    `--command-config`; a Bootstrap."""
    address = click.option(
        "--bootstrap-server",
        *more_names,
        "-b",
        "bootstrap",
        type=AddressType(),
        default=DEFAULT_BOOTSTRAP,
        envvar="KBROKER_BOOTSTRAP",
        show_default=True,
        show_envvar=True,
        callback=_bootstrap,
        help="Address of the broker.",
    )
    return options(address, command_config_option)


def _bootstrap(context: click.Context, param: click.Parameter, address: Address) -> Bootstrap:
    """`--command-config` is eager, so it has been read."""
    return Bootstrap(address, security_of(context))


bootstrap_option = bootstrap_option_with()


def json_option(shape: str) -> Callable[[F], F]:
    """`--json`, for scripts. `shape`: what it prints, for the help."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON. {shape}")


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing."
)


def connect(bootstrap: Bootstrap) -> Connection:
    """Raises BrokerUnreachable."""
    from kbroker.client.rpc import Connection

    host, port = bootstrap.address
    return Connection(host, port, client_id="kbroker-cli", security=bootstrap.security)
