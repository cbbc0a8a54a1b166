"""kbroker.groups.assignors.spi, by the name that plugins know from version 0.1.0."""

from kbroker.groups.assignors.spi import *  # noqa: F403
