"""The state store of the segment engine: a log of changes, and the map that results from them, in
memory or on disk."""
