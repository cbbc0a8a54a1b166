"""`kbroker users`: log-ins, over the wire and in a data directory."""
