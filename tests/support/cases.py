"""How many cases a property test tries: few in `make unit`, as many as LORAFLEET_CASES says in `make test-long`."""

import os


def cases(few: int, *, one_in: int = 1) -> int:
    """`max_examples` of a law. A law whose one case is a walk of many steps takes `one_in` of the cases."""
    wanted = os.environ.get("LORAFLEET_CASES")
    return few if wanted is None else max(few, int(wanted) // one_in)
