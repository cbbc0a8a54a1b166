"""Who a client is and what it may do: principals, SASL, access control lists. Pure: no sockets."""
