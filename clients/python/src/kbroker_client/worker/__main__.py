"""python -m kbroker_client.worker run module:app"""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(program="python -m kbroker_client.worker"))
