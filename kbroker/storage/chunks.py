"""kbroker.storage.keyvalue.chunks, by the name that plugins know from version 0.1.0."""

from kbroker.storage.keyvalue.chunks import *  # noqa: F403
from kbroker.storage.keyvalue.chunks import ChunkedSegment as Segment  # noqa: F401
