"""kbroker: a broker that speaks the Kafka protocol and turns topics into durable queues through
share groups (KIP-932).

Importing the package costs 2 ms: the parts are imported where they are used. The map of the parts
is in docs/internals/architecture.md.
"""

from .quick_kio import import_kio_alone

__version__ = "0.2.0.dev0"

import_kio_alone()
