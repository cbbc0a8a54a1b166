"""kbroker.storage.keyvalue.chunked_log, by the name that plugins know from version 0.1.0."""

from kbroker.storage.keyvalue.chunked_log import *  # noqa: F403
