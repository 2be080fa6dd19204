"""Logs of operator and gateway are one JSON object a line."""

import json
import logging
import sys

from lorafleet_kube.logs import JsonLines


def line(message: str, *arguments: object, **given: object) -> dict[str, object]:
    record = logging.makeLogRecord({"name": "here", "levelname": "INFO", "levelno": 20, "created": 0.25, **given})
    record.msg, record.args = message, arguments
    text = JsonLines("gateway").format(record)
    assert "\n" not in text
    return dict(json.loads(text))


def test_a_line_has_time_level_process_logger_and_message() -> None:
    assert line("pool %s", "demo/smol") == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "INFO",
        "process": "gateway",
        "logger": "here",
        "message": "pool demo/smol",
    }


def test_what_is_given_extra_becomes_fields_and_forged_lines_stay_one() -> None:
    told = line("bad\n{}", request_id="r-1", pool=("demo", "smol"))
    assert (told["message"], told["request_id"], told["pool"]) == ("bad\n{}", "r-1", ["demo", "smol"])


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        told = line("failed", exc_info=sys.exc_info())
    assert "ValueError: why" in str(told["error"])
