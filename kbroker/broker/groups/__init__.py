"""Saves and carries out the decisions of the pure group coordinators (kbroker.groups)."""
