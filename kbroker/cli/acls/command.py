"""`kbroker acls`: list, add and remove entries that say who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.acls.choice import check_new, choice_of, entries, entry_options, filters, role_options, word
from kbroker.cli.exits import CommandFailed, ask, refuse
from kbroker.cli.output import Table, print_json, print_table, table_lines
from kbroker.cli.params import Bootstrap, json_option, yes_option
from kbroker.cli.stopped_state import place_options
from kbroker.cli.suggesting import SuggestingGroup

if TYPE_CHECKING:
    from kbroker.errors import KafkaError
    from kbroker.security.acls import Acl


@click.group(cls=SuggestingGroup)
def acls() -> None:
    """List, add and remove the entries that say what users may do.

    A broker with an authorizer (authorizer.class.name) refuses everything that no entry allows. An
    entry allows or denies one operation on one resource to one user. If one entry allows something
    and another one denies it, it is denied. Super users (super.users) need no entries.
    """


@acls.command("list")
@entry_options
@json_option("An array of objects: type, name, pattern, principal, host, operation, permission.")
@place_options
def list_acls(as_json: bool, data_dir: Path | None, bootstrap: Bootstrap, **options: Any) -> None:  # noqa: ANN401
    """List entries: all, or those that concern the given resources and users.

    With --topic orders that includes entries for prefixes of the name and for all topics. With
    --prefixed it lists only entries for exactly that prefix.

    \b
    Examples:
      kbroker acls list
      kbroker acls list --topic orders
      kbroker acls list --user alice --json
    """
    from kbroker.cli.acls.places import entries_at
    from kbroker.security.acls import PatternType, Permission

    choice = choice_of(**options)
    chosen = filters(choice, Permission.ANY)
    if not choice.prefixed and choice.resources:
        chosen = [each._replace(pattern=PatternType.MATCH) for each in chosen]
    with entries_at(bootstrap, data_dir) as present:
        found = present.matching(chosen)
    _print(found, as_json=as_json)
    if not found and not as_json:
        click.echo("there are no such entries")


@acls.command()
@role_options
@click.option("--deny", is_flag=True, help="Deny the operations, whatever other entries allow.")
@entry_options
@json_option("An array of the added entries: type, name, pattern, principal, host, operation, permission.")
@place_options
def add(deny: bool, as_json: bool, data_dir: Path | None, bootstrap: Bootstrap, **options: Any) -> None:  # noqa: ANN401
    """Allow, or with --deny forbid, users to do something.

    read, write, delete and alter include describe, and alter-configs includes describe-configs.
    Entries that exist are left as they are. A host that is neither an address nor a range, and a
    name that no topic can have, are refused: such an entry would match nothing.

    \b
    Examples:
      kbroker acls add --worker --user app --topic orders
      kbroker acls add --sender --user shop --topic orders
      kbroker acls add --producer --user shop --topic events
      kbroker acls add --consumer --user audit --topic orders --group audit
      kbroker acls add --user ops --cluster --operation describe --operation alter
      kbroker acls add --user bob --topic secret. --prefixed --operation all --deny
      kbroker acls add --user '*' --cluster --operation all --deny --host 10.0.0.0/8
    """
    from kbroker.cli.acls.places import entries_at
    from kbroker.security.acls import Permission

    if options["role"] and deny:
        raise click.UsageError(f"--{options['role']} and --deny exclude each other")
    wanted = entries(choice_of(**options), Permission.DENY if deny else Permission.ALLOW)
    check_new(wanted)
    with entries_at(bootstrap, data_dir) as present:
        results = present.create(wanted)
    added, refused = _done(wanted, results)
    _print(added, as_json=as_json)
    refuse(refused)


@acls.command()
@role_options
@click.option("--deny", is_flag=True, help="Only entries that deny.")
@click.option("--allow", is_flag=True, help="Only entries that allow.")
@click.option("--all", "everything", is_flag=True, help="All entries of the broker.")
@entry_options
@yes_option
@json_option("An array of the removed entries: type, name, pattern, principal, host, operation, permission.")
@place_options
def remove(
    deny: bool,
    allow: bool,
    everything: bool,
    yes: bool,
    as_json: bool,
    data_dir: Path | None,
    bootstrap: Bootstrap,
    **options: Any,  # noqa: ANN401
) -> None:
    """Remove entries: those for exactly the given resources, users, hosts and operations.

    An option that is left out means any. The command shows the entries and asks. Without an entry
    that denies, others may allow.

    \b
    Examples:
      kbroker acls remove --user alice
      kbroker acls remove --worker --user app --topic orders
      kbroker acls remove --topic orders --operation write --allow
    """
    from kbroker.cli.acls.places import entries_at
    from kbroker.security.acls import AclFilter, Permission

    if deny and allow:
        raise click.UsageError("--deny and --allow exclude each other")
    choice = choice_of(**options)
    if everything == any(choice._replace(prefixed=False)):  # --prefixed alone chooses nothing
        raise click.UsageError("either --all or a choice is needed: --user, --topic, --group, ...")
    if choice.role is not None:
        chosen = [AclFilter(*each) for each in entries(choice, Permission.ALLOW)]
    else:
        chosen = filters(choice, Permission.DENY if deny else Permission.ALLOW if allow else Permission.ANY)
    with entries_at(bootstrap, data_dir) as present:
        found = present.matching(chosen)
        if not found:
            raise CommandFailed("there are no such entries: `kbroker acls list` shows all")
        if not yes:
            _confirm(found)
        results = present.delete(found)
    removed, refused = _done(found, results)
    if as_json:
        _print(removed, as_json=True)
    else:
        click.echo(f"removed {_count(removed)}")
    refuse(refused)


def _confirm(found: Sequence[Acl]) -> None:
    for line in table_lines(*_table(found)):
        click.echo(line, err=True)
    ask(f"Remove {_count(found)}?", "nothing was removed")


def _count(found: Sequence[Any]) -> str:
    return "1 entry" if len(found) == 1 else f"{len(found)} entries"


def _done(acls: Sequence[Acl], results: Sequence[KafkaError | None]) -> tuple[list[Acl], list[str]]:
    """The entries that were changed, and a line for each that was refused."""
    pairs = list(zip(acls, results, strict=True))
    return [acl for acl, error in pairs if error is None], [
        f"{word(acl.permission)} {acl.principal} {word(acl.operation)} on {word(acl.kind)} {acl.name}: "
        f"{error.message}"
        for acl, error in pairs
        if error is not None
    ]


def _print(found: Sequence[Acl], *, as_json: bool) -> None:
    table = _table(found)
    if as_json:
        print_json(table.as_json())
    elif found:
        print_table(*table)


def _table(found: Sequence[Acl]) -> Table:
    rows = [
        (word(a.kind), a.name, word(a.pattern), a.principal, a.host, word(a.operation), word(a.permission))
        for a in found
    ]
    return Table(("TYPE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"), rows)
