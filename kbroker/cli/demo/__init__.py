"""`kbroker demo`."""
