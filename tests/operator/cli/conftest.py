from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_api import FakeApi, run_fake_api


@pytest.fixture
def fake_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """An empty API server that the commands of a test find by $KUBECONFIG; its context's namespace is `demo`."""
    with run_fake_api(tmp_path) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        yield fake
