"""`kbroker dead-letters`."""
