"""What a method and path ask for. Called by shell/picker.py with the request line."""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from lorafleet_gateway.core.rejections import method_not_allowed, unknown_url

MODELS_PATH = "/v1/models"
GENERATE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


class Operation(StrEnum):
    """What a request wants."""

    GENERATE = "generate"
    LIST_MODELS = "list models"
    GET_MODEL = "get model"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An operation; `model` is the id in the path, for GET_MODEL only."""

    operation: Operation
    model: str = ""


def read_url(method: str, target: str) -> Wanted:
    """Read the request line's method and target (path and query). Raises Rejection (404 or 405)."""
    path = target.partition("?")[0]
    if path in GENERATE_PATHS:
        return _require(method, "POST", path, Wanted(Operation.GENERATE))
    if path == MODELS_PATH:
        return _require(method, "GET", path, Wanted(Operation.LIST_MODELS))
    prefix, _, model = path.partition(f"{MODELS_PATH}/")
    if not prefix and model:
        return _require(method, "GET", path, Wanted(Operation.GET_MODEL, unquote(model)))
    raise unknown_url(method, path)


def _require(method: str, allowed: str, path: str, wanted: Wanted) -> Wanted:
    if method != allowed:
        raise method_not_allowed(method, path, allowed)
    return wanted
