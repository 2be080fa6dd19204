"""The operator's own figures."""

from lorafleet_operator.shell.metrics import Metrics


def test_the_difference_shown_is_that_of_the_pool_where_it_is_most() -> None:
    metrics = Metrics()
    name = b"lorafleet_operator_budget_difference_percent"
    assert name + b" 0.0\n" in metrics.render()
    metrics.note_difference("a", 3)
    metrics.note_difference("b", 1)
    assert name + b" 3.0\n" in metrics.render()
    metrics.note_difference("a", None)
    assert name + b" 1.0\n" in metrics.render()
