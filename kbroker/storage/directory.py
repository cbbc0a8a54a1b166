"""kbroker.storage.files.make_directory, by the name that plugins know from version 0.1.0."""

from kbroker.storage.files import make_directory

__all__ = ["make_directory"]
