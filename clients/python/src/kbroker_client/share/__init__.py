"""The share consumer (KIP-932)."""
