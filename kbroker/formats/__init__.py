"""The stored formats, byte for byte (docs/format.md): record batches, keys and values of the state
store."""
