"""Log compaction in the broker.

    cleaner.py    the task: chooses the log that needs a pass most, and reports what it does
    log_pass.py   one pass over one log, in bounded steps off the loop

kbroker/compaction/ decides which records stay; the engine replaces the contents of segments.
"""
