"""What kbroker ships for other people's tests: contract suites for engines, and a real broker to
test against.

Nothing is imported here: the pytest plugin is loaded in every test run of an environment that has
kbroker installed.
"""
