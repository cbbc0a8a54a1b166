"""`kbroker queues`."""
