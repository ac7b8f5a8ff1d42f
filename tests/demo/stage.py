"""What the session starts from: a home with things worth stealing, and processes outside the sandbox."""

import contextlib
import ctypes
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = "work/app"
# What login-node makes writable outside the project.
CACHES = (".npm/_cacache", ".npm/_logs")

FILES = {
    ".ssh/id_ed25519": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
    ".aws/credentials": "[default]\naws_access_key_id = AKIA...\n",
    ".bash_history": "mysql -psecret\n",
    ".bashrc": "# the user's own\n",
    ".config/autostart/mail.desktop": "[Desktop Entry]\n",
    "bin/backup": "#!/bin/sh\n",
    "notes.txt": "do not lose\n",
    "thesis.tex": "\\documentclass{book}\n",
    # As many keep it: the settings in a repository of their own, and a link to them.
    "dotfiles/gitconfig": "[user]\nname = Demo\nemail = demo@example.org\n[init]\ndefaultBranch = main\n",
}


def lay_out(home: Path, clone: bool) -> None:
    """Empty the home and fill it again, with a git repository and, if asked, a clone of it as project."""
    for entry in home.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for name, text in FILES.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.write_text(text, encoding="utf-8")
    for private in (".ssh", ".aws"):
        (home / private).chmod(0o700)
    (home / ".gitconfig").symlink_to("dotfiles/gitconfig")
    source = home / "source"
    shutil.copytree(HERE / "app", source)
    git(source, "init", "-q")
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "Begin")
    git(home, "clone", "-q", "--bare", "source", "origin.git")
    shutil.rmtree(source)
    # npm has been used here before, as login-node asks: it stops without its cache.
    for cache in CACHES:
        (home / cache).mkdir(parents=True)
    (home / "work").mkdir()
    if clone:
        git(home, "clone", "-q", "origin.git", PROJECT)
        project = home / PROJECT
        shutil.copy("/bin/true", project / "tool")
        (project / "tool").chmod(0o755)


def git(directory: Path, *words: str) -> None:
    """Run git in a directory."""
    subprocess.run(["git", *words], cwd=directory, check=True)


def snapshot(home: Path) -> dict[str, str]:
    """Everything in the home but the project and npm's caches: name to kind, mode and content."""
    found = {}
    granted = [home / name for name in ("work", *CACHES)]
    for top, directories, files in os.walk(home):
        if Path(top) in granted:
            directories.clear()
            continue
        for name in (*directories, *files):
            path = Path(top) / name
            content = os.readlink(path) if path.is_symlink() else ""
            if path.is_file() and not path.is_symlink():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(home))] = f"{path.lstat().st_mode:o} {content}"
    return found


# A process of the same user that holds a secret. Its last word to the kernel lets every process of the user
# trace it: where Yama is, it would refuse without guard too.
_VICTIM = """
import ctypes, signal, sys
secret = ctypes.create_string_buffer(b"secret")
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
print(ctypes.addressof(secret), flush=True)
signal.pause()
"""


@contextlib.contextmanager
def outside(home: Path) -> Iterator[dict[str, str | int]]:
    """Start what a session must not reach; gives its addresses as dangers.py takes them."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=os.environ["GUARD_STATE_DIR"]))
        # The terminal's standard input would be typed into: the victim has none.
        victim = stack.enter_context(
            subprocess.Popen([sys.executable, "-I", "-S", "-c", _VICTIM], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True)
        )  # fmt: skip
        stack.callback(victim.kill)
        assert victim.stdout
        service = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=_serve, args=(service,), daemon=True).start()
        abstract, datagram = (
            stack.enter_context(socket.socket(socket.AF_UNIX, kind)) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        )
        name = f"guard-demo-{os.getpid()}-{Path(place).name}"
        abstract.bind(f"\0{name}")
        abstract.listen(8)
        datagram.bind(f"{place}/daemon")
        libc = ctypes.CDLL(None)
        key = int.from_bytes(os.urandom(3), "big") | 1 << 24
        segment = libc.shmget(key, ctypes.c_size_t(4096), 0o3600)  # IPC_CREAT | IPC_EXCL
        stack.callback(libc.shmctl, segment, 0, None)  # IPC_RMID
        yield {
            "home": str(home),
            "segment": key,
            "victim": victim.pid,
            "secret": int(victim.stdout.readline()),
            "port": service.getsockname()[1],
            "abstract": name,
            "datagram": f"{place}/daemon",
        }


def _serve(service: socket.socket) -> None:
    while True:
        try:
            peer, _ = service.accept()
        except OSError:  # closed: the round is over
            return
        with peer, contextlib.suppress(OSError):
            peer.send(b"!")
