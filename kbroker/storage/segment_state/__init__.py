"""State as the segment engine keeps it: a log of changes, and a map of what it comes to, in memory
or on disk."""
