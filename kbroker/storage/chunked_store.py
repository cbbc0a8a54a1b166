"""kbroker.storage.keyvalue.chunked_store, by the name that plugins know from version 0.1.0."""

from kbroker.storage.keyvalue.chunked_store import *  # noqa: F403
