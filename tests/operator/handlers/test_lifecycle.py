"""What we ask of kopf."""

import itertools

import kopf

from lorafleet_operator.handlers.lifecycle import RETRY_SECONDS, configure


def test_kopf_never_gives_up_a_watch_that_the_server_refuses() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    backoffs = settings.networking.error_backoffs
    assert not isinstance(backoffs, (int, float))
    for _ in range(2):  # one watch after another takes them
        assert {*itertools.islice(iter(backoffs), 10_000)} == {RETRY_SECONDS}
