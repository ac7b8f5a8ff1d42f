# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""The command line: a filter with exit codes, reports without values."""

import hashlib
import json
import subprocess
import sys

import pytest


def run(*arguments, text=b"", **more):
    return subprocess.run(
        [sys.executable, "-m", "guard.redact", "--no-service", *arguments],
        input=text,
        capture_output=True,
        check=False,
        **more,
    )


def test_the_filter_gives_the_redacted_text_and_zero(key):
    done = run(text=f"a {key} b\n".encode())
    assert done.returncode == 0
    assert done.stdout.startswith(b"a [REDACTED:github-token:")
    assert done.stdout.endswith(b"] b\n")
    assert done.stderr == b""


def test_check_tells_by_its_code_and_writes_nothing(word):
    for text, code in (("nothing\n", 0), (f"mysql -p{word} db\n", 1)):
        done = run("--check", text=text.encode())
        assert (done.returncode, done.stdout) == (code, b"")


@pytest.mark.parametrize(
    "arguments",
    [("--wrong",), ("--format", "x"), ("-o",), ("--in-place",), ("--baseline",), ("-o", "x", "a", "b")],
)
def test_a_wrong_command_line_ends_with_two(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""


def test_a_missing_file_ends_with_three():
    assert run("/nonexistent/x").returncode == 3


def test_a_line_comes_through_before_the_end(key):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "guard.redact", "--no-service"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdin.write(f"{key}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"[REDACTED:github-token:")
        process.stdin.close()


def test_the_report_has_every_field_and_no_value(tmp_path, key, word):
    path = tmp_path / "r.jsonl"
    text = f"one\nexport A_TOKEN={key}\nmysql -p{word} db\n".encode()
    assert run("--report", str(path), text=text).returncode == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["kind"], r["incident"], r["line"], r["offset"], r["length"]) for r in rows] == [
        ("github-token", True, 2, 19, 40),
        ("password", True, 3, 68, len(word)),
    ]
    assert len(rows[0]["fingerprint"]) == 64
    assert rows[0]["key_id"].startswith("local-")
    assert rows[1]["fingerprint"] is None
    assert all({"file", "advice", "confidence", "partial"} <= set(r) for r in rows)
    assert key[4:12] not in path.read_text()
    assert word[:8] not in path.read_text()


def test_a_sarif_report_is_sarif(tmp_path, key):
    path = tmp_path / "r.sarif"
    run("--report", str(path), text=f"{key}\n".encode())
    log = json.loads(path.read_text())
    assert log["version"] == "2.1.0"
    assert log["runs"][0]["results"][0]["ruleId"] == "github-token"
    assert key[4:12] not in path.read_text()


def test_the_redaction_is_the_same_with_a_report(tmp_path, key, word):
    text = f"a {key}\npassword: {word}\n".encode()
    assert run(text=text).stdout == run("--report", str(tmp_path / "r"), text=text).stdout


def test_recorded_exposures_lie_in_the_state_directory(tmp_path, key, monkeypatch):
    run("--record", "--baseline", "--state", str(tmp_path / "s"), text=f"{key}\n".encode())
    (row,) = [json.loads(line) for line in (tmp_path / "s" / "exposures.jsonl").read_text().splitlines()]
    assert (row["kind"], row["baseline"]) == ("github-token", True)
    assert (tmp_path / "s" / "exposures.jsonl").stat().st_mode & 0o777 == 0o600


def test_directories_named_before_the_command_count(tmp_path, key):
    state = tmp_path / "elsewhere"
    command = [sys.executable, "-m", "guard", "--state", str(state), "redact", "--no-service", "--record"]
    subprocess.run(command, input=f"{key}\n".encode(), capture_output=True, check=True)
    assert (state / "exposures.jsonl").exists()


def test_files_come_out_in_order(tmp_path, key):
    for name in "ab":
        (tmp_path / name).write_text(f"{name} {key}\n")
    out = run(str(tmp_path / "a"), str(tmp_path / "b")).stdout.splitlines()
    assert [line[:2] for line in out] == [b"a ", b"b "]


def test_a_reader_that_goes_away_is_no_crash(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"line\n" * 500_000)
    done = subprocess.run(
        f"{sys.executable} -m guard.redact --no-service {path} | head -1",
        shell=True,
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"line\n"
    assert done.stderr == b""


def test_the_filter_path_loads_no_second_opinion(key):
    program = "import sys, guard.redact.command as c; c.main(['--no-service', '-o', '/dev/null']); sys.stderr.write(str([m for m in sys.modules if 'detect_secrets' in m or m == 'requests']))"
    done = subprocess.run([sys.executable, "-c", program], input=key.encode(), capture_output=True, check=True)
    assert done.stderr == b"[]"


def test_what_a_detect_secrets_baseline_lists_is_no_finding(tmp_path, key, word):
    text = f"a {key}\npassword: {word}\n".encode()
    digest = hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()
    baseline = tmp_path / ".secrets.baseline"
    baseline.write_text(
        json.dumps({"version": "1.5.0", "results": {"x": [{"hashed_secret": digest, "line_number": 1}]}})
    )
    assert run("--check", text=f"a {key}\n".encode()).returncode == 1
    assert run("--check", "--known", str(baseline), text=f"a {key}\n".encode()).returncode == 0
    assert run("--check", "--known", str(baseline), text=text).returncode == 1
    assert key.encode() not in run("--known", str(baseline), text=text).stdout
    baseline.write_text("[]")
    done = run("--check", "--known", str(baseline), text=text)
    assert done.returncode == 3
    assert b"is no baseline" in done.stderr
