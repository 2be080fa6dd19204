"""One JSON object a line on stderr, for operator and gateway. Set up once per process by their entry points."""

import json
import logging
import sys
from datetime import UTC, datetime

PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""What every record has; the rest was given with `extra`."""


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON; what was given as `extra` (a request id, a pool) becomes fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in record.__dict__.items() if name not in PLAIN},
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def set_up_logs(process: str, level: str) -> None:
    """Send this process's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process))
    logging.basicConfig(level=level, handlers=[handler], force=True)
