"""Shared code of the engines over key-value stores: logs in chunks, ranges of keys."""
