"""One secret, one fingerprint, under one key; nothing that could be guessed has one."""

import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from guard.errors import StateError
from guard.redact import adopt, client, fingerprint, report, samples, server
from guard.redact.marking import Marks


@pytest.fixture
def site(monkeypatch):
    """Install a site key."""
    fingerprint.store(fingerprint.site_path(), [fingerprint.new_key("site")], replace=False)
    return fingerprint.site_keys()


def identities(scanner, marks, text):
    return [marks.identity(span) for span in scanner.find(text)]


def test_the_same_key_has_one_fingerprint_in_every_carrier(scanner, carriers, key, site):
    marks = Marks(service=False)
    found = {identity.fingerprint for carry in carriers.values() for identity in identities(scanner, marks, carry(key))}
    assert found == {site[0].of(key.encode())}


@pytest.mark.parametrize("text", ["mysql -p{} db", "PASSWORD={}", "https://bob:{}@h/x"])
def test_a_password_has_none(text, scanner, rng):
    spans = scanner.find(text.format(samples.password(rng)).encode())
    assert spans
    assert not any(fingerprint.fingerprinted(span) for span in spans)


def test_a_partial_sighting_has_none(scanner, key):
    (span,) = scanner.find(f'write(3, "{key[:24]}"..., 99) = 99\n'.encode())
    assert not fingerprint.fingerprinted(span)


def test_two_nodes_with_the_installed_key_agree(scanner, key, site, tmp_path, monkeypatch):
    first = identities(scanner, Marks(service=False), key.encode())
    text = pathlib.Path(fingerprint.site_path()).read_text()
    monkeypatch.setenv("GUARD_CONFIG_DIR", str(tmp_path / "second"))
    fingerprint.store(fingerprint.site_path(), fingerprint.parse(text, "site"), replace=False)
    assert identities(scanner, Marks(service=False), key.encode()) == first


def test_root_and_a_user_through_the_service_agree(scanner, key, site, service):
    direct = Marks(service=False).identity(scanner.find(key.encode())[0])
    assert service.fingerprint("github-token", key.encode())[:2] == (direct.key_id, direct.fingerprint)


def test_after_a_rotation_exposures_carry_both(scanner, key, site):
    before = Marks(service=False).identity(scanner.find(key.encode())[0])
    fingerprint.store(fingerprint.site_path(), fingerprint.rotate(site, "site", 30, 1e12), replace=True)
    after = Marks(service=False).identity(scanner.find(key.encode())[0])
    assert after.key_id != before.key_id
    assert after.former == ((before.key_id, before.fingerprint),)


def test_an_overlap_ends(site):
    keys = fingerprint.rotate(site, "site", 1, 1000.0)
    fingerprint.store(fingerprint.site_path(), keys, replace=True)
    assert len(fingerprint.load(fingerprint.site_path(), "site", now=1000.0 + 86400 + 1)) == 1


def test_without_a_site_key_what_is_made_is_local(scanner, key):
    identity = Marks(service=False).identity(scanner.find(key.encode())[0])
    assert identity.key_id.startswith("local-")


def test_a_service_without_the_site_key_makes_up_none(key):
    idle = server.Service(None, 0)
    assert idle.status()["key_id"] is None
    assert idle.answer(1000, "fingerprint", "github-token", key.encode()) == (
        False,
        b"no site key is installed on this node; see guard key status",
    )
    assert idle.answer(1000, "redact", "auto", key.encode()) == (True, b"[REDACTED:github-token]")


@pytest.mark.parametrize("guess", [b"hunter2", b"Summer2024!", b"correct horse battery", b"0000", b"deadbeef" * 2])
def test_the_service_is_no_oracle_for_guesses(guess, site):
    assert server.Service(site, 0).answer(1000, "fingerprint", "token", guess) == (True, b"")


def test_the_service_rations_each_uid(site, key):
    busy = server.Service(site, 0)
    verdicts = [busy.answer(1000, "fingerprint", "github-token", key.encode())[0] for _ in range(3000)]
    assert not all(verdicts)
    assert busy.answer(1001, "redact", "auto", b"x")[0]


def test_a_users_service_answers_nobody_else(site):
    assert not server.Service(site, 1000).answer(1001, "redact", "auto", b"x")[0]


def test_the_service_redacts_with_spans(service, key, site):
    assert b"[REDACTED:github-token" in service.redact(f"a {key}\n".encode())
    (row,) = json.loads(service.ask("spans", "auto", f"a {key}\n".encode()))
    assert (row["start"], row["end"], row["kind"], row["incident"]) == (2, 42, "github-token", True)


def test_nonsense_ends_a_connection_and_not_the_service(service):
    import socket

    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(os.environ["GUARD_REDACT_SOCKET"])
        raw.sendall(b"\0\xff nonsense\n")
        assert raw.recv(10) == b""
    with pytest.raises(client.Refused):
        service.ask("redact", "strange", b"x")
    assert service.redact(b"x\n") == b"x\n"


def test_two_services_on_one_socket_are_refused(service):
    with pytest.raises(StateError, match="already"):
        server.serve(os.environ["GUARD_REDACT_SOCKET"])


def test_the_thin_client_needs_the_standard_library_alone(service, key):
    path = client.__file__
    done = subprocess.run(
        [sys.executable, "-I", "-S", path],
        input=f"export A={key}\n".encode(),
        capture_output=True,
        check=True,
    )
    assert key.encode() not in done.stdout


def test_the_thin_client_says_when_there_is_no_service(monkeypatch, tmp_path):
    monkeypatch.setenv("GUARD_REDACT_SOCKET", str(tmp_path / "none"))
    assert subprocess.run([sys.executable, "-I", "-S", client.__file__], input=b"x", check=False).returncode == 4


def test_a_key_file_is_its_owners_alone(site):
    assert stat.S_IMODE(os.stat(fingerprint.site_path()).st_mode) == 0o600
    os.chmod(fingerprint.site_path(), 0o640)
    with pytest.raises(StateError, match="others"):
        fingerprint.site_keys()


def test_a_second_key_is_refused(site):
    with pytest.raises(StateError, match="there already"):
        fingerprint.store(fingerprint.site_path(), [fingerprint.new_key("site")], replace=False)


def test_the_key_commands_make_install_and_rotate(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from guard.cli.key import app

    runner = CliRunner()
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert runner.invoke(app, ["status", "--config", one]).exit_code == 1
    made = runner.invoke(app, ["init", "--config", one])
    assert runner.invoke(app, ["init", "--config", one]).exit_code == 3
    installed = runner.invoke(app, ["install", one + "/fingerprint.key", "--config", two])
    assert made.stdout.strip().splitlines()[-1] == installed.stdout.strip()
    assert runner.invoke(app, ["rotate", "--config", one]).exit_code == 0
    assert runner.invoke(app, ["install", one + "/fingerprint.key", "--config", two]).exit_code == 0
    facts = json.loads(runner.invoke(app, ["status", "--json", "--config", two]).stdout)
    assert facts["overlap"][0]["key_id"] == installed.stdout.strip()
    assert runner.invoke(app, ["init", "--config", str(tmp_path / "three")]).exit_code == 0
    assert runner.invoke(app, ["install", one + "/fingerprint.key", "--config", str(tmp_path / "three")]).exit_code == 3


@pytest.fixture
def filed(tmp_path, scanner, key):
    """An exposure that was filed where no service and no site key was."""
    from guard.redact.stream import Redactor

    place = tmp_path / "notes"
    place.write_text(f"one\nexport A_TOKEN={key}\n")
    with report.Report("", record=True, baseline=False, marks=Marks(service=False)) as filing:
        Redactor(scanner, observe=filing.observer(str(place))).feed(place.read_bytes())
    path = pathlib.Path(fingerprint.state_dir()) / "exposures.jsonl"
    assert json.loads(path.read_text())["key_id"].startswith("local-")
    return place, path.read_bytes()


def test_an_adopted_exposure_has_the_sites_fingerprint_and_is_joined_with_the_local_one(filed, site, service, key):
    _, line = filed
    (row,) = map(json.loads, adopt.adopt(line, fingerprint.state_dir(), service).splitlines())
    assert (row["key_id"], row["fingerprint"]) == (site[0].key_id, site[0].of(key.encode()))
    before = json.loads(line)
    assert row["former"] == [{"key_id": before["key_id"], "fingerprint": before["fingerprint"]}]


def test_what_no_longer_stands_there_stays_unmatched(filed, site, service, rng):
    place, line = filed
    place.write_text(f"one\nexport A_TOKEN={samples.fill('ghp_<crc62>', rng)[0]}\n")
    assert adopt.adopt(line, fingerprint.state_dir(), service) == line
    place.unlink()
    assert adopt.adopt(line, fingerprint.state_dir(), service) == line


def test_a_row_that_names_another_place_adopts_nothing_of_it(filed, site, service, tmp_path, rng):
    """A forged row is no way to learn the site's fingerprint of what stands elsewhere, nor are links and fifos."""
    _, line = filed
    row = json.loads(line)
    other = tmp_path / "other"
    other.write_text(f"one\nexport A_TOKEN={samples.fill('ghp_<crc62>', rng)[0]}\n")
    (tmp_path / "link").symlink_to(other)
    os.mkfifo(tmp_path / "fifo")
    for name in ("other", "link", "fifo", ".", "missing"):
        forged = json.dumps(row | {"file": str(tmp_path / name)}).encode() + b"\n"
        assert adopt.adopt(forged, fingerprint.state_dir(), service) == forged
    for odd in (
        b'no json "local-\n',
        b'{"key_id": "local-x"}\n',
        b'["local-"]\n',
        b'{"key_id":"local-a","file":1,"offset":-1}\n',
    ):
        assert adopt.adopt(odd, fingerprint.state_dir(), service) == odd


def test_without_a_service_nothing_is_adopted(filed, monkeypatch, tmp_path):
    _, line = filed
    assert adopt.adopt(line, fingerprint.state_dir(), client.Client(str(tmp_path / "none"))) == line
