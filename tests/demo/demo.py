"""`make demo`: an agent's working day under guard, then everything it must not do, with and without guard.

As root it makes an ordinary user with a home and removes both; as an ordinary user it works in a throw-away
home. Ends with 0 only if all work was done, every dangerous act succeeded without guard and failed under it,
stopped by the control that the table names, and nothing outside the project changed.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
GUARD = (HERE.parent.parent / ".venv/bin/guard").resolve()
PYTHON = "/usr/bin/python3"


@contextlib.contextmanager
def throw_away_user() -> Iterator[pwd.struct_passwd]:
    """An ordinary user with a home; both are gone afterwards, with all that still runs. Root only."""
    name = f"guard-demo-{os.getpid()}"
    alone = ["flock", shutil.which("useradd") or "/dev/null"]  # as tests beside this one do (tests/conftest.py, `users`)
    subprocess.run([*alone, "useradd", "-m", "-s", "/bin/bash", name], check=True)
    entry = pwd.getpwnam(name)
    try:
        yield entry
    finally:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.stat().st_uid == entry.pw_uid:
                    os.kill(int(process.name), signal.SIGKILL)
        subprocess.run([*alone, "userdel", "-rf", name], check=False, stderr=subprocess.DEVNULL)
        for left in Path("/tmp").glob(f"guard-{entry.pw_uid}*"):
            if left.lstat().st_uid == entry.pw_uid:
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def throw_away_place() -> Iterator[Path]:
    """A directory that every user can reach, with a copy of this program: the clone may be private."""
    with tempfile.TemporaryDirectory(prefix="guard-demo-", dir="/var/tmp", ignore_cleanup_errors=True) as path:
        place = Path(path)
        place.chmod(0o755)
        shutil.copytree(HERE, place / "demo", ignore=shutil.ignore_patterns("__pycache__"))
        yield place


def session(place: Path, home: Path, **identity: object) -> int:
    """Run session.py as an ordinary user."""
    environment = {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "GUARD": str(GUARD),
        "GUARD_STATE_DIR": str(place / "state"),
        "GUARD_CONFIG_DIR": str(place / "config"),
    }
    command = [PYTHON, "-I", "-B", str(place / "demo/session.py")]
    return subprocess.run(command, cwd=home, env=environment, umask=0o022, check=False, **identity).returncode  # type: ignore[call-overload,no-any-return]


def main() -> int:
    """Find or make the ordinary user, and hand over to it."""
    if not os.access(GUARD, os.X_OK):
        print("demo: run it by `make demo`, which installs guard into .venv first", file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that user and home are removed
    with throw_away_place() as place:
        (place / "config").mkdir()
        (place / "state").mkdir(mode=0o700)
        if os.geteuid() != 0:
            (place / "home").mkdir()
            return session(place, place / "home")
        with throw_away_user() as user:
            os.chown(place / "state", user.pw_uid, user.pw_gid)
            return session(
                place, Path(user.pw_dir), user=user.pw_uid, group=user.pw_gid, extra_groups=[],
            )  # fmt: skip


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
