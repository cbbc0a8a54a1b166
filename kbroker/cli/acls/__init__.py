"""`kbroker acls`: what users may do."""
