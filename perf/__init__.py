"""Measurements of kbroker, for work in a checkout; the wheel does not have them."""
