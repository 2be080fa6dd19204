"""Who holds which page, row and byte of the device: bookkeeping over ints. Used by loop.py; torch- and thread-free."""
