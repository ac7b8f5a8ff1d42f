"""Two clients of one home with caches of their own: a scrub at one of them changes no byte of the other's."""

import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from guard.redact import files, samples
from guard.redact.marking import Marks

HERE = pathlib.Path(__file__).parent
pytest.importorskip("mfusepy", reason="the file system for tests is not installed", exc_type=ImportError)
pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="FUSE cannot be used here")


@pytest.fixture
def clients(tmp_path):
    """The server's directory and two clients' mounts of it."""
    backing = tmp_path / "server"
    backing.mkdir()
    mounts, processes = [], []
    for name in ("one", "two"):
        place = tmp_path / name
        place.mkdir()
        processes.append(subprocess.Popen([sys.executable, str(HERE / "clientfs.py"), str(backing), str(place)]))
        mounts.append(place)
    end = time.monotonic() + 20
    while not all(os.path.ismount(place) for place in mounts):
        assert time.monotonic() < end, "the test's file system did not come up"
        time.sleep(0.02)
    yield backing, *mounts
    for place in mounts:
        subprocess.run(["fusermount", "-u", "-z", str(place)], check=False)
    for process in processes:
        process.kill()
        process.wait()


def write_anew(path, lines):
    """What a shell at the other client does at its end: `history -w`."""
    given = path.parent / ".given"
    given.write_text("".join(line + "\n" for line in lines))
    script = f"HISTFILE={path}; HISTSIZE=9999; HISTFILESIZE=9999; set -o history; history -c; history -r {given}; history -w"
    subprocess.run(["bash", "--norc", "-c", script], check=True)
    given.unlink()


def write_over(path, lines):
    """What shells do that do not rename: truncate, and write anew in the same file."""
    path.write_text("".join(line + "\n" for line in lines))


def histories(rng, key):
    """Two histories of one length with the key at one place, so that only what stands around it differs."""
    first = [f"make target-{rng.randrange(100, 999)}", f"export A_TOKEN={key}", f"ls {rng.randrange(100, 999)}"]
    other = [f"cd /srv/dir-{rng.randrange(100, 999)}", f"echo {'x' * (len(key) + 10)}", f"ls {rng.randrange(100, 999)}"]
    return first, other


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rewrite", [write_anew, write_over])
def test_a_rewrite_at_the_other_client_loses_no_byte(clients, scanner, monkeypatch, rewrite, seed):
    rng = random.Random(seed)
    key = samples.fill("ghp_<crc62>", rng)[0]
    backing, one, two = clients
    name = ".bash_history"
    first, other = histories(rng, key)
    write_anew(one / name, first)
    assert files.network(str(one / name))
    real = files._same
    done = []

    def late(handle, path, before, offset, expected):
        if not done:
            done.append(1)
            rewrite(two / name, other)
        return real(handle, path, before, offset, expected)

    monkeypatch.setattr(files, "_same", late)
    files.overwrite(str(one / name), scanner, Marks(service=False), "auto", None)
    assert done, "nothing was ever compared"
    assert (backing / name).read_text().splitlines() == other, "bytes of the other client's were overwritten"


def test_the_sessions_own_key_is_still_overwritten_there(clients, scanner, key):
    backing, one, two = clients
    name = ".bash_history"
    write_anew(one / name, ["ls", f"export A_TOKEN={key}", "make"])
    files.overwrite(str(one / name), scanner, Marks(service=False), "auto", None)
    lines = (backing / name).read_text().splitlines()
    assert (lines[0], lines[2], len(lines)) == ("ls", "make", 3)
    assert key not in lines[1]
    assert (two / name).read_text() == (backing / name).read_text()
