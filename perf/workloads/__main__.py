"""`python -m perf.workloads`: the command is in command.py.

This module imports nothing, since every client process imports the main module.
"""

if __name__ == "__main__":
    from kbroker.cli import main
    from perf.workloads.command import workloads

    main(workloads, "python -m perf.workloads")
