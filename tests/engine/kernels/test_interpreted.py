"""The small cases of the kernels' tests, interpreted: no GPU is needed to see wrong indices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.heavy
@pytest.mark.timeout(600)  # 100 s of one processor
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here")
def test_small_cases() -> None:
    """A process of its own: triton decides once, when it is imported."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-p",
            "no:cacheprovider",
            "-m",
            "gpu",
            "-k",
            "small and not bf16",
            "--confcutdir",
            str(HERE),
            str(HERE),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
