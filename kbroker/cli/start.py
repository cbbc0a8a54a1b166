"""`kbroker start`: parses the options, checks all that can be checked without opening files, then
runs the broker."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kbroker.cli.exits import USAGE, CommandFailed, give_up_stdout, refuse, say
from kbroker.cli.params import (
    DEFAULT_BOOTSTRAP,
    Address,
    AddressType,
    AdminAddressType,
    NameValue,
    each_once,
    not_empty,
)
from kbroker.cli.start_sources import (
    SettingsOption,
    StartOption,
    check_environment,
    origin,
    read_file,
    read_log_level,
    said_by,
    settings,
    split_names,
    start_names,
)

if TYPE_CHECKING:
    from kbroker.broker.options import Durability, ReadyInfo, StartOptions
    from kbroker.settings.altering import BrokerConfig
    from kbroker.settings.listeners import Listener

logger = logging.getLogger(__name__)

_OPEN = (
    "warning: listening on {} without authentication: every client that reaches this address can read "
    "and write; see `kbroker docs security`"
)
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
start_option = partial(click.option, cls=StartOption)


@click.command()
@start_option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="kbroker-data",
    show_default=True,
    callback=not_empty,
    help="Directory of all data; created if it does not exist.",
)
@start_option(
    "--storage",
    default="segment",
    show_default=True,
    metavar="ENGINE",
    help="Engine for topic data: segment, lmdb, rocksdb, memory (stores nothing on disk), or one "
    "that a plugin adds.",
)
@start_option(
    "--state-storage",
    metavar="ENGINE",
    callback=not_empty,
    help="Engine for topics, configs and share-group state.  [default: that of --storage]",
)
@start_option(
    "--listen",
    type=AddressType(0),
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    help="Address to listen on; port 0: any free port. Every client that reaches it may do "
    "everything, so any but a local one is logged with a warning. The setting listeners "
    "replaces this option.",
)
@start_option(
    "--advertise",
    type=AddressType(),
    help="The address that clients connect to; required if --listen is 0.0.0.0 or [::].  [default: "
    "that of --listen]",
)
@start_option(
    "--admin",
    type=AdminAddressType(0),
    help="Serve metrics and records in flight by HTTP at this address. Only a port: on 127.0.0.1. "
    "Port 0: any free port, which the ready line names. kbroker.admin.protocol=SSL makes it "
    "HTTPS.  [default: off]",
)
@start_option(
    "--admin-host",
    "admin_hosts",
    metavar="NAME",
    multiple=True,
    callback=split_names,
    help="A further name that requests to --admin may have in their Host header, beside the "
    "loopback's names and the address itself; may be repeated, or several separated by commas.",
)
@start_option(
    "--durability",
    type=click.Choice(["disk", "os"]),
    default="disk",
    show_default=True,
    help="disk: confirmed writes survive a power cut; os: they survive a crash of the broker, and a"
    " sync follows within 100 ms.",
)
@click.option(
    "--config",
    "configs",
    cls=SettingsOption,
    type=NameValue(),
    multiple=True,
    callback=each_once,
    help="A broker config; may be repeated for other configs; overrides the file. An unknown name "
    "is refused.",
)
@start_option(
    "--config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,
    callback=read_file,
    help="File of name=value lines, as in Kafka: settings, and options of this command without their dashes.",
)
@start_option(
    "--adopt", is_flag=True, help="Start although there are logs with records and the state has no topic."
)
@click.option(
    "--detach",
    is_flag=True,
    help="Run in the background: return when the broker is ready, and log to a file beside --data-dir.",
)
@start_option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="Least severe level logged on stderr.",
)
@start_option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="Format of the log lines.",
)
@click.pass_context
def start(
    context: click.Context,
    data_dir: str,
    storage: str,
    state_storage: str | None,
    listen: Address,
    advertise: Address | None,
    admin: Address | None,
    admin_hosts: tuple[str, ...],
    durability: Durability,
    configs: dict[str, str],
    config_file: Path | None,
    adopt: bool,
    detach: bool,
    log_level: str,
    log_format: str,
) -> int:
    """Run a broker until SIGTERM or SIGINT.

    Then it answers the requests that have arrived, closes and syncs. It does not wait for a client
    that reads no response for a second. A second signal ends it at once. SIGHUP stops it too if it
    has a terminal. Otherwise it reads the certificates again, and the log level of the file unless
    --log-level or the environment sets it. SIGQUIT prints to stderr what every thread is doing; the
    broker keeps running.

    Prints one line on stdout when it accepts connections; everything else is logged on stderr.
    Every option but --detach can also be given by an environment variable, or by a line of the file
    of --config-file: data-dir=/var/lib/kbroker. The command line overrides the environment, which
    overrides the file. `kbroker docs settings` lists the settings.

    It refuses a data directory of another engine, of a newer format, or in use by another broker.
    """
    tell_ready = _begin(context, Path(data_dir) if detach else None)
    from kbroker.broker.options import StartOptions
    from kbroker.cli.logging_setup import set_up_logging

    config = _config(context, configs, storage, state_storage)
    if not (listeners := _listeners(context, config)):
        _check_addresses(context, listen, advertise)
    options = StartOptions(
        data_dir=Path(data_dir),
        storage=storage,
        state_storage=state_storage or storage,
        config=config,
        listen=listen,
        advertise=advertise,
        listeners=listeners,
        durability=durability,
        admin=admin,
        admin_names=admin_hosts,
        adopt=adopt,
        on_ready=lambda ready: _announce(ready_line(options, ready), tell_ready),
        on_reload=lambda: read_log_level(context, config_file),
    )
    set_up_logging(log_level, log_format)
    if sources := said_by(context):
        logger.info("options come from %s", sources)
    from kbroker.server.run import run

    return run(options)


def _begin(context: click.Context, detached_dir: Path | None) -> Callable[[str], None] | None:
    """`detached_dir`: the data directory of a broker that runs in the background; the result takes
    its ready line."""
    check_environment(context)
    tell_ready = None
    if detached_dir is not None:
        from kbroker.cli.detaching import detach, log_file_of

        tell_ready = detach(log_file_of(detached_dir))
    from kbroker.broker.commits.process import collect_seldom

    collect_seldom()  # before the broker's modules are imported
    return tell_ready


def _config(
    context: click.Context, configs: dict[str, str], storage: str, state_storage: str | None
) -> BrokerConfig:
    """The broker's settings, validated. The engines and plugins that they name are installed.
    Raises CommandFailed."""
    from kbroker import plugins
    from kbroker.errors import OperatorError
    from kbroker.settings.altering import BrokerConfig, GivenSetting, SettingsRefused

    given = [GivenSetting(*each) for each in settings(context, configs)]
    places = {setting.name: setting.where for setting in given}
    state = "state_storage" if state_storage else "storage"
    try:
        config = BrokerConfig.of(given, start_names(context))
        with _naming(origin(context, "storage")):
            plugins.load(plugins.LOG_STORE, storage)
        with _naming(origin(context, state)):
            plugins.load(plugins.STATE_STORE, state_storage or storage)
        with _naming(places.get("kbroker.persister", "--config")):
            plugins.load(plugins.PERSISTER, config["kbroker.persister"])
        with _naming(places.get("group.consumer.assignors", "--config")):
            plugins.consumer_assignors(config["group.consumer.assignors"])
    except SettingsRefused as error:
        refuse(error.lines, USAGE)
        raise
    except OperatorError as error:
        raise CommandFailed(str(error), USAGE) from error
    return config


def _listeners(context: click.Context, config: BrokerConfig) -> tuple[Listener, ...]:
    """The listeners of the settings; none where --listen gives the only one.

    Raises CommandFailed."""
    from kbroker.errors import OperatorError
    from kbroker.settings.listeners import configured_listeners

    try:
        found = configured_listeners(config)
    except OperatorError as error:
        raise CommandFailed(str(error), USAGE) from error
    if found:
        for option in ("listen", "advertise"):
            if context.get_parameter_source(option) is not ParameterSource.DEFAULT:
                why = "the setting listeners gives the addresses; leave out one of the two"
                raise click.UsageError(f"{origin(context, option)}: {why}")
        _warn_of_open(config, found)
    return found


def _warn_of_open(config: BrokerConfig, listeners: tuple[Listener, ...]) -> None:
    for listener in listeners:
        has_certificates = listener.protocol.has_tls and (
            config.of_listener(listener.name, "ssl.client.auth").lower() == "required"
        )
        if not (listener.protocol.has_sasl or has_certificates or _is_loopback(listener.address[0])):
            say(_OPEN.format(listener))


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Prefixes errors raised within with the place of the wrong value."""
    from kbroker.errors import OperatorError

    try:
        yield
    except OperatorError as error:
        raise OperatorError(f"{where}: {error}") from error


def ready_line(options: StartOptions, ready: ReadyInfo) -> str:
    """The one line on stdout. Scripts wait for its first three words and may read the address from
    the fourth."""
    address = Address(ready.host, ready.port)
    more = "".join(f", {each}" for each in ready.listeners[1:])
    admin = f", admin {ready.admin}" if ready.admin else ""
    return (
        f"kbroker ready on {address} (log {options.storage}, state {options.state_storage}, "
        f"durability {options.durability}, data {options.data_dir}{admin}{more})"
    )


def _announce(line: str, tell_ready: Callable[[str], None] | None = None) -> None:
    """Keeps the broker running if the line cannot be written: stdout may be on a full disk, or a
    script may have closed it."""
    try:
        click.echo(line)
        if tell_ready is not None:
            tell_ready(line)
    except OSError as error:
        give_up_stdout()
        say(f"warning: the ready line cannot be printed: {error.strerror}")


def _check_addresses(context: click.Context, listen: Address, advertise: Address | None) -> None:
    if _is_wildcard(listen.host) and advertise is None:
        what = f"{listen} is every address of this machine: name the one for clients with --advertise"
        raise click.UsageError(f"{origin(context, 'listen')}: {what}")
    if not _is_loopback(listen.host):
        say(_OPEN.format(listen))


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::", "*")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
