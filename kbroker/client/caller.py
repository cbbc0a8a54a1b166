"""What a function of administration needs of a connection.

The blocking Connection of rpc.py is one, and so is the client for event loops (kbroker_client),
which runs these functions in a thread.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

Entity: TypeAlias = Any
"""An instance or a class of kio's schemas. There is one class per message and version, so no
narrower type fits."""
FieldValue: TypeAlias = Any


class Caller(Protocol):
    def call(self, api: str, version: int | None = None, /, **values: FieldValue) -> Entity:
        """Send a request and wait for its response entity. `version` None: the highest that both
        sides know. The caller checks the error codes inside the response."""
