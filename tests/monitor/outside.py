"""A machine outside, on a loopback address that a monitor is told to take for outside: web, packages, a repository."""

from __future__ import annotations

import functools
import http.server
import io
import json
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESS = "127.9.9.9"
NETWORK = "127.9.9.0/24"
SCRIPT = 'echo PRO""VEN > proven\n'
"""Leaves a file where it is run."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def outside(place: Path) -> Iterator[str]:
    """Serve until the block ends; gives the URL."""
    root = place / "web"
    root.mkdir()
    (root / "s").write_text(SCRIPT)
    (root / "p").write_text('open("proven", "w").write("PRO" + "VEN")\n')
    (root / "d").write_text('{"a": 1}\n')
    _repository(place, root)
    _wheel(root)
    _package(root)
    server = http.server.ThreadingHTTPServer((ADDRESS, 0), functools.partial(_Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{ADDRESS}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _repository(place: Path, root: Path) -> None:
    work = place / "work"
    work.mkdir()
    (work / "Makefile").write_text("all: main\n\t./main\n\nmain: main.c\n\tcc -o main main.c\n")
    (work / "main.c").write_text('#include <stdio.h>\nint main(void){puts("built");return 0;}\n')
    (work / "test_x.py").write_text("def test_x():\n    assert True\n")
    (work / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (work / "run.sh").chmod(0o755)

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    git("init", "-q", str(work))
    git("-C", str(work), "add", ".")
    git("-C", str(work), "commit", "-qm", "x")
    git("clone", "-q", "--bare", str(work), str(root / "r.git"))
    git("-C", str(root / "r.git"), "update-server-info")


def _wheel(root: Path) -> None:
    with zipfile.ZipFile(root / "greetings-1.0-py3-none-any.whl", "w") as wheel:
        info = "greetings-1.0.dist-info"
        wheel.writestr("greetings.py", 'def main():\n    print("hi")\n')
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\ngreet = greetings:main\n")
        wheel.writestr(f"{info}/RECORD", "")


def _package(root: Path) -> None:
    files = {
        "package.json": json.dumps({"name": "greet", "version": "1.0.0", "scripts": {"postinstall": "node i.js"}}),
        "i.js": 'console.log("installed")\n',
    }
    with tarfile.open(root / "greet-1.0.0.tgz", "w:gz") as pack:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            pack.addfile(entry, io.BytesIO(text.encode()))
