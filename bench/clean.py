"""How often the redactor takes something out of clean text: the sources, manuals and logs that stand on this machine.

    python bench/clean.py [--size MB]

Each corpus is read up to that size; what is redacted there is counted, and what would be an incident.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from guard.redact.scan import Scanner
from guard.redact.stream import READ, Redactor, Sighting

FOLDERS = (
    ("Python's library", sysconfig.get_paths()["stdlib"], (".py",)),
    ("Perl's library", "/usr/share/perl", (".pm", ".pl")),
    ("C headers", "/usr/include", (".h",)),
    ("man pages", "/usr/share/man", (".gz",)),
    ("changelogs, READMEs", "/usr/share/doc", ("changelog.gz", "changelog.Debian.gz", "README", "README.md")),
)


def read(folder: str, suffixes: tuple[str, ...], limit: int) -> bytes:
    """Return the files of a folder, unpacked, up to a size in bytes."""
    out: list[bytes] = []
    size = 0
    for place, _folders, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(place, name)
            if size < limit and name.endswith(suffixes) and os.path.isfile(path):
                with gzip.open(path) if name.endswith(".gz") else open(path, "rb") as file:
                    out.append(file.read())
                size += len(out[-1])
    return b"".join(out)[:limit]


def output(*command: str) -> bytes:
    """Return what a command prints."""
    return subprocess.run(command, capture_output=True, check=False).stdout


def traced(limit: int) -> bytes:
    """Return real strace output; nothing where strace may not run."""
    if shutil.which("strace") is None:
        return b""
    with tempfile.NamedTemporaryFile() as file:
        script = "ls -laR /usr/lib/python3; find /etc -name '*.conf' -exec cat {} +; perl -e 'use CPAN'; tar c /etc/ssl"
        output("strace", "-f", "-ttt", "-T", "-s", "256", "-o", file.name, "sh", "-c", f"({script}) >/dev/null 2>&1")
        return file.read(limit)


def corpora(limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield each corpus with its name."""
    for name, folder, suffixes in FOLDERS:
        text = read(folder, suffixes, limit)
        yield name, text
        if name.startswith("Python"):
            lines = text.decode("utf-8", "replace").split("\n")
            parts = ("\n".join(lines[start : start + 200]) for start in range(0, len(lines), 200))
            rows = "\n".join(json.dumps({"type": "tool_result", "content": part}) for part in parts)
            yield "the same in JSON Lines", rows.encode()[:limit]
    yield "this repository's log", output("git", "-C", os.path.dirname(__file__), "log", "-p")
    yield "strace", traced(limit)


def main() -> None:
    """Print a row a corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=20, help="MB of each corpus at most")
    options = parser.parse_args()
    scanner = Scanner()
    for name, text in corpora(options.size * 1_000_000):
        seen: list[Sighting] = []
        redactor = Redactor(scanner, observe=seen.append)
        for start in range(0, len(text), READ):
            redactor.feed(text[start : start + READ])
        redactor.finish()
        size = max(len(text) / 1e6, 1e-3)
        incidents = sum(each.span.incident for each in seen)
        rates = f"{len(seen) / size:6.2f} redactions/MB {incidents / size:6.2f} incidents/MB"
        print(f"{name:24} {size:7.1f} MB {rates}", flush=True)


if __name__ == "__main__":
    main()
