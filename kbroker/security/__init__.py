"""The identity and the rights of clients: pure decisions, without sockets, files and time."""
