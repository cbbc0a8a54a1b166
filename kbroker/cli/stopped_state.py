"""The state of a stopped broker, for commands that also work without one: `--data-dir DIR`.

They are for the first user, without whom nobody can log in, and for an administrator who is locked
out. The lock of the directory is taken, so a running broker refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from kbroker.cli.params import Bootstrap, bootstrap_option, connect, options

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection
    from kbroker.storage.data_dir import DataDirectory
    from kbroker.storage.spi import Change, StateStore

T = TypeVar("T")


place_options = options(
    click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Work in the data directory of a stopped broker instead, for instance when nobody can log in.",
    ),
    bootstrap_option,
)


class StoppedState:
    """The state store of a locked directory. Methods raise what StateStore raises."""

    def __init__(self, directory: DataDirectory, store: StateStore) -> None:
        self._directory = directory
        self._store = store

    def scan(self, namespace: bytes) -> list[tuple[bytes, bytes]]:
        return list(self._store.scan(namespace))

    def write(self, changes: Sequence[Change]) -> None:
        """Write users or ACLs. Durable on return; earlier versions of kbroker then refuse the
        directory."""
        from kbroker.storage.data_dir import SECURITY_FORMAT

        self._directory.raise_format(SECURITY_FORMAT)
        self._store.write(changes)
        self._store.sync()


@contextmanager
def at_place(
    bootstrap: Bootstrap,
    data_dir: Path | None,
    of_broker: Callable[[Connection], T],
    of_directory: Callable[[StoppedState], T],
    new_engines: tuple[str, str] | None = None,
) -> Iterator[T]:
    """What the broker has, or the data directory of a stopped one. `new_engines`: as in
    stopped_state. Raises OperatorError, and UsageError if the command line names both places."""
    source = click.get_current_context().get_parameter_source("bootstrap")
    if data_dir is None:
        with connect(bootstrap) as connection:
            yield of_broker(connection)
    elif source is ParameterSource.COMMANDLINE:
        raise click.UsageError("--data-dir and --bootstrap-server exclude each other")
    else:
        with stopped_state(data_dir, new_engines) as state:
            yield of_directory(state)


@contextmanager
def stopped_state(data_dir: Path, new_engines: tuple[str, str] | None = None) -> Iterator[StoppedState]:
    """Lock a data directory and open its state. `new_engines`: log and state engine of a directory
    that no broker has used yet; None: refuse such a one.

    Raises OperatorError, also for errors of the store within the block.
    """
    from kbroker import plugins
    from kbroker.errors import NoSpace, OperatorError, StoreFailed
    from kbroker.storage.data_dir import DESCRIPTION, DataDirectory

    engines = new_engines
    if engines is None or (data_dir / DESCRIPTION).exists():
        with DataDirectory.inspect(data_dir) as found:
            engines = found.description.log_engine, found.description.state_engine
    if "memory" in engines:
        raise OperatorError(f"{data_dir} is of the memory engine, which keeps no state over a restart")
    plugins.log_store_factory(engines[0])
    factory = plugins.state_store_factory(engines[1])
    with DataDirectory.open(data_dir, *engines) as directory:
        try:
            with closing(factory.open(directory.state_path, {}, 0)) as store:
                yield StoppedState(directory, store)
        except (NoSpace, StoreFailed, OSError, ValueError) as error:
            raise OperatorError(
                f"cannot use the data in {data_dir}: {' '.join(str(error).split())}"
            ) from error
