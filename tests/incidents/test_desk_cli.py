"""`guard incidents`, `guard report`, `guard privacy` through the command line, each command a process of its own."""

from __future__ import annotations

import json
import os
import random
import re
import string
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from guard.events.spool import Reader, Spool
from guard.fleet.lines import Found
from guard.fleet.store import Store
from guard.incidents import choose
from guard.incidents.office import opened
from tests.conftest import GUARD, ROOT_HERE, Account
from tests.incidents.made import event, exposure, fingerprint

NOW = int(time.time() * 1_000_000)
HOUR = 3_600_000_000
DAY = 24 * HOUR


class Office:
    """A site's own place: state, configuration, and the commands run there."""

    def __init__(self, folder: Path) -> None:
        self.state, self.config = folder / "state", folder / "config"
        self.state.mkdir(mode=0o700)
        self.config.mkdir(mode=0o755)

    def spool(self, *events: Mapping[str, object]) -> None:
        with Spool(str(self.state / "spool")) as spool:
            spool.append([json.dumps(e).encode() for e in events])

    def guard(self, *words: str, input: str = "", code: int = 0) -> str:
        done = self.run(*words, input=input)
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout

    def run(self, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GUARD_STATE_DIR": str(self.state), "GUARD_CONFIG_DIR": str(self.config)}
        return subprocess.run([GUARD, *words], input=input, capture_output=True, text=True, env=environment, check=False, timeout=90)


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    tmp_path.chmod(0o755)
    yield Office(tmp_path)


def test_a_monday_morning_of_forty_keys_takes_fewer_than_ten_commands(office: Office) -> None:
    kinds = ("github-token", "aws-access-key", "openai-key", "password")
    events = [
        exposure(f"k{n}", NOW - DAY + n * HOUR // 60, kind=kinds[n % 4], audience="node" if n % 3 else "pushed",
                 at_tree={"user": f"u{n % 9}", "uid": 2000 + n % 9}, path=f"/home/u{n % 9}/x", source="file", line=n)
        for n in range(40)
    ]  # fmt: skip
    office.spool(*events)
    (office.config / "incidents.toml").write_text('schema = 1\ndomain = "x.example"\n')
    listed = office.guard("incidents", "list").splitlines()  # 1: what is there
    assert len(listed) == 41
    assert all(len(line) <= 80 for line in listed)
    worst = listed[1].split()[0]
    assert "pushed" in office.guard("incidents", "show", worst)  # 2: the worst
    office.guard("incidents", "resolve", "--false-positive", "--kind", "password", "--reason", "course material", "--yes")  # 3
    office.guard("incidents", "accept", "--user", "u1", "--until", "90d", "--reason", "test account", "--ticket", "SEC-1")  # 4
    office.guard("incidents", "assign", "carol", "--kind", "aws-access-key")  # 5
    refused = office.run("incidents", "notify", "--by-hand", "--user", "u2", "--user", "u3", "--user", "u4", "--user", "u5")  # 6
    assert refused.returncode == 2
    assert "would change" in refused.stderr
    assert len(re.findall(r"\n  [0-9a-f]{12} ", refused.stderr)) > 10
    office.guard("incidents", "notify", "--by-hand", "--user", "u2", "--user", "u3", "--user", "u4", "--user", "u5", "--yes")  # 7
    rest = office.guard("incidents", "list", "--state-is", "open")  # 8: what is left
    office.guard("incidents", "notify", "--by-hand", "--yes", "-", input=rest)  # 9: from standard input
    assert office.guard("incidents", "list", "--state-is", "open") == ""


def test_of_keys_one_hour_from_the_end_overdue_shows_one_and_its_alert_is_in_the_spool(office: Office) -> None:
    from guard.events.spool import Reader, rows_of
    from guard.incidents import office as opening

    with Spool(str(office.state / "spool"), clock=lambda: (NOW - 7 * DAY - HOUR) / 1e6) as spool:
        spool.append([json.dumps(exposure("late", NOW - 7 * DAY - HOUR)).encode()])
    with Spool(str(office.state / "spool"), clock=lambda: (NOW - 7 * DAY + HOUR) / 1e6) as spool:
        spool.append([json.dumps(exposure("soon", NOW - 7 * DAY + HOUR)).encode()])
    listed = office.guard("incidents", "list", "--overdue").splitlines()
    assert [line.split()[0] for line in listed[1:]] == [fingerprint("late")[:12]]
    with opening.opened(str(office.state), str(office.config)) as desk:
        desk.alert_overdue()
    with Reader(str(office.state / "spool")) as reader:
        alerts = [json.loads(r.line) for r in rows_of(reader) if b"incident-overdue" in r.line]
    assert [(a["detail"]["incident"], a["severity"]) for a in alerts] == [(fingerprint("late")[:12], "high")]


def test_a_decision_outlives_the_command_and_is_an_event(office: Office) -> None:
    from guard.events.spool import Reader, rows_of

    office.spool(exposure("k", NOW - HOUR))
    id_ = fingerprint("k")[:12]
    assert office.guard("incidents", "resolve", id_[:6], "--reason", "by phone", "--ticket", "T-9") == f"{id_} rotated\n"
    assert office.run("incidents", "resolve", "--false-positive", id_).returncode == 2
    whole = json.loads(office.guard("incidents", "show", id_, "--json"))
    assert [(a["verb"], a["reason"], a["ticket"]) for a in whole["actions"]] == [("resolve", "by phone", "T-9")]
    with Reader(str(office.state / "spool")) as reader:
        told = [json.loads(row.line) for row in rows_of(reader) if b"incident-resolve" in row.line]
    assert [event_["id"] for event_ in told] == [whole["actions"][0]["id"]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("show", "zzzz"), "there is no incident"), (("show", "abc"), "at least 4"), (("resolve",), "name incidents, or a filter"),
        (("accept", "ID", "--reason", "x"), "needs --until"), (("accept", "ID", "--until", "soon", "--reason", "x"), "is no time"),
        (("list", "--state-is", "opn"), "known are open"), (("list", "--since", "yesterday"), "is no time"),
        (("resolve", "ID", "--at", "2999-01-01"), "in the future"), (("reopen", "ID", "--reason", "x"), "it is open already"),
        (("promote", "ID"), "not in the backlog"), (("assign", "", "ID"), "no name"), (("export", "nothing"), "there is no incident"),
        (("accept", "ID", "--until", "99999d", "--reason", "x"), "centuries away"), (("resolve", "ID", "--at", "99999d"), "before 1970"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_clear_error(office: Office, words: tuple[str, ...], says: str) -> None:
    office.spool(exposure("k", NOW - HOUR))
    done = office.run("incidents", *(fingerprint("k")[:12] if word == "ID" else word for word in words))
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("due_days = 3", "schema is missing"), ("schema = 1\ndue_dayz = 3", "incidents.toml:2:1: .*did you mean due_days"),
        ("schema = 1\ndue_days = -1", ":2:"), ('schema = 1\nmail = true', "needs `sender`"), ("schema = 1\nclock_starts = 'x'", "is a date"),
        ("schema = 1\n[aup]\nbind = 3", ":3:"), ("schema = 1\nmail = ", ":2:"),
    ],
)  # fmt: skip
def test_wrong_settings_show_the_place(office: Office, text: str, says: str) -> None:
    (office.config / "incidents.toml").write_text(text)
    done = office.run("incidents", "list")
    assert done.returncode == 3
    assert re.search(says, done.stderr), done.stderr


def test_places_are_looked_at_as_the_owner_and_the_scrub_works(office: Office, account: Account) -> None:

    from guard.redact import samples
    from guard.redact.rules.formats import FORMATS

    office.guard("key", "init") if ROOT_HERE else None
    key = samples.fill(next(f for f in FORMATS if f.kind == "github-token").samples[0], random.Random(8))[0]
    place = account.write(account.directory("p") / ".bash_history", f"ls\nexport T={key}\n", 0o600)
    record = office.run("redact", "--check", "--report", str(office.state / "r.jsonl"), str(place))
    assert record.returncode == 1
    row = json.loads((office.state / "r.jsonl").read_text())
    tree = {"uid": account.uid, "user": account.name}
    office.spool(event("exposure", "secret", NOW - HOUR, host=os.uname().nodename, tree=tree, detail={**row, "source": "history"}))
    id_ = row["fingerprint"][:12]
    done = office.run("incidents", "places", id_, "--check")
    assert done.returncode == 1
    assert "still holds it (line 2)" in done.stdout
    scrub = re.search(r"as \S+: (guard .*)", done.stdout)
    assert scrub is not None
    cleaned = account.command(["sh", "-c", scrub[1].replace("guard", GUARD, 1)])
    assert cleaned.returncode == 0, cleaned.stderr
    assert "clean" in office.guard("incidents", "places", id_, "--check")
    place.unlink()
    assert "the file is no more" in office.guard("incidents", "places", id_, "--check")


def test_match_reads_from_a_pipe_and_answers_with_the_incident_or_none(office: Office) -> None:

    from guard.redact import samples
    from guard.redact.rules.formats import FORMATS

    rng = random.Random(9)
    template = next(f for f in FORMATS if f.kind == "github-token").samples[0]
    key, other = (samples.fill(template, rng)[0] for _ in range(2))
    source = office.state / "x.txt"
    source.write_text(f"{key}\n")
    assert office.run("redact", "--check", "--report", str(office.state / "r.jsonl"), str(source)).returncode == 1
    office.spool(event("exposure", "secret", NOW - HOUR, detail=json.loads((office.state / "r.jsonl").read_text())))
    office.guard("incidents", "list")  # begins the ledger, which an ordinary user has none of by itself
    found = office.run("incidents", "match", input=key)
    assert (found.returncode, found.stdout.strip()) == (1, json.loads((office.state / "r.jsonl").read_text())["fingerprint"][:12])
    assert office.guard("incidents", "match", input=f"  {other}\n").strip() == "none"
    assert office.run("incidents", "match", input="hello").returncode == 2
    stored = b"".join(p.read_bytes() for p in office.state.rglob("*") if p.is_file() and p != source)
    assert key.encode() not in stored
    assert other.encode() not in stored


def test_match_says_where_no_service_keeps_incidents(account: Account) -> None:
    done = account.command([GUARD, "incidents", "match"], input="".join(random.Random(1).choices(string.ascii_letters, k=40)))
    assert (done.returncode, done.stdout) == (3, "")
    assert "no service keeps incidents here; ask on the site's service node" in done.stderr


def test_a_report_has_every_form_and_a_device_stays_one(office: Office, tmp_path: Path) -> None:
    office.spool(exposure("k", NOW - HOUR), event("bind", "bind", NOW - HOUR, severity="medium"))
    files = {form: tmp_path / f"out.{form}" for form in ("html", "md", "csv")}
    office.guard("report", *(word for form, path in files.items() for word in (f"--{form}", str(path))))
    assert all(path.read_text() for path in files.values())
    whole = json.loads(office.guard("report", "--json"))
    assert whole["keys"]["new"] == 1
    assert "# Agents on our machines" in office.guard("report")
    assert f"Incident {fingerprint('k')[:12]}" in office.guard("report", "--case", fingerprint("k")[:12])
    office.guard("report", "--html", "/dev/null")
    assert Path("/dev/null").is_char_device()
    assert office.run("report", "--since", "1d", "--until", "9d").returncode == 2


@pytest.mark.skipif(not ROOT_HERE, reason="needs root: another's records")
def test_after_export_and_purge_the_name_is_nowhere(office: Office, tmp_path: Path) -> None:
    import zstandard

    user = "zebulon"
    tree = {"user": user, "uid": 4711, "session": "s"}
    rows = [
        exposure("k", NOW - HOUR, source="file", path=f"/home/{user}/.env", at_tree=tree),
        event("bind", "bind", NOW - HOUR, tree=tree, message=f"{user} bound"), exposure("other", NOW - HOUR),
    ]  # fmt: skip
    office.spool(*rows)
    with Store(str(office.state / "site.db")) as store:
        elsewhere = exposure("far", NOW - HOUR, at_tree=tree, at_host="node7", path=f"/home/{user}/x")
        store.receive([Found(elsewhere, json.dumps(elsewhere).encode(), "tls:node7")], NOW / 1e6)
    # What an account holder says by the service or the page is a decision of theirs, in no tree.
    mapped = office.config / "accounts.csv"
    mapped.write_text(f"user,mail,pi,pi_mail,group\n{user},z.b@x.example,,,\n")
    (office.config / "incidents.toml").write_text(f'schema = 1\naccounts = "{mapped}"\n')
    office.guard("incidents", "list")
    with opened(str(office.state), str(office.config), who=user) as desk:
        desk.decide(choose.by_ids(desk.ledger, desk.settings, [fingerprint("far")[:12]]), "claim", "mine")
        desk.ledger.mark_sent([(desk.ledger.secrets()[0], "notice", "z.b@x.example", 0)], NOW)
    office.guard("incidents", "assign", user, fingerprint("other")[:12])
    archive = tmp_path / "archive"
    archive.mkdir()
    packer = zstandard.ZstdCompressor()
    frames = b"".join(packer.compress(json.dumps(row).encode() + b"\n") for row in rows)
    (archive / "2026-11-30.jsonl.zst").write_bytes(frames)
    office.guard("incidents", "resolve", fingerprint("k")[:12], "--reason", "done")
    exported = office.guard("privacy", "export", "--user", user, "--archive", str(archive))
    assert sum(user in line for line in exported.splitlines()) >= 5
    assert office.run("privacy", "purge", "--user", user).returncode == 2
    office.guard("privacy", "hold", "--user", user, "--reason", "case 3")
    assert office.run("privacy", "purge", "--user", user, "--yes", "--archive", str(archive)).returncode == 3
    office.guard("privacy", "release", "--user", user)
    done = office.run("privacy", "purge", "--user", user, "--yes", "--archive", str(archive))
    assert done.returncode == 0, done.stderr
    assert "other nodes" in done.stderr
    for path in (p for folder in (office.state, archive) for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if path.suffix == ".zst":
            reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
            data = reader.read()
            assert b"alice" in data
        assert user.encode() not in data, path
        assert b"z.b@x.example" not in data, path
    assert len(office.guard("incidents", "list", "--all").splitlines()) == 4
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (office.state / name).unlink(missing_ok=True)
    assert user not in office.guard("incidents", "export", "--all")  # made again from what is left
    changes = json.loads(office.guard("report", "--json"))["changes"]
    assert [c["rule"] for c in changes] == ["privacy-held", "privacy-released", "privacy-purged"]
    assert all(c["who"] for c in changes)
    assert "privacy-purged" in b"".join(p.read_bytes() for p in (office.state / "spool").iterdir() if p.is_file()).decode("latin-1")


def test_the_notice_tells_the_settings_in_force(office: Office) -> None:
    assert "is switched off" in office.guard("privacy", "notice")
    (office.config / "incidents.toml").write_text('schema = 1\nmail = true\nsender = "g@x.example"\nkeep_days = 30\n')
    text = office.guard("privacy", "notice")
    assert "account holders, then PI" in text
    assert "30 days after" in text


@pytest.mark.skipif(not ROOT_HERE, reason="needs root: another's records")
def test_on_a_node_that_keeps_no_ledger_what_is_stored_is_shown_without_one(office: Office) -> None:
    """An empty ledger of the node's own would answer `none` from then on."""
    office.spool(exposure("k", NOW), exposure("other", NOW, at_tree={"user": "bob", "uid": 4242}))
    assert office.guard("privacy", "show", "--user", "bob").split()[-1] == "1"
    assert office.guard("privacy", "export", "--user", "bob").count("\n") == 1
    assert not (office.state / "ledger.db").exists()
    with Reader(str(office.state / "spool")) as reader:
        rules = [json.loads(row.line)["rule"] for row in reader.read(0, 10, quiet=True)]
    assert rules.count("events-read") == 2, "who reads others' records is on record"


def test_a_page_behind_a_proxy_that_no_account_is_does_not_start(office: Office) -> None:
    """Its header would count for nobody, and every visitor be told to come through the proxy."""
    (office.config / "incidents.toml").write_text('schema = 1\nproxy_user = "www-dota"\n')
    done = office.run("web")
    assert done.returncode == 3
    assert "proxy_user = 'www-dota': this host knows no such account" in done.stderr
