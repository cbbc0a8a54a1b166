"""`kbroker share-groups`."""
