"""What a refusal of the loop is to a client and to the gateway."""

import orjson
import pytest

from lorafleet_contracts.names import HEADER_RETRY
from lorafleet_engine.messages import RejectCode, Rejected
from lorafleet_engine.server.openai_errors import rejected


@pytest.mark.parametrize("code", ["queue_full", "draining", "version_missing", "engine_died"])
def test_what_another_replica_may_answer_says_so_and_when_to_come_back(code: RejectCode) -> None:
    answer = rejected(Rejected("r", code, "too many requests are waiting")).response()
    assert answer.status_code == 503
    assert (answer.headers[HEADER_RETRY], answer.headers["retry-after"]) == ("1", "1")
    assert orjson.loads(answer.body)["error"]["code"] == code


@pytest.mark.parametrize("code", ["invalid", "context_length_exceeded", "does_not_fit"])
def test_what_no_replica_can_answer_is_tried_nowhere_else(code: RejectCode) -> None:
    answer = rejected(Rejected("r", code, "33,000 tokens")).response()
    assert answer.status_code == 400
    assert HEADER_RETRY not in answer.headers
    assert "retry-after" not in answer.headers
