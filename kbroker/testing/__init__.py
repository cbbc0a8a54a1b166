"""Test support for users of kbroker and authors of plugins: contract suites for engines, persisters
and assignors, and a real broker for tests.

This file imports nothing, because pytest loads the plugin below it in every test run of an
environment that has kbroker installed.
"""
