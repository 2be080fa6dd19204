"""`python -m lorafleet_engine.bench`: see command.py."""

import sys

from lorafleet_engine.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
