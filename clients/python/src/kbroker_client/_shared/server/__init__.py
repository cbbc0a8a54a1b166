"""Modules of kbroker that the client has too: links in a checkout, copies in a wheel."""
