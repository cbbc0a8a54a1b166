"""`kbroker` that serves every ShareFetch with exact record limits, for clients that cannot set
record_limit themselves.

    python -m tests.clients.exact_broker start ...
"""

from __future__ import annotations

from typing import Any

from kbroker.broker.queues.acquiring import Acquiring
from kbroker.cli import main

_init = Acquiring.__init__


def _init_exact(self: Acquiring, *arguments: Any, **more: Any) -> None:
    _init(self, *arguments, **more)
    self.exact = True


if __name__ == "__main__":
    Acquiring.__init__ = _init_exact  # type: ignore[method-assign]
    main()
