"""The segment engine: append-only files, read through mmap; and the log that state stores are
recovered from."""
