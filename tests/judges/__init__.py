"""The judges: checkers of recorded histories, one for each kind of readers or writers, and their
events.

A history is what producers, consumers and a test harness noted while a broker was killed, lost
power or purged logs. docs/durability.md has the rules. The judges must not import kbroker, so that
they can judge other brokers.
"""
