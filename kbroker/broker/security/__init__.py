"""Users: their stored credentials, their log-ins, and the connections on which they are."""
