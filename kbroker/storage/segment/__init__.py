"""The segment engine: append-only files, read through mmap. Also the log of changes from which the
state store of this engine is recovered."""
