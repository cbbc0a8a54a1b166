"""`kbroker tls`: certificates."""
