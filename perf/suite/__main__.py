"""`python -m perf.suite`: the command is in perf/suite/command.py.

This module imports nothing, since every client's process imports the module that was run, and there
are up to 32 of them in a row.
"""

if __name__ == "__main__":
    from perf.suite.command import main

    main(prog_name="python -m perf.suite")
