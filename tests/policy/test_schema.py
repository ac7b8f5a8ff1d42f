"""The published JSON Schema and the loader say the same of a file."""

import datetime
import glob
import json
import os
import tomllib

import jsonschema
import pytest

from guard.errors import PolicyError
from guard.policy.assign import shipped_dir
from guard.policy.keys import KEYS
from guard.policy.load import load, loads, site_from_document
from guard.policy.rows import load_assignments, load_exceptions
from guard.policy.schema import KINDS, schema
from guard.policy.source import parse_document

VALIDATORS = {
    kind: jsonschema.Draft202012Validator(schema(kind), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for kind in KINDS
}


def as_json(value):
    """Return a TOML value the way editors hand it to a validator: dates as text."""
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value


def schema_takes(kind, text):
    return VALIDATORS[kind].is_valid(as_json(tomllib.loads(text)))


def loader_takes(kind, text, tmp_path):
    path = tmp_path / "file.toml"
    path.write_text(text)
    try:
        if kind == "site":
            site_from_document(parse_document("site.toml", text.encode()))
        elif kind == "assign":
            load_assignments(str(path))
        elif kind == "exceptions":
            load_exceptions(str(path), {}, [])
        else:
            loads(text.encode(), str(path), kind)
    except PolicyError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_a_schema(kind):
    jsonschema.Draft202012Validator.check_schema(schema(kind))
    json.dumps(schema(kind))


def test_every_key_is_in_the_schema_with_its_sentence():
    tables = schema("policy")["properties"]
    for key in KEYS.values():
        table, name = key.name.split(".")
        assert key.doc in tables[table]["properties"][name]["description"]


FILES = sorted(glob.glob(os.path.join(shipped_dir(), "**", "*.toml"), recursive=True))


@pytest.mark.parametrize("path", FILES, ids=os.path.basename)
def test_every_shipped_policy_is_valid_for_schema_and_loader(path):
    kind = "overlay" if os.path.basename(os.path.dirname(path)) == "overlays" else "policy"
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    assert [error.message for error in VALIDATORS[kind].iter_errors(as_json(tomllib.loads(text)))] == []
    assert load(path, kind).name == os.path.basename(path).removesuffix(".toml")


GOOD = {
    "policy": [
        "",
        'name = "a.b-c"\ndescription = "d"\nreason = "r"\nextends = "base"\noverlays = ["x", "y"]',
        '[files]\nreason = "r"\nread = ["/usr/", "{home}", "{home}/x", { path = "{project}", reason = "x" }]',
        '[files]\ndevices = ["/dev/null", "/dev/nvidia*", { path = "/dev/shm" }]\nmask = "always"',
        '[network]\nconnect = "any"\nbind = "deny"',
        '[network]\nconnect = [80, { ports = 80 }, { ports = "1-2", to = "loopback" }]',
        '[network]\nconnect = [{ ports = [1, "2-3"], to = "::1/128", except = ["metadata", "10.0.0.0/8"] }]',
        '[network]\nconnect = [{ ports = [1], to = "{cluster}", reason = "x" }]',
        '[network]\nbind_allow = [{ addr = "any", ports = "1-2", exec = "/usr/bin/x", reason = "r" }]',
        '[env]\ndrop = ["DBUS_*", "BASH_FUNC_ml%%"]\nkeep = ["*"]',
        "[limits]\ncore = 0\nmemory = 9223372036854775807",
        '[controls]\nworld_writable = "observe"\n[on_fault]\nevents = "refuse"\nfiles = "default"',
        "[project]\nworktrees = false",
    ],
    "overlay": ['reason = "r"\nopens = "o"\ntried = "untried"\n[unix]\nallow = ["/run/x"]'],
    "site": [
        '[site]\naudit = "forbid"\ndefault_policy = "x"\nproject_roots = ["{home}"]\ntmp = "/tmp"\n'
        'harnesses = ["aider"]\n[variables]\nscratch = ["/a", "/b"]\ncluster = "10.0.0.0/8"\n[files]\nread = []',
    ],
    "assign": [
        '[[assign]]\nuser = "a"\ngroup = ["b", "c"]\nhost = "login*"\nharness = "claude"\npolicy = "p"\n'
        'overlays = ["o"]\nmode = "off"\nreason = "r"\n[[assign]]',
        "",
    ],
    "exceptions": [
        '[[exception]]\ngroup = "g"\ncontrol = "files"\nwiden = { "files.write" = ["/d"], files = { read = [] } }\n'
        'reason = "r"\nticket = "T"\nuntil = 2026-01-01',
        '[[exception]]\neveryone = true\ncontrol = "limits"\nwiden = { limits = { core = 5 } }\nreason = "r"\n'
        "until = 2026-01-01T00:00:00Z",
    ],
}

BAD = {
    "policy": [
        "schema = 2",
        'name = "a/b"',
        'extends = ""',
        "overlays = [1]",
        'opens = "x"',
        "[site]",
        "[files]\nreed = []",
        "[files]\nread = '/usr'",
        "[files]\nread = ['usr']",
        "[files]\nread = ['/usr/../x']",
        "[files]\nread = ['/usr/*']",
        "[files]\nread = ['{home}x']",
        '[files]\nread = ["/a\\u0000"]',
        "[files]\nread = [{ reason = 'x' }]",
        "[files]\nread = [{ path = '/a', why = 'x' }]",
        "[files]\nread = [{ path = '/a', reason = '' }]",
        "[files]\ndevices = ['/etc']",
        "[files]\ndevices = ['/dev/a*/b']",
        "[files]\nmask = 'maybe'",
        "[network]\nconnect = 'all'",
        "[network]\nconnect = ['80']",
        "[network]\nconnect = [0]",
        "[network]\nconnect = [65536]",
        "[network]\nconnect = [true]",
        "[network]\nconnect = [{ to = 'any' }]",
        "[network]\nconnect = [{ ports = [] }]",
        "[network]\nconnect = [{ ports = ['a'] }]",
        "[network]\nconnect = [{ ports = [1], to = 'host' }]",
        "[network]\nconnect = [{ ports = [1], except = 'loopback' }]",
        "[network]\nbind_allow = [{ addr = 'any', ports = [1] }]",
        "[network]\nbind_allow = [{ addr = 'any', ports = [1], exec = 'srun', reason = 'r' }]",
        "[env]\ndrop = ['A=B']",
        "[env]\ndrop = ['A?']",
        "[env]\ndrop = ['']",
        "[limits]\ncore = -1",
        "[limits]\ncore = '4G'",
        "[limits]\ncore = true",
        "[controls]\nworld-writable = 'off'",
        "[on_fault]\nevents = 'default'",
        "[project]\nworktrees = 'yes'",
        "files = 1",
    ],
    "overlay": ["", 'reason = "r"', 'reason = "r"\nopens = "o"\nextends = "base"'],
    "site": ['[site]\naudit = "x"', "[site]\nproject_roots = ['x']", "[variables]\nhome = '/x'", 'extends = "b"'],
    "assign": ["[assign]", "[[assign]]\nuser = []", "[[assign]]\nmode = 'on'", "[[assign]]\nusr = 'x'", "x = 1"],
    "exceptions": [
        "[[exception]]",
        '[[exception]]\ncontrol = "files"\nwiden = { "files.write" = ["/d"] }\nreason = "r"\nuntil = 2026-01-01',
        '[[exception]]\nuser = "a"\ngroup = "b"\ncontrol = "files"\nwiden = { "files.write" = ["/d"] }\n'
        'reason = "r"\nuntil = 2026-01-01',
        '[[exception]]\nuser = "a"\ncontrol = "file"\nwiden = { "files.write" = ["/d"] }\nreason = "r"\n'
        "until = 2026-01-01",
        '[[exception]]\nuser = "a"\ncontrol = "files"\nwiden = {}\nreason = "r"\nuntil = 2026-01-01',
        '[[exception]]\nuser = "a"\ncontrol = "files"\nwiden = { "files.write" = ["d"] }\nreason = "r"\n'
        "until = 2026-01-01",
        '[[exception]]\nuser = "a"\ncontrol = "files"\nwiden = { "files.write" = ["/d"] }\nreason = "r"\nuntil = 1',
    ],
}


def cases(table):
    return [(kind, text if "schema =" in text else f"schema = 1\n{text}") for kind in table for text in table[kind]]


@pytest.mark.parametrize(("kind", "text"), cases(GOOD))
def test_what_is_good_both_take(kind, text, tmp_path):
    assert loader_takes(kind, text, tmp_path)
    assert schema_takes(kind, text)


@pytest.mark.parametrize(("kind", "text"), cases(BAD))
def test_what_is_bad_both_refuse(kind, text, tmp_path):
    assert not loader_takes(kind, text, tmp_path)
    assert not schema_takes(kind, text)


def test_a_file_without_its_schema_number_both_refuse(tmp_path):
    for kind in KINDS:
        assert not loader_takes(kind, "", tmp_path)
        assert not schema_takes(kind, "")
