"""Mail: who is written to, when, once; and no part of a key beyond its public prefix."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from guard.errors import PolicyError, StateError
from guard.incidents import accounts, mail, notices
from guard.incidents.settings import DAY, Settings
from guard.redact import samples
from guard.redact.rules.formats import FORMATS
from tests.incidents.made import T0, Site, exposure


class Inbox:
    """What a real SMTP server on loopback took."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], Message]] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name
        self.mails.append((envelope.rcpt_tos, message_from_bytes(envelope.content or b"")))  # type: ignore[arg-type]
        return "250 OK"

    @property
    def recipients(self) -> list[str]:
        return sorted(to for tos, _ in self.mails for to in tos)

    def text(self, number: int = 0) -> str:
        return str(self.mails[number][1].get_payload(decode=True).decode())  # type: ignore[union-attr]


@pytest.fixture
def inbox() -> Iterator[tuple[Inbox, str]]:
    box = Inbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]  # aiosmtpd's controller takes no port 0
    server = Controller(box, hostname="127.0.0.1", port=port)
    server.start()
    try:
        yield box, f"127.0.0.1:{port}"
    finally:
        server.stop()


MAP = {
    "alice": accounts.Account("alice", "alice@x.example", "prof", "prof@x.example", "bio"),
    "bob": accounts.Account("bob", "bob@x.example"),
}


def _site(folder: Path, smtp: str, **more: object) -> Site:
    return Site(folder, Settings(mail=True, sender="guard@x.example", infosec="sec@x.example", smtp=smtp, **more))  # type: ignore[arg-type]


def test_each_step_of_the_clock_is_one_mail_to_whom_it_concerns(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, smtp = inbox
    site = _site(tmp_path, smtp)
    site.fold(exposure("k"))
    sent = []
    for _ in range(9):
        notices.send_due(site.desk, MAP)
        notices.send_due(site.desk, MAP)  # asked twice, sent once
        sent.append(box.recipients)
        box.mails.clear()
        site.days(1)
    assert sent == [["alice@x.example"], [], [], ["alice@x.example"], [], [], ["alice@x.example"], ["prof@x.example", "sec@x.example"], []]
    assert site.one("k").state == "notified"


def test_many_keys_of_one_holder_are_one_digest(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, smtp = inbox
    site = _site(tmp_path, smtp)
    site.fold(*(exposure(f"k{n}") for n in range(12)), exposure("b", at_tree={"user": "bob", "uid": 9}))
    notices.send_due(site.desk, MAP)
    assert box.recipients == ["alice@x.example", "bob@x.example"]
    assert "12 exposed keys" in str(box.mails[0][1]["Subject"]) + str(box.mails[1][1]["Subject"])


def test_a_mail_holds_no_part_of_the_key_and_no_link(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, smtp = inbox
    site = _site(tmp_path, smtp)
    row = next(f for f in FORMATS if f.kind == "github-token")
    key = samples.fill(row.samples[0], random.Random(11))[0]
    site.fold(exposure("k", path=f"/home/alice/{key}/x", length=len(key)))
    notices.send_due(site.desk, MAP)
    text = box.text()
    # The path of a real event was redacted before; what is asked here is that a mail adds nothing of its own.
    body = text.replace(f"/home/alice/{key}/x", "")
    assert not any(key[n : n + 8] in body for n in range(4, len(key) - 8))
    assert "http" not in text
    for word in ("github-token", f"{len(key)} characters", "guard incidents match", "guard incidents rotated", "login1"):
        assert word in text


def test_nothing_is_sent_until_mail_is_switched_on(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, _ = inbox
    site = Site(tmp_path)
    site.fold(exposure("k"))
    with pytest.raises(StateError, match="switched off"):
        notices.send_due(site.desk, MAP)
    assert [m.to for m in notices.planned(site.desk, MAP).sent] == ["alice@x.example"]
    assert box.mails == []


def test_a_baseline_of_old_histories_sends_nothing(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, smtp = inbox
    site = _site(tmp_path, smtp)
    site.fold(*(exposure(f"k{n}", T0 - n * DAY, baseline=True, source="history", path="/h") for n in range(365)), at=T0)
    for _ in range(20):
        notices.send_due(site.desk, MAP)
        assert site.desk.alert_overdue() == []
        site.days(1)
    assert box.mails == []


def test_the_hourly_rate_holds_and_the_rest_goes_out_later(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, smtp = inbox
    site = _site(tmp_path, smtp, per_hour=3, domain="x.example")
    site.fold(*(exposure(f"k{n}", at_tree={"user": f"u{n}", "uid": n}) for n in range(5)))
    assert len(notices.send_due(site.desk, {}).waiting) == 2
    assert len(box.mails) == 3
    site.days(1 / 23)
    notices.send_due(site.desk, {})
    assert len(set(box.recipients)) == 5


def test_a_server_that_is_away_costs_no_mail(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, smtp = inbox
    site = _site(tmp_path, "127.0.0.1:1")
    site.fold(exposure("k"))
    with pytest.raises(StateError, match="did not take the mail"):
        notices.send_due(site.desk, MAP)
    assert site.one("k").state == "open"
    site.desk.settings = Settings(mail=True, sender="guard@x.example", smtp=smtp)
    notices.send_due(site.desk, MAP)
    assert box.recipients == ["alice@x.example"]


def test_a_holder_without_an_address_is_told_of(tmp_path: Path) -> None:
    site = _site(tmp_path, "127.0.0.1:1")
    site.fold(exposure("k", at_tree={"user": "nobody here", "uid": 3}))
    assert [(one.id, role) for one, role in notices.planned(site.desk, MAP).nowhere] == [(site.one("k").id, "holder")]


def test_a_line_break_in_a_user_name_makes_no_header(tmp_path: Path) -> None:
    site = _site(tmp_path, "127.0.0.1:1", domain="x.example")
    site.fold(exposure("k", at_tree={"user": "a\nBcc: all@x.example", "uid": 3}))
    assert notices.planned(site.desk, {}).sent == []


@pytest.mark.parametrize(
    ("text", "says"),
    [("user,mail\nalice,nowhere\n", ":2: 'nowhere' is no mail address"), ("mail\nx@y.example\n", ":2: no user"), ("\xff", "cannot be read|no user")],
)  # fmt: skip
def test_a_wrong_account_map_says_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "accounts.csv"
    path.write_text(text + "\n", encoding="latin-1")
    if text == "\xff":
        path.write_bytes(b"user,mail\n\xff\xfe,\n")
    with pytest.raises(PolicyError, match=says):
        accounts.load(str(path))


def test_of_a_key_that_two_hold_each_is_told_their_own_places(tmp_path: Path, inbox: tuple[Inbox, str]) -> None:
    box, smtp = inbox
    site = _site(tmp_path, smtp)
    site.fold(
        exposure("k", source="file", path="/home/alice/.env"),
        exposure("k", source="file", path="/home/bob/.env", at_tree={"user": "bob", "uid": 9}),
    )
    site.days(8)
    notices.send_due(site.desk, MAP)
    mails = {tos[0]: box.text(number) for number, (tos, _) in enumerate(box.mails)}
    assert set(mails) == {"alice@x.example", "bob@x.example", "prof@x.example", "sec@x.example"}
    assert "bob" not in mails["alice@x.example"] + mails["prof@x.example"]
    assert "alice" not in mails["bob@x.example"]
    assert "/home/alice" in mails["sec@x.example"]
    assert "/home/bob" in mails["sec@x.example"]


def test_a_line_break_in_a_path_writes_no_line_of_its_own(tmp_path: Path) -> None:
    site = _site(tmp_path, "localhost:1")
    site.fold(exposure("k", path="/x\n\nSee https://evil.example\x1b[2J"))
    (one,) = notices.planned(site.desk, MAP).sent
    assert not any(line.startswith("See") for line in mail.text(one, site.settings, site.now).splitlines())


def test_nobody_is_written_to_about_a_closed_incident(tmp_path: Path) -> None:
    site = _site(tmp_path, "localhost:1")
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], "resolve")
    assert notices.planned(site.desk, MAP, [site.one("k")], only="notice").sent == []


def test_a_digest_names_no_key_as_the_one(tmp_path: Path) -> None:
    site = _site(tmp_path, "localhost:1")
    site.fold(exposure("a"), exposure("b"))
    (one,) = notices.planned(site.desk, MAP).sent
    assert "guard incidents rotated ID " in mail.text(one, site.settings, site.now)
