"""What a broker is started with: the command line's answers, parsed and checked, before anything is
opened.

The only hand-over between the command line and the server. It holds values, opens nothing and knows
nothing of click; `on_ready` is the server's one word back, so that the server itself never prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from kbroker.settings.altering import BrokerConfig

Durability: TypeAlias = Literal["disk", "os"]
Address: TypeAlias = tuple[str, int]


class ReadyInfo(NamedTuple):
    """Where the broker accepts connections: the address that was bound, with the real port where
    port 0 was asked for. `admin`: the same for the admin HTTP endpoint."""

    host: str
    port: int
    admin: Address | None = None


def _ignore(_: ReadyInfo) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """`advertise` None: clients are told the address that was bound. `listen` port 0: any free
    port.

    `admin`: where to serve HTTP for looking at the broker, None: nowhere; `admin_names`: what this
    address may be called. `adopt`: start although the state has no topic beside logs that hold
    records, or a topic lacks its logs. `on_ready` is called once, from the broker's thread, when
    connections are accepted.
    """

    data_dir: Path
    storage: str
    state_storage: str
    config: BrokerConfig
    listen: Address = ("127.0.0.1", 9092)
    advertise: Address | None = None
    durability: Durability = "disk"
    admin: Address | None = None
    admin_names: tuple[str, ...] = ()
    adopt: bool = False
    on_ready: Callable[[ReadyInfo], None] = field(default=_ignore)
