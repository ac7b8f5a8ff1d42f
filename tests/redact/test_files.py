# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""Files: replaced whole when closed, overwritten in place when live; nothing lost, nothing moved."""

import gzip
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import threading

import pytest

from guard.errors import GuardError
from guard.redact import files, samples
from guard.redact.marking import Marks
from guard.redact.stream import redact_bytes


@pytest.fixture
def marks():
    return Marks(service=False)


def test_a_closed_file_keeps_mode_owner_times_and_attributes(tmp_path, scanner, marks, key):
    path = tmp_path / "log"
    path.write_text(f"a {key} b\n")
    os.chmod(path, 0o640)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    try:
        os.setxattr(path, "user.note", b"kept")
        attributes = True
    except OSError:
        attributes = False
    assert files.in_place(str(path), scanner, marks, "auto", None) == 1
    info = path.stat()
    assert key not in path.read_text()
    assert stat.S_IMODE(info.st_mode) == 0o640
    assert info.st_mtime == 1_600_000_000
    assert not attributes or os.getxattr(path, "user.note") == b"kept"
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_a_file_without_a_secret_is_not_touched(tmp_path, scanner, marks):
    path = tmp_path / "log"
    path.write_text("nothing here\n")
    before = path.stat()
    assert files.in_place(str(path), scanner, marks, "auto", None) == 0
    assert path.stat().st_ino == before.st_ino


def test_a_link_stays_a_link(tmp_path, scanner, marks, key):
    (tmp_path / "real").write_text(f"{key}\n")
    (tmp_path / "link").symlink_to("real")
    files.in_place(str(tmp_path / "link"), scanner, marks, "auto", None)
    assert (tmp_path / "link").is_symlink()
    assert key not in (tmp_path / "real").read_text()


def test_hard_links_stay_one_file(tmp_path, scanner, marks, key):
    (tmp_path / "a").write_text(f"{key}\n")
    os.link(tmp_path / "a", tmp_path / "b")
    files.in_place(str(tmp_path / "a"), scanner, marks, "auto", None)
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b").stat().st_ino
    assert key not in (tmp_path / "b").read_text()


def test_a_gzip_file_is_repacked(tmp_path, scanner, marks, key):
    path = tmp_path / "log.1.gz"
    path.write_bytes(gzip.compress(f"a {key}\n".encode()))
    files.in_place(str(path), scanner, marks, "auto", None)
    assert key.encode() not in gzip.decompress(path.read_bytes())


def test_a_history_keeps_inode_mode_length_and_lines(tmp_path, scanner, marks, key, word):
    path = tmp_path / ".bash_history"
    path.write_text(f"#1700000000\nexport A_TOKEN={key}\nmysql -p{word} db\nls -la\n")
    os.chmod(path, 0o600)
    before = path.stat()
    assert files.in_place(str(path), scanner, marks, "auto", None) == 2
    after = path.stat()
    text = path.read_text()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert text.startswith("#1700000000\nexport A_TOKEN=[REDACTED:github-token:")
    assert word not in text
    assert text.endswith("\nls -la\n")
    assert files.in_place(str(path), scanner, marks, "auto", None) == 0


def test_an_overwritten_json_line_still_parses(tmp_path, scanner, marks, key, word):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"a": f"x {key}\n", "password": word}) + "\n")
    files.overwrite(str(path), scanner, marks, "auto", None)
    assert key not in json.dumps(json.loads(path.read_text()))


def test_eight_shells_lose_no_line_while_the_file_is_scrubbed(tmp_path, scanner, marks, key):
    path = tmp_path / ".bash_history"
    path.write_text("")
    path.chmod(0o600)
    before = path.stat()
    script = """
HISTSIZE=99999; HISTFILESIZE=99999; HISTFILE=%s; set -o history; shopt -s histappend
for n in $(seq 60); do history -s "echo shell %d line $n"; history -s "export T_TOKEN=%s #%d-$n"; history -a; done
"""
    shells = [subprocess.Popen(["bash", "--norc", "-c", script % (path, n, key, n)]) for n in range(8)]
    while any(shell.poll() is None for shell in shells):
        files.in_place(str(path), scanner, marks, "history", None)
    files.in_place(str(path), scanner, marks, "history", None)
    lines = path.read_text().splitlines()
    after = path.stat()
    assert len([line for line in lines if line.startswith("echo shell")]) == 8 * 60
    assert len([line for line in lines if "REDACTED" in line]) == 8 * 60
    assert key not in path.read_text()
    assert (after.st_ino, stat.S_IMODE(after.st_mode)) == (before.st_ino, 0o600)


def test_a_history_rewritten_between_scan_and_write_loses_nothing(tmp_path, scanner, marks, key, monkeypatch):
    path = tmp_path / ".bash_history"
    path.write_text(f"ls\nexport A_TOKEN={key}\nmake\n")
    other = f"cd /srv\ngit status --short --branch\nmake install\nexport B_TOKEN={key}\n"
    real = files._same
    calls = []

    def rewrite_first(handle, name, before, offset, expected):
        if not calls:
            calls.append(1)
            path.write_text(other)  # what `history -w` does: truncate and write anew, same inode
        return real(handle, name, before, offset, expected)

    monkeypatch.setattr(files, "_same", rewrite_first)
    files.in_place(str(path), scanner, marks, "auto", None)
    assert path.read_text() == redact_same_length(other, key, path.read_text())
    assert key not in path.read_text()


def redact_same_length(text, key, result):
    """Put the result's own bytes where the key stood: everything else must be the rewritten text's."""
    at = text.index(key)
    return text[:at] + result[at : at + len(key)] + text[at + len(key) :]


def test_a_live_file_on_a_network_file_system_is_left_to_its_session(tmp_path, scanner, marks, key, monkeypatch):
    path = tmp_path / ".bash_history"
    path.write_text(f"{key}\n")
    monkeypatch.setattr(files, "network", lambda _path: True)
    with pytest.raises(GuardError, match="network file system"):
        files.in_place(str(path), scanner, marks, "auto", None)
    assert path.read_text() == f"{key}\n"
    files.overwrite(str(path), scanner, marks, "auto", None)
    assert key not in path.read_text()


def test_an_output_to_a_device_leaves_the_device(key):
    before = os.stat("/dev/null")
    for extra in (["-o", "/dev/null"], ["--report", "/dev/null"], ["--report", "/dev/null", "--check"]):
        subprocess.run(
            [sys.executable, "-m", "guard.redact", "--no-service", *extra],
            input=f"{key}\n".encode(),
            stdout=subprocess.DEVNULL,
            check=False,
        )
    after = os.stat("/dev/null")
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_rdev) == (before.st_ino, before.st_rdev)


def test_an_output_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    output = files.Output(str(path))
    output.write(b"half")
    output.__exit__(RuntimeError, RuntimeError(), None)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_root_rewrites_a_users_file_as_that_user(scanner, marks, key):
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # noqa: S108 - pytest's own folders are closed to other users
        os.chmod(place, 0o755)
        path = pathlib.Path(place, "home", ".bash_history")
        path.parent.mkdir()
        path.write_text(f"{key}\n")
        for each in (path.parent, path):
            os.chown(each, 65534, 65534)
        assert files.in_place(str(path), scanner, marks, "auto", None) == 1
        assert path.stat().st_uid == 65534
        assert key not in path.read_text()


def test_a_folder_is_followed_while_an_agent_writes(tmp_path, scanner, marks, key):
    from guard.redact.follow import follow

    path = tmp_path / "session.jsonl"
    path.write_text(json.dumps({"text": f"a {key}"}) + "\n" + f'{{"text": "unfinished {key[:20]}')
    follow(str(tmp_path), scanner, marks, None, "auto", once=True)
    assert key not in path.read_text()
    with path.open("a") as file:
        file.write(f'{key[20:]}"}}\n')
    follow(str(tmp_path), scanner, marks, None, "auto", once=True)
    assert key[8:] not in path.read_text()
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


def test_memory_stays_small_on_a_long_stream(tmp_path, key):
    program = (
        "import sys;from guard.redact.stream import Redactor;from guard.redact.scan import Scanner\n"
        "r=Redactor(Scanner());line=b'word '*200+sys.argv[1].encode()+b'\\n'\n"
        "for n in range(60): r.feed(line*500)\n"
        "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", program, key], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100_000


def test_threads_may_redact_at_once(scanner, key):
    texts = [f"{n} {key} line\n".encode() * 50 for n in range(4)]
    results = {}

    def work(n):
        from guard.redact.scan import Scanner

        results[n] = redact_bytes(texts[n], Scanner())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[n] == redact_bytes(texts[n], scanner) for n in range(4))


def test_samples_are_random(rng):
    assert samples.fill("<b62:36>", rng)[0] != samples.fill("<b62:36>", rng)[0]
