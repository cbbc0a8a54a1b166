"""`kbroker admin`: the token of a broker's HTTP endpoint."""

from __future__ import annotations

from pathlib import Path

import click

from kbroker.cli.suggesting import SuggestingGroup


@click.group(cls=SuggestingGroup)
def admin() -> None:
    """The admin endpoint of a broker (`kbroker start --admin`)."""


@admin.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="kbroker-data",
    show_default=True,
    metavar="DIR",
    help="The broker's directory, on this machine. A broker may be running on it.",
)
@click.option("--show", is_flag=True, help="Print the token, and make one only if there is none.")
def token(data_dir: Path, show: bool) -> None:
    """Make a new token for the admin endpoint of a broker without users.

    The token is in the file admin-token of the data directory, which only its owner can read. A
    running broker reads it again with the next request. The former token and the browsers that
    logged in with it are refused from then on.

    \b
    Examples:
      kbroker admin token --data-dir /var/lib/kbroker
      echo "Authorization: Bearer $(kbroker admin token --show)" | curl -H @- localhost:9644/metrics
    """
    from kbroker.errors import OperatorError
    from kbroker.storage import admin_token
    from kbroker.storage.data_dir import DataDirectory

    with DataDirectory.inspect(data_dir):
        path = data_dir / admin_token.ADMIN_TOKEN
        try:
            if show:
                click.echo(admin_token.ensure(data_dir))
                return
            admin_token.renew(data_dir)
        except OSError as error:
            raise OperatorError(f"cannot write {path}: {error.strerror}") from error
        click.echo(f"new token in {path}")
