"""Honeytokens always raise; what a site allows is redacted and, until its day, no incident."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from guard.errors import StateError
from guard.redact import client, fingerprint, lists, server
from guard.redact.marking import Marks
from guard.redact.report import Report
from guard.redact.site import config_dir
from guard.redact.stream import Redactor


@pytest.fixture
def site():
    fingerprint.store(fingerprint.site_path(), [fingerprint.new_key("site")], replace=False)
    return fingerprint.site_keys()[0]


def write(name, *lines):
    path = pathlib.Path(config_dir()) / name
    path.write_text("".join(line + "\n" for line in lines))
    path.chmod(0o600)
    return path


def rows(scanner, text):
    report = Report("", record=False, baseline=False, marks=Marks(service=False))
    redactor = Redactor(scanner, observe=report.observer("-"))
    out = redactor.feed(text.encode()) + redactor.finish()
    return out, report.collected


def test_a_honeytoken_is_an_incident_whatever_it_looks_like(scanner, site, word):
    text = f"password: {word}\n"
    assert not rows(scanner, text)[1][0]["incident"]
    write("honeytokens", "# baits", f"{site.of(word.encode())} in the old backup script")
    (row,) = rows(scanner, text)[1]
    assert (row["honeytoken"], row["incident"], row["fingerprint"]) == (True, True, site.of(word.encode()))


def test_an_allowed_key_is_redacted_and_no_incident_until_its_day(scanner, site, key):
    name = site.of(key.encode())
    day = time.strftime("%Y-%m-%d", time.localtime(time.time() + 86400))
    write("allowed", f"{name} {day} a key of the test bench, without rights")
    out, (row,) = rows(scanner, f"{key}\n")
    assert key.encode() not in out
    assert (row["incident"], row["allowed"]) == (False, True)
    write("allowed", f"{name} 2020-01-01 long ago")
    assert rows(scanner, f"{key}\n")[1][0]["incident"]


def test_a_child_that_became_the_owner_knows_the_lists_too(scanner, site, word):
    """It cannot read root's files any more; here they are gone."""
    listed = write("honeytokens", site.of(word.encode()))
    report = Report("", record=False, baseline=False, marks=Marks(service=False))
    listed.unlink()
    inner = report.collector()
    Redactor(scanner, observe=inner.observer("-")).feed(f"password: {word}\n".encode())
    report.take(inner.collected)
    assert report.collected[0]["honeytoken"]


def test_a_honeytoken_cannot_be_allowed(scanner, site, key):
    name = site.of(key.encode())
    write("honeytokens", name)
    write("allowed", f"{name} 2999-01-01 please")
    assert rows(scanner, f"{key}\n")[1][0]["honeytoken"]


@pytest.mark.parametrize("line", ["x", "0" * 64 + " tomorrow reason", "0" * 64 + " 2999-01-01"])
def test_a_wrong_line_is_named(line, site):
    write("allowed", "# fine", line)
    with pytest.raises(StateError, match="allowed, line 2"):
        lists.load()


def test_a_list_that_others_can_write_is_refused(site):
    write("honeytokens", "0" * 64).chmod(0o666)
    with pytest.raises(StateError, match="written by others"):
        lists.load()


def test_the_service_files_a_honeytoken_that_somebody_hands_to_it(site, word):
    write("honeytokens", site.of(word.encode()))
    service = server.Service([site], 0)
    filed = pathlib.Path(fingerprint.state_dir()) / "exposures.jsonl"
    assert service.answer(1000, "redact", "auto", b"password: other9Xword\n")[0]
    assert not filed.exists()
    good, out = service.answer(1000, "redact", "auto", f"password: {word}\n".encode())
    assert (good, out) == (True, b"password: [REDACTED:password]\n"), "the one who asks sees nothing of it"
    row = json.loads(filed.read_text())
    assert (row["honeytoken"], row["file"], row["fingerprint"]) == (True, "<uid 1000>", site.of(word.encode()))
    assert word not in filed.read_text()


def test_the_command_lists_a_value_without_writing_it(site, word):
    command = [sys.executable, "-m", "guard", "key", "honeytoken", "--label", "the old script"]
    done = subprocess.run(command, input=word.encode(), capture_output=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    text = (pathlib.Path(config_dir()) / "honeytokens").read_text()
    assert text == f"{site.of(word.encode())} the old script\n"
    assert done.stdout.decode().strip() == site.of(word.encode())


def test_doctor_tells_of_a_missing_key_and_makes_up_none(tmp_path, site, service):
    from guard.redact import health

    config = tmp_path / "other"
    config.mkdir()
    quiet = health.examine(str(config), client.Client(str(tmp_path / "none")))
    assert (quiet.key_id, quiet.service, quiet.faults) == ("", False, ()), "nobody asked for a key here"
    (config / "site.toml").write_text("schema = 1\n")
    missing = health.examine(str(config), client.Client(str(tmp_path / "none")))
    assert "guard key install" in missing.faults[0]
    assert not (config / "fingerprint.key").exists()
    assert health.examine(str(config), service)[:3] == (site.key_id, True, ()), "as a user: what the service says"
    write("allowed", "nonsense")
    assert "allowed, line 1" in health.examine(config_dir(), service).faults[0]
