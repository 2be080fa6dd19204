"""Which commit figures are of. Used by command.py and endpoint/session.py."""

import shutil
import subprocess
from pathlib import Path


def commit() -> str:
    """The checkout's commit; "unknown" where there is no checkout or no git."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    found = subprocess.run(
        [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else "unknown"
