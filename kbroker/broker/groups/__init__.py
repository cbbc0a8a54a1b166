"""Carries out what the pure group coordinators (kbroker.groups) decide."""
