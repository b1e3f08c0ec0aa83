"""What the repository holds, as git sees it: shared by the tests of its promises."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> list[Path]:
    """Files git tracks or would track, by pathspec; absolute paths, existing files only."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in sorted(set(names)) if (ROOT / name).is_file()]


def relative(path: Path) -> str:
    """Path as the repository names it."""
    return str(path.relative_to(ROOT))
