"""Who a client is and what it may do: pure decisions, without sockets, files and time."""
