"""`kbroker users`: create, alter, delete and list the users that log in with a password."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kbroker.cli.exits import USAGE, CommandFailed
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import Bootstrap, json_option, not_blank
from kbroker.cli.stopped_state import place_options
from kbroker.cli.suggesting import SuggestingGroup

if TYPE_CHECKING:
    from kbroker.cli.users.places import Users
    from kbroker.client.user_admin import ListedCredential
    from kbroker.formats.security_values import ScramMechanism

F = TypeVar("F", bound=Callable[..., Any])
MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final = {number: name for name, number in MECHANISMS.items()}

name_argument = click.argument("name", callback=not_blank)
password_option = click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The first line of this file is the password.  [default: ask for it at the terminal]",
)
iterations_option = click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=8192,
    show_default=True,
    help="How slow guessing a password is, and each log-in: the rounds of hashing.",
)

disconnect_option = click.option(
    "--disconnect",
    is_flag=True,
    help="Also end all connections of the user at once, on every listener, and its log-ins at the "
    "admin endpoint. Clients that know a new password reconnect by themselves.",
)


def mechanisms_option(text: str) -> Callable[[F], F]:
    """`--mechanism`, which may be repeated."""
    return click.option(
        "--mechanism",
        "mechanisms",
        type=click.Choice(list(MECHANISMS), case_sensitive=False),
        multiple=True,
        help=text,
    )


@click.group(cls=SuggestingGroup)
def users() -> None:
    """Create, alter, delete and list users, who log in with a password.

    A user is a name with a password. It can log in at listeners with SASL, by SCRAM or PLAIN. What
    it may do then is a matter of `kbroker acls`. Brokers store no password, only what checks one.
    """


@users.command()
@name_argument
@mechanisms_option("How the user may log in; may be repeated, for both.  [default: SCRAM-SHA-256]")
@iterations_option
@password_option
@click.option("--storage", metavar="ENGINE", default="segment", show_default=True,
              help="With --data-dir, for a new directory: as for `kbroker start`.")  # fmt: skip
@click.option("--state-storage", metavar="ENGINE",
              help="The same for the state.  [default: that of --storage]")  # fmt: skip
@json_option("One object: user, credentials (mechanism, iterations).")
@place_options
def create(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: Path | None,
    storage: str,
    state_storage: str | None,
    as_json: bool,
    data_dir: Path | None,
    bootstrap: Bootstrap,
) -> None:
    """Create the user NAME.

    Asks for the password twice. A client that logs in by PLAIN uses the same password. The first
    user of a broker without an open listener is created before its start, with --data-dir. That
    takes the lock of the directory, so a running broker refuses it.

    \b
    Examples:
      kbroker users create alice
      kbroker users create app --password-file /run/secrets/app --mechanism SCRAM-SHA-512
      kbroker users create admin --data-dir /var/lib/kbroker
    """
    from kbroker.cli.users.places import users_at

    _check_name(name)
    password = _password(name, password_file)
    with users_at(bootstrap, data_dir, (storage, state_storage or storage)) as found:
        if _credentials(found, name):
            raise CommandFailed(f"user {name} exists: `kbroker users alter` changes the password")
        chosen = _chosen(mechanisms or ("SCRAM-SHA-256",))
        _set(found, name, chosen, password, iterations)
    _report("created", name, chosen, iterations, as_json=as_json)


@users.command()
@name_argument
@mechanisms_option(
    "Which log-ins get the password; may be repeated. One that the user does not have is "
    "added.  [default: all that the user has]"
)
@iterations_option
@password_option
@disconnect_option
@json_option(
    "One object: user, credentials (mechanism, iterations), with --disconnect also disconnected "
    "(false: it had no connection)."
)
@place_options
def alter(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: Path | None,
    disconnect: bool,
    as_json: bool,
    data_dir: Path | None,
    bootstrap: Bootstrap,
) -> None:
    """Change the password of the user NAME.

    Connections that are logged in stay so until they log in again (connections.max.reauth.ms),
    unless --disconnect ends them.

    \b
    Examples:
      kbroker users alter alice --disconnect
      kbroker users alter alice --password-file new-password
    """
    from kbroker.cli.users.places import users_at

    _check_disconnect(data_dir, disconnect=disconnect)
    password = _password(name, password_file)
    with users_at(bootstrap, data_dir) as found:
        present = _require(found, name)
        chosen = _chosen(mechanisms) or [each.mechanism for each in present]
        _set(found, name, chosen, password, iterations)
        ended = found.disconnect(name) if disconnect else None
    _report("altered", name, chosen, iterations, as_json=as_json, ended=ended)


@users.command()
@name_argument
@mechanisms_option("Only these log-ins of the user; may be repeated.  [default: all]")
@disconnect_option
@json_option(
    "One object: user, deleted (names of mechanisms), with --disconnect also disconnected (false: "
    "it had no connection)."
)
@place_options
def delete(
    name: str,
    mechanisms: tuple[str, ...],
    disconnect: bool,
    as_json: bool,
    data_dir: Path | None,
    bootstrap: Bootstrap,
) -> None:
    """Delete the user NAME.

    Its rights stay: `kbroker acls remove --user NAME` removes them. A user of the same name that is
    created later would have them. Connections that are logged in stay so until they log in again
    (connections.max.reauth.ms), unless --disconnect ends them.

    \b
    Examples:
      kbroker users delete alice --disconnect
      kbroker users delete alice --mechanism SCRAM-SHA-512
    """
    from kbroker.cli.users.places import users_at

    _check_disconnect(data_dir, disconnect=disconnect)
    with users_at(bootstrap, data_dir) as found:
        present = [each.mechanism for each in _require(found, name)]
        chosen = _chosen(mechanisms) or present
        for mechanism in chosen:
            if mechanism not in present:
                raise CommandFailed(f"user {name} has no {_NAMES[mechanism]}")
        for mechanism in chosen:
            found.delete(name, mechanism)
        ended = found.disconnect(name) if disconnect else None
    if as_json:
        print_json({"user": name, "deleted": [_NAMES[each] for each in chosen], **_as_json(ended)})
    else:
        rest = [_NAMES[each] for each in present if each not in chosen]
        left = f", which keeps {', '.join(rest)}" if rest else ""
        what = ", ".join(_NAMES[each] for each in chosen)
        done = f"deleted {what} of user {escaped(name)}{left}" if rest else f"deleted user {escaped(name)}"
        click.echo(done + _in_words(ended))


@users.command("list")
@json_option("An array of objects: user, credentials (mechanism, iterations).")
@place_options
def list_users(as_json: bool, data_dir: Path | None, bootstrap: Bootstrap) -> None:
    """List all users and how they may log in.

    \b
    Examples:
      kbroker users list
      kbroker users list --data-dir /var/lib/kbroker --json
    """
    from kbroker.cli.users.places import users_at

    with users_at(bootstrap, data_dir) as found:
        listed = found.listed()
    if as_json:
        print_json(
            [
                {
                    "user": name,
                    "credentials": [
                        {"mechanism": _NAMES[each.mechanism], "iterations": each.iterations} for each in rows
                    ],
                }
                for name, rows in groupby(listed, key=lambda each: each.user)
            ]
        )
    elif listed:
        print_table(
            ("USER", "MECHANISM", "ITERATIONS"),
            [(each.user, _NAMES[each.mechanism], each.iterations) for each in listed],
        )
    else:
        click.echo("there are no users: `kbroker users create` adds one")


def _check_name(name: str) -> None:
    """Raises UsageError for a name that a broker refuses."""
    from kbroker.formats.security_values import MAX_USER_NAME_BYTES

    size = len(name.encode())
    if size > MAX_USER_NAME_BYTES:
        raise click.UsageError(f"NAME has {size} bytes: at most {MAX_USER_NAME_BYTES} are possible")


def _check_disconnect(data_dir: Path | None, *, disconnect: bool) -> None:
    """Raises UsageError."""
    if disconnect and data_dir is not None:
        raise click.UsageError("--disconnect needs a running broker, and --data-dir a stopped one")


def _password(name: str, path: Path | None) -> str:
    """From the file, or typed twice. Raises CommandFailed."""
    from kbroker.cli.security_options import first_line
    from kbroker.client.security import check_text
    from kbroker.errors import OperatorError

    try:
        if path is not None:
            return first_line(path, "--password-file")
        if not sys.stdin.isatty():
            raise OperatorError("there is no terminal to ask for a password at: give --password-file")
        password: str = click.prompt(
            f"New password of {escaped(name)}", hide_input=True, confirmation_prompt=True, err=True
        )
        check_text(password, "the password")
    except OperatorError as error:
        raise CommandFailed(str(error), USAGE) from error
    return password


def _chosen(mechanisms: Sequence[str]) -> list[ScramMechanism]:
    from kbroker.formats.security_values import ScramMechanism

    return [ScramMechanism(MECHANISMS[each]) for each in dict.fromkeys(mechanisms)]


def _credentials(found: Users, name: str) -> list[ListedCredential]:
    return [each for each in found.listed() if each.user == name]


def _require(found: Users, name: str) -> list[ListedCredential]:
    """Raises CommandFailed if there is no such user."""
    present = _credentials(found, name)
    if not present:
        raise CommandFailed(f"there is no user {name}: `kbroker users list` shows all")
    return present


def _set(found: Users, name: str, chosen: Sequence[ScramMechanism], password: str, iterations: int) -> None:
    for mechanism in chosen:
        found.set(name, mechanism, password, iterations)


def _report(
    done: str,
    name: str,
    chosen: Sequence[ScramMechanism],
    iterations: int,
    *,
    as_json: bool,
    ended: bool | None = None,
) -> None:
    names = [_NAMES[each] for each in chosen]
    if as_json:
        print_json(
            {
                "user": name,
                "credentials": [{"mechanism": each, "iterations": iterations} for each in names],
                **_as_json(ended),
            }
        )
    else:
        what = f"{done} user {escaped(name)} ({', '.join(names)}, {iterations} iterations)"
        click.echo(what + _in_words(ended))


def _as_json(ended: bool | None) -> dict[str, bool]:
    """`ended`: whether there were connections to end; None without --disconnect."""
    return {} if ended is None else {"disconnected": ended}


def _in_words(ended: bool | None) -> str:
    if ended is None:
        return ""
    return ", and ended its connections" if ended else ", which had no connection"
