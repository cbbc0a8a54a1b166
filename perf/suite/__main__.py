"""`python -m perf.suite`: the command is in perf/suite/command.py.

This module imports nothing, since every client process imports the main module, and a row has up to
32 of them.
"""

if __name__ == "__main__":
    from perf.suite.command import main

    main(prog_name="python -m perf.suite")
