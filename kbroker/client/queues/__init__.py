"""Work queues over the wire: what `kbroker queues` plans, reports and deletes."""
