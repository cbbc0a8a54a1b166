"""kbroker: a broker that speaks the Kafka protocol and turns topics into durable queues through
share groups (KIP-932).

Importing the package costs 2 ms: the parts are imported where they are used. The map of the parts
is in docs/internals/architecture.md.
"""

import sys

__version__ = "0.1.0"


def _import_kio_alone() -> None:
    """kio registers its types with hypothesis if that is installed. Importing hypothesis, and the
    pytest that it brings, takes a second of processor time in each process: most of a start."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_kio_alone()
