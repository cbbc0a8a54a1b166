"""The transaction coordinator (KIP-98, KIP-890): decides, and neither stores nor writes. Pure."""
