"""The SPI of an authorizer, which decides what clients may do.

`authorizer.class.name` names an entry point of the group `kbroker.authorizer`. It is a function (or
the class itself) that the broker calls once with an `AuthorizerContext`. Its result is an
`Authorizer`. The built-in one is authorizer.py; docs/security.md has an example of another.

The broker keeps decisions (rights.py) and drops all of them when ACLs or the authorizer change. So
a decision may cost more than a look-up, but it must not wait: it is made in the broker's loop. An
authorizer that raises denies the operation, and the broker logs the error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from kbroker.security.acls import AclTable, Operation, ResourceType
from kbroker.security.principals import Principal
from kbroker.settings.altering import BrokerConfig


@dataclass(frozen=True, slots=True)
class AuthorizerContext:
    """- `config`: the broker's settings, for instance `super.users`
    - `changed`: to be called, in the broker's thread, when decisions may be other ones from now on
    """

    config: BrokerConfig
    changed: Callable[[], None]


class Authorizer(ABC):
    """Decides for one broker.

    - `uses_acls`: whether it decides by the entries that DescribeAcls, CreateAcls and DeleteAcls
      manage. Without it the broker refuses these requests.
    """

    uses_acls: bool = False

    @abstractmethod
    def allows(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether the principal, at this address, may do the operation on the resource. `host`:
        an IP address in canonical spelling."""

    def allows_any(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether it may do the operation on some resource of the kind, which need not exist. It
        lets a producer without the right IDEMPOTENT_WRITE get a producer id."""
        return False

    def acls_changed(self, acls: AclTable) -> None:  # noqa: B027 - most plugins have no use for them
        """The entries at the start, and after each change of them. The table is the broker's: the
        authorizer may keep it, and must not change it."""
