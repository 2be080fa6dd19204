"""`python -m lorafleet_operator`."""

import sys

from lorafleet_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
