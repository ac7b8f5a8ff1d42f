"""What a policy file may hold, and the one error that each mistake gives."""

import os
import socket
import textwrap

import pytest

from guard.errors import PolicyError
from guard.policy.load import load, loads, site_from_document
from guard.policy.model import BindAllow, ConnectRule
from guard.policy.source import parse_document


def policy(text: str, kind: str = "policy"):
    return loads(b"schema = 1\n" + textwrap.dedent(text).encode(), "p.toml", kind)


def values(text: str, key: str, kind: str = "policy"):
    return [item.value for item in policy(text, kind).settings[key].items]


def refusal(text: str, kind: str = "policy") -> str:
    with pytest.raises(PolicyError) as caught:
        policy(text, kind)
    return str(caught.value)


def test_a_file_holds_only_what_it_sets():
    assert set(policy('[files]\nread = ["/usr"]').settings) == {"files.read"}


def test_paths_are_put_into_one_spelling():
    text = '[files]\nread = ["/usr/", "//opt//x", "/a/./b", "{home}/", "/usr"]'
    assert values(text, "files.read") == ["/usr", "/opt/x", "/a/b", "{home}"]


def test_an_entry_keeps_its_place_and_nearest_reason():
    text = """\
        reason = "file"
        [files]
        reason = "table"
        read = [
          "/a",
          { path = "/b", reason = "entry" },
        ]
        [env]
        drop = ["X"]
        """
    got = policy(text).settings
    first, second = got["files.read"].items
    assert (first.origin.line, first.origin.column, first.origin.reason) == (6, 3, "table")
    assert (second.origin.line, second.origin.reason) == (7, "entry")
    assert got["env.drop"].items[0].origin.reason == "file"


def test_connect_takes_any_ports_and_rules():
    text = """\
        [network]
        connect = [
          80, 443,
          { ports = ["1000-2000", 2001], to = "10.0.0.0/8", except = ["metadata", "loopback"] },
        ]
        """
    assert values(text, "network.connect") == [
        ConnectRule(((80, 80),)),
        ConnectRule(((443, 443),)),
        ConnectRule(((1000, 2001),), "10.0.0.0/8", ("loopback", "metadata")),
    ]
    assert policy('[network]\nconnect = "any"').settings["network.connect"].everything


def test_a_bind_exception_has_one_range_as_text_or_list():
    text = """\
        [network]
        bind_allow = [{ addr = "{cluster}", ports = "60001-63000", exec = "/usr/bin/srun", reason = "srun" }]
        """
    assert values(text, "network.bind_allow") == [BindAllow("{cluster}", ((60001, 63000),), "/usr/bin/srun")]


def test_v4_mapped_networks_are_the_ipv4_networks_that_they_are():
    text = '[network]\nconnect = [{ ports = [1], to = "::ffff:127.0.0.0/104" }]'
    assert values(text, "network.connect")[0].to == "127.0.0.0/8"


BAD = {
    "an unknown key": ("[files]\nreed = []", "p.toml:3:1:", "did you mean read?"),
    "an unknown table": ("[flies]\n", "p.toml:2:2:", "did you mean files?"),
    "a key at the top": ('read = ["/usr"]', "p.toml:2:1:", "did you mean files.read?"),
    "a wrong word": ('[modes]\nsetuid = "denied"', "p.toml:3:10:", "did you mean deny?"),
    "a wrong type": ('[files]\nread = "/usr"', "p.toml:3:8:", "is a list, not a string"),
    "a number for a path": ("[files]\nread = [1]", "p.toml:3:9:", "not a number"),
    "a text for a flag": ('[project]\nworktrees = "yes"', "p.toml:3:13:", "true or false"),
    "a flag for a number": ("[limits]\ncore = true", "p.toml:3:8:", "whole number"),
    "a fraction": ("[limits]\ncore = 1.5", "p.toml:3:8:", "whole number"),
    "a negative limit": ("[limits]\ncore = -1", "p.toml:3:8:", "between 0"),
    "a date": ("[limits]\ncore = 2026-01-01", "p.toml:3:8:", "a date"),
    "an unknown control": ('[controls]\nfile = "off"', "p.toml:3:1:", "did you mean files?"),
    "a control with a hyphen": ('[controls]\nworld-writable = "off"', "p.toml:3:1:", "world_writable?"),
    "port zero": ("[network]\nconnect = [0]", "p.toml:3:12:", "from 1 to 65535"),
    "a port too high": ("[network]\nconnect = [65536]", "p.toml:3:12:", "from 1 to 65535"),
    "a flag for a port": ("[network]\nconnect = [true]", "p.toml:3:12:", "not a boolean"),
    "a range backwards": (
        '[network]\nconnect = [{ports = ["2-1"]}]',
        "p.toml:3:22:",
        "ends before it begins",
    ),
    "no range": ('[network]\nconnect = [{ports = ["1-2-3"]}]', "p.toml:3:22:", "is no port"),
    "a huge port": (f"[network]\nconnect = [{'9' * 5000}]", "p.toml:3:12:", "thousands of digits"),
    "no ports": ("[network]\nconnect = [{to = 'any'}]", "p.toml:3:12:", "needs ports"),
    "empty ports": ("[network]\nconnect = [{ports = []}]", "p.toml:3:21:", "ports is empty"),
    "host bits": (
        '[network]\nconnect = [{ports = [1], to = "10.0.0.1/8"}]',
        "p.toml:3:31:",
        "write 10.0.0.0/8",
    ),
    "a host name": ('[network]\nconnect = [{ports = [1], to = "example.org"}]', "p.toml:3:31:", "no address"),
    "a zone": ('[network]\nconnect = [{ports = [1], to = "fe80::1%eth0"}]', "p.toml:3:31:", "zone"),
    "a word for connect": ('[network]\nconnect = "all"', "p.toml:3:11:", '"any"'),
    "a bind exception without a reason": (
        '[network]\nbind_allow = [{addr = "any", ports = [1]}]',
        "p.toml:3:15:",
        "needs a reason",
    ),
    "a relative path": ('[files]\nread = ["usr"]', "p.toml:3:9:", "is relative"),
    "an empty path": ('[files]\nread = [""]', "p.toml:3:9:", "is empty"),
    "a tilde": ('[files]\nread = ["~/x"]', "p.toml:3:9:", "write {home}/x"),
    "a parent": ('[files]\nread = ["/usr/../etc"]', "p.toml:3:9:", ".."),
    "a NUL": (r"[files]" + "\n" + r'read = ["/a\u0000b"]', "p.toml:3:9:", "NUL"),
    "a glob": ('[files]\nread = ["/usr/*"]', "p.toml:3:9:", "wildcards cannot"),
    "a glob in the middle": ('[files]\ndevices = ["/dev/nv*/x"]', "p.toml:3:12:", "last part"),
    "a device elsewhere": ('[files]\ndevices = ["/etc/passwd"]', "p.toml:3:12:", "below /dev"),
    "all devices": ('[files]\ndevices = ["/dev"]', "p.toml:3:12:", "below /dev"),
    "an unknown variable": ('[files]\nread = ["{hoem}/x"]', "p.toml:3:9:", "unknown variable {hoem}"),
    "half a brace": ('[files]\nread = ["/a{b"]', "p.toml:3:9:", "other half"),
    "a variable that is no place": ('[files]\nread = ["{user}/x"]', "p.toml:3:9:", "is no place"),
    "a place in the middle": ('[files]\nread = ["/x/{home}"]', "p.toml:3:9:", "only come first"),
    "a glob of another kind": ('[env]\ndrop = ["A?"]', "p.toml:3:9:", "only *"),
    "a variable with a value": ('[env]\ndrop = ["A=b"]', "p.toml:3:9:", "no ="),
    "an entry of a path table": (
        '[files]\nread = [{path = "/a", raeson = "x"}]',
        "p.toml:3:23:",
        "did you mean reason?",
    ),
    "an empty reason": ('[files]\nread = [{path = "/a", reason = " "}]', "p.toml:3:32:", "reason is empty"),
    "a bad name": ('name = "a/b"', "p.toml:2:8:", "name is a name"),
    "a bad base": ('extends = "../x"', "p.toml:2:11:", "extends is a name"),
    "overlays as text": ('overlays = "x"', "p.toml:2:12:", "is a list"),
    "syntax": ("[files\nread = 1", "p.toml:2:7:", "is not TOML"),
    "an unclosed string": ('name = "x', "p.toml:2:10:", "is not TOML"),
    "a key twice": ('name = "x"\nname = "y"', "p.toml:3:11:", "is not TOML"),
    "a table as a list": ("[[files]]\nread = []", "p.toml:2:3:", "is a table, not a list"),
    "what belongs to the site": ("[site]\n", "p.toml:2:2:", "belongs in a file of kind site"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_a_mistake_gives_one_error_with_its_place(case):
    text, place, sentence = BAD[case]
    message = refusal(text)
    assert message.startswith(place), message
    assert sentence in message.split("\n")[0]


def test_the_caret_stands_below_the_mistake():
    message = refusal("[network]\nconnect = [80, 99999, 443]")
    assert message == (
        "p.toml:3:16: 99999 is no port: ports go from 1 to 65535\n    connect = [80, 99999, 443]\n                   ^"
    )


def test_the_caret_follows_tabs_and_wide_characters():
    lines = refusal('[files]\n\tread = ["/日本", "x"]').split("\n")
    assert lines[1:] == ['    \tread = ["/日本", "x"]', "    \t                 ^"]


def test_long_lines_are_cut_around_the_mistake():
    message = refusal("[files]\nread = [" + '"/usr/share/doc", ' * 200 + '"x"]')
    shown, pointer = message.split("\n")[1:]
    assert len(shown) < 85
    assert shown[len(pointer) - 1 :].startswith('"x"')


def test_control_characters_of_a_file_do_not_reach_the_terminal():
    assert "\x1b" not in refusal('[files]\nread = ["x", "\\u001b[2J"]')
    assert "\x1b" not in refusal('"\\u001b[2J" = 1')


def test_the_schema_is_asked_for():
    for content, sentence in (
        (b"", "schema is missing"),
        (b"schema = 2", "the only one"),
        (b"schema = true", "the only one"),
        (b'schema = "1"', "the only one"),
    ):
        with pytest.raises(PolicyError, match=sentence):
            loads(content, "p.toml")


def test_an_overlay_says_its_reason_and_what_it_opens():
    assert "says its 'reason'" in refusal("", "overlay")
    assert "says its 'opens'" in refusal('reason = "x"', "overlay")
    assert policy('reason = "x"\nopens = "y"', "overlay").opens == "y"


def test_a_project_file_knows_no_variable_but_project():
    assert values('[files]\nwrite = ["{project}/x"]', "files.write", "project") == ["{project}/x"]
    for name in ("home", "tmp", "scratch", "user", "uid"):
        assert "unknown variable" in refusal(f'[files]\nwrite = ["{{{name}}}/x"]', "project")


def test_a_project_file_has_lists_of_bounded_length():
    entries = ", ".join(f"'{{project}}/{index}'" for index in range(257))
    assert "has 257 entries, and 256 are the most" in refusal(f"[files]\ndeny = [{entries}]", "project")
    assert len(values(f"[files]\ndeny = [{entries}]", "files.deny")) == 257


# Files that are no files ----------------------------------------------------------------------------


def read(path, kind="policy"):
    with pytest.raises(PolicyError) as caught:
        load(str(path), kind)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["policy", "project"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "sock"))
    for name, what in (("fifo", "a FIFO"), ("folder", "a directory"), ("sock", "a socket")):
        assert read(tmp_path / name, kind).endswith(f"{name}: is {what}, not a regular file")
    assert "is a device" in read("/dev/zero", kind)


def test_a_project_file_is_not_reached_through_a_link(tmp_path):
    (tmp_path / "real.toml").write_text("schema = 1\n")
    (tmp_path / ".guard.toml").symlink_to("real.toml")
    assert "is a symbolic link" in read(tmp_path / ".guard.toml", "project")
    assert load(str(tmp_path / ".guard.toml"), "policy") is not None


def test_files_without_end_are_not_read(tmp_path):
    (tmp_path / "big.toml").write_bytes(b"#" * (64 << 10) + b"#")
    assert "larger than 64 KiB" in read(tmp_path / "big.toml", "project")
    with (tmp_path / "huge.toml").open("wb") as stream:
        stream.truncate(10 << 30)
    assert "larger than 1024 KiB" in read(tmp_path / "huge.toml")


def test_text_that_is_not_utf8_shows_its_place():
    with pytest.raises(PolicyError, match=r"^p.toml:2:5: this is not UTF-8"):
        loads(b"schema = 1\n#  \xc3\xa4\xff", "p.toml")
    with pytest.raises(PolicyError, match="byte order mark"):
        loads("\ufeffschema = 1".encode(), "p.toml")


@pytest.mark.parametrize(
    "content",
    [
        b"x = " + b"[" * 60_000,
        b"x = " + b"{a=" * 20_000,
        b"a." * 30_000 + b"a = 1",
        b'"a".' * 15_000 + b"a = 1",
        b"[" + b"a." * 30_000 + b"a]",
        b"x = { " + b"a . " * 15_000 + b"a = 1 }",
    ],
    ids=["lists", "tables", "dots", "quoted dots", "header", "inline"],
)
@pytest.mark.timeout(20)
def test_a_file_made_to_exhaust_the_reader_is_refused_quickly(content):
    with pytest.raises(PolicyError):
        loads(b"schema = 1\n" + content, "p.toml", "project")


def test_an_absent_file_is_no_error(tmp_path):
    assert load(str(tmp_path / "none.toml"), "user") is None
    assert load("/dev/null/none.toml", "user") is None


def test_a_path_with_a_nul_is_an_error_of_ours():
    assert "cannot be read" in read("/tmp/a\0b")


# site.toml ------------------------------------------------------------------------------------------


def site(text: str):
    return site_from_document(parse_document("site.toml", b"schema = 1\n" + textwrap.dedent(text).encode()))


def test_a_site_sets_variables_and_a_floor():
    got = site(
        """\
        [site]
        audit = "forbid"
        default_policy = "ours"
        project_roots = ["{scratch}/{user}", "{home}"]
        [variables]
        scratch = ["/s1", "/s2"]
        cluster = "10.1.0.0/16"
        [files]
        write = ["{project}", "{scratch}"]
        """
    )
    assert got.site.audit == "forbid"
    assert got.site.default_policy == "ours"
    assert got.site.project_roots == ("/s1/{user}", "/s2/{user}", "{home}")
    assert got.site.variables == {"scratch": ("/s1", "/s2"), "cluster": ("10.1.0.0/16",)}
    assert set(got.floor.settings) == {"files.write"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[site]\naudit = "no"', "audit is one of"),
        ("[site]\naudits = 1", "did you mean audit?"),
        ('[variables]\nhome = "/x"', "guard's own"),
        ('[variables]\nScratch = "/x"', "small letters"),
        ('[variables]\nx = "{project}/y"', "unknown variable {project}"),
        ("[variables]\nx = 1", "is a string"),
        ('[site]\nproject_roots = ["{tmp}"]', "differs by session"),
        ('extends = "base"', "belongs in a file of kind policy"),
    ],
)
def test_a_mistake_in_site_toml_is_told(text, sentence):
    with pytest.raises(PolicyError) as caught:
        site(text)
    assert sentence in str(caught.value)
