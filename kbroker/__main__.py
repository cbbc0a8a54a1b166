"""`python -m kbroker`: the same as the console script."""

from kbroker.cli import main

if __name__ == "__main__":
    main()
