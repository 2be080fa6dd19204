"""Writes docs/reliability.md from the records; called by `make reliability`, `make faults` and `make test-long`."""

from e2e.cluster.paths import REPOSITORY
from e2e.reliability.page import render
from e2e.reliability.records import read_records

if __name__ == "__main__":
    (REPOSITORY / "docs" / "reliability.md").write_text(render(read_records()))
