"""The tenant API's document."""

import json
from pathlib import Path

from lorafleet_engine.server.openapi import build_openapi

PUBLISHED = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_published_document_is_the_models_own() -> None:
    assert json.loads(PUBLISHED.read_text()) == build_openapi(), "run `make openapi`"


def test_a_request_needs_a_model_and_what_to_answer() -> None:
    schemas = build_openapi()["components"]["schemas"]
    assert schemas["ChatRequest"]["required"] == ["messages", "model"]
    assert schemas["CompletionRequest"]["required"] == ["model", "prompt"]
