"""feeds.toml: what is wrong is told with its place; what it names is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard.errors import GuardError, PolicyError
from guard.feeds.config import Config, address, load, loads
from guard.feeds.options import COMMON, KINDS

HEAD = 'schema = 1\n[[feed]]\nname = "a"\n'


def read(text: str) -> Config:
    return loads(text.encode(), "feeds.toml")


def test_a_feed_has_its_options_and_the_defaults_of_the_others() -> None:
    feed = read(HEAD + 'kind = "syslog"\nserver = "siem.example.org:6514"\nminimum = "medium"\n').feeds[0]
    assert feed.text("server") == "siem.example.org:6514"
    assert feed.flag("tls")
    assert feed.seconds("window") == 30
    assert not feed.whole


BAD = {
    'kind = "kafka"': "4:8: kind is one of jsonl, syslog",
    'kind = "jsonl"': "needs path",
    'kind = "jsonl"\npath = "events"': "5:8: path is an absolute path",
    'kind = "jsonl"\npath = "/x"\nbatches = 3': "6:1: unknown key in a feed of kind jsonl: 'batches'; did you mean batch?",
    'kind = "jsonl"\npath = "/x"\nbatch = 0': "6:9: batch is between 1 and 20000",
    'kind = "jsonl"\npath = "/x"\nbatch = true': "batch is a whole number, not a boolean",
    'kind = "jsonl"\npath = "/x"\nminimum = "urgent"': "minimum is one of info, low",
    'kind = "jsonl"\npath = "/x"\ntimeout = 60': "watchdog must be more than twice timeout",
    'kind = "jsonl"\npath = "/x"\nonly = { colour = ["red"] }': "unknown key in only: 'colour'",
    'kind = "jsonl"\npath = "/x"\nonly = { control = [] }': "would match nothing",
    'kind = "webhook"\nurl = "ftp://x"': "is an http:// or https:// URL",
    'kind = "webhook"\nurl = "https://u:p@x/"': "must carry no password",
    'kind = "webhook"\nurl = "https://x/"\nformat = "cef"': "cef is no JSON",
    'kind = "opensearch"\nurl = "https://x/"\nformat = "cef"': "cef is no JSON",
    'kind = "nats"\nservers = ["nats://u:p@x:4222"]': "must carry no login",
    'kind = "nats"\nservers = []': "servers is empty",
    'kind = "nats"\nservers = ["js1:4222"]': "nats://HOST:PORT or tls://HOST:PORT",
    'kind = "nats"\nservers = ["nats://x:4222"]\npassword_file = "/p"': "password_file needs user",
    'kind = "syslog"\nserver = "siem"': "server is HOST:PORT",
    'kind = "syslog"\nserver = "siem:0"': "server is HOST:PORT",
    'kind = "syslog"\nserver = "siem:514"\ntls = false\nca_file = "/ca"': "tls = false says none",
    'kind = "syslog"\nserver = "siem:514"\ncert_file = "/c"': "cert_file needs key_file",
    'kind = "prometheus"': "needs listen or textfile",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_is_told_with_its_place(text: str) -> None:
    with pytest.raises(PolicyError) as told:
        read(HEAD + text + "\n")
    assert BAD[text] in str(told.value)
    assert str(told.value).startswith("feeds.toml:")


def test_two_feeds_of_one_name_are_refused() -> None:
    with pytest.raises(PolicyError, match="two feeds"):
        read(HEAD + 'kind = "jsonl"\npath = "/x"\n[[feed]]\nname = "a"\nkind = "jsonl"\npath = "/y"\n')


def test_a_spool_and_a_stream_together_are_refused() -> None:
    with pytest.raises(PolicyError, match="not from both"):
        read('schema = 1\n[spool]\npath = "/x"\n[source]\nservers = ["nats://x:1"]\n')


def test_an_absent_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match=r"docs/feeds\.md"):
        load(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(("text", "host"), [("a.b:1", "a.b"), ("[::1]:99", "::1"), ("127.0.0.1:65535", "127.0.0.1")])
def test_addresses(text: str, host: str) -> None:
    assert address(text)[0] == host


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:65536", "[x]:1", "::1:5", "a b:1", "a:-1", "a:²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|IPv6"):
        address(text)


def test_every_option_stands_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/feeds.md").read_text()
    for kind, rows in {"": COMMON, **KINDS}.items():
        for row in rows:
            assert f"`{row.name}`" in text, (kind, row.name)


def test_a_file_that_everybody_may_write_sends_nothing_anywhere(tmp_path: Path) -> None:
    from guard.errors import StateError

    path = tmp_path / "feeds.toml"
    path.write_text('schema = 1\n[[feed]]\nname = "a"\nkind = "jsonl"\npath = "/var/tmp/x"\n')
    path.chmod(0o666)
    with pytest.raises(StateError, match="writable by everybody; chmod o-w"):
        load(str(path))
    path.chmod(0o644)
    assert [feed.name for feed in load(str(path)).feeds] == ["a"]
