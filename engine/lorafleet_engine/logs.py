"""One JSON object a line on stderr. Set up once per process by main.py and child.py."""

import logging
import sys
import time

import orjson


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON; `process` says which of the three wrote it.

    What a record has as `fields` (`extra={"fields": ...}`) become fields of the line.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return orjson.dumps(entry).decode()


def set_up_logs(process: str, level: str) -> None:
    """Send this process's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
