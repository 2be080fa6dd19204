"""`python -m lorafleet_engine`: one engine process, configured by LORAFLEET_* variables (settings.py)."""

import sys

from lorafleet_engine.main import main

if __name__ == "__main__":
    sys.exit(main())
