"""docs/reliability.md says what the records say."""

from e2e.cluster.paths import REPOSITORY
from e2e.reliability.page import render
from e2e.reliability.records import read_records


def test_the_page_is_made_of_the_records() -> None:
    page = (REPOSITORY / "docs" / "reliability.md").read_text()
    assert page == render(read_records()), "run `make reliability`"
