"""Users, their log-ins and sessions, and ACLs: what is stored of them, and its changes."""
