"""The options that a broker is started with, parsed and checked by the command line.

The command line passes nothing else to the server. Options are plain values: they open nothing and
do not depend on click. The server never prints; it calls `on_ready` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypedDict

if TYPE_CHECKING:
    from kbroker.settings.altering import BrokerConfig
    from kbroker.settings.listeners import Listener

Durability: TypeAlias = Literal["disk", "os"]
Address: TypeAlias = tuple[str, int]


class DirectoryOptions(TypedDict):
    mode: int
    node_id: int | None


class ReadyInfo(NamedTuple):
    """The address on which the broker accepts connections, with the real port if port 0 was given.
    `admin`: the admin HTTP endpoint as a URL; `listeners`: all that were configured."""

    host: str
    port: int
    admin: str | None = None
    listeners: tuple[Listener, ...] = ()


def _ignore(_: ReadyInfo) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options of `kbroker start`.

    - `listen`: port 0 means any free port
    - `advertise`: the address for clients; None: the bound one
    - `listeners`: all listeners, instead of those two
    - `admin`: the address of the admin HTTP endpoint; None: there is none
    - `admin_names`: host names by which clients may address that endpoint
    - `adopt`: start even if logs hold records and the state has no topic, or a topic lacks its logs
    - `on_ready`: called once, in the broker's thread, when connections are accepted
    - `on_reload`: called in the broker's thread at each SIGHUP of a broker without a terminal
    """

    data_dir: Path
    storage: str
    state_storage: str
    config: BrokerConfig
    listen: Address = ("127.0.0.1", 9092)
    advertise: Address | None = None
    listeners: tuple[Listener, ...] = ()
    durability: Durability = "disk"
    admin: Address | None = None
    admin_names: tuple[str, ...] = ()
    adopt: bool = False
    on_ready: Callable[[ReadyInfo], None] = field(default=_ignore)
    on_reload: Callable[[], None] = field(default=lambda: None)

    @property
    def engines(self) -> tuple[str, str]:
        """The names of the log store and of the state store."""
        return self.storage, self.state_storage

    @property
    def of_directory(self) -> DirectoryOptions:
        """`mode`: the permissions of a new data directory; `node_id`: the broker's id, or None if
        the directory decides."""
        given = "node.id" in self.config.static
        return {
            "mode": int(self.config["kbroker.data.directory.mode"], 8),
            "node_id": self.config["node.id"] if given else None,
        }
