"""Settings of the broker, of topics and of groups: their tables, their values, and how clients
alter them."""
