"""`guard feed run` in a fresh process, and its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import GUARD


def toml(folder: Path, *feeds: Sequence[str]) -> Path:
    """A feeds.toml with a spool in the folder; each feed is its lines."""
    lines = ["schema = 1", "[spool]", f'path = "{folder}/spool"']
    for feed in feeds:
        lines += ["[[feed]]", *feed]
    path = folder / "feeds.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@contextmanager
def feeds(*words: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run in the background; killed at the end if it has not ended."""
    process = subprocess.Popen(
        [GUARD, "feed", "run", *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def drained(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run to the end of `--drain`, which must be 0."""
    done = subprocess.run(
        [GUARD, "feed", "run", *words, "--drain"], capture_output=True, text=True, timeout=timeout,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done
