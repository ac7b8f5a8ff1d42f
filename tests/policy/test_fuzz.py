"""Arbitrary files give a policy or one `PolicyError`: never another exception, never a hang."""

import contextlib
import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from guard.errors import PolicyError
from guard.policy import layers
from guard.policy.assign import shipped_dir
from guard.policy.canonical import digest_of, text_of, values_of
from guard.policy.keys import KEYS, TABLES
from guard.policy.load import HEADS, loads, site_from_document
from guard.policy.model import Policy
from guard.policy.rows import load_assignments, load_exceptions
from guard.policy.source import parse_document

EXAMPLES = 3000 if os.environ.get("GUARD_TEST_LONG") else 150


def attempt(content, kind):
    """Load, and where that succeeds go the whole way to the canonical text and back."""
    try:
        policy = loads(content, "fuzz.toml", kind)
    except PolicyError as error:
        message = str(error)
        assert message.startswith("fuzz.toml:")
        assert len(message.split("\n")) in (1, 3)
        assert all(char.isprintable() or char in "\n\t" for char in message)
        return
    assert isinstance(policy, Policy)
    assert set(policy.settings) <= set(KEYS)
    whole = layers.complete(policy.settings)
    values = values_of(whole)
    again = loads(text_of(policy.name, values, "enforce").encode(), "again.toml")
    assert values_of(layers.complete(again.settings)) == values
    digest_of(policy.name, values, "enforce")
    layers.tighten(layers.complete({}), policy.settings, [])


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["policy", "overlay", "project", "user"]))
@example(b"\xff", "policy")
@example(b"\xef\xbb\xbfschema = 1", "policy")
@example(b"schema = 1\r\n[files]\r\nread = ['x']\r\n", "policy")
@example(b"\r", "policy")
def test_arbitrary_bytes(content, kind):
    attempt(content, kind)
    attempt(b"schema = 1\n" + content, kind)


_WORDS = st.sampled_from(
    [
        *TABLES,
        *(name.split(".")[1] for name in KEYS),
        *HEADS["policy"],
        *HEADS["site"],
        *(word for key in KEYS.values() for word in key.words),
        *("ports", "to", "except", "addr", "exec", "path", "reason", "any", "loopback", "link-local"),
        *("/usr", "{home}", "{project}/x", "{cluster}", "/dev/null", "/dev/x*", "10.0.0.0/8", "1-2", "::/0"),
        *("=", "[", "]", "{", "}", "\n", ",", ".", '"', "'", "#", "\\", " ", "\t", '"""', "'''", "[[", "]]"),
        *("1", "0", "-1", "1.5", "true", "2026-01-01", "1e999", "nan", "\\u0000", "\\uFFFF", "é", "\u202e"),
    ]
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.one_of(_WORDS, _WORDS.map(lambda word: f'"{word}"')), max_size=30).map("".join))
def test_words_of_the_language_in_any_order(text):
    attempt(f"schema = 1\n{text}".encode(), "policy")


_TEXTS = st.text(max_size=12)
_ATOMS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.booleans(),
    _TEXTS,
    st.sampled_from(["/usr", "{home}/x", "any", "10.0.0.0/8", "1-2", "DBUS_*", "deny", "/dev/null"]),
)
_TREES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["ports", "to", "except", "addr", "exec", "path", "reason", "x"]), inner, max_size=4
        ),
    ),
    max_leaves=6,
)


def _toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08X}" for char in value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}={_toml(each)}" for key, each in value.items()) + "}"
    return str(value)


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(st.dictionaries(st.sampled_from(list(KEYS)), _TREES, max_size=4))
def test_values_of_any_shape_under_the_keys_there_are(values):
    attempt(("schema = 1\n" + "".join(f"{key} = {_toml(each)}\n" for key, each in values.items())).encode(), "policy")


_BASE = open(os.path.join(shipped_dir(), "login-node.toml"), "rb").read()  # noqa: SIM115 - read whole, at once


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, len(_BASE) - 1), st.integers(0, 8), st.binary(max_size=4))
def test_a_shipped_policy_with_a_few_bytes_changed(at, drop, put):
    attempt(_BASE[:at] + put + _BASE[at + drop :], "policy")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["assign", "exception", "site", "variables"]),
    st.dictionaries(
        st.sampled_from(
            [
                "user",
                "group",
                "host",
                "harness",
                "everyone",
                "policy",
                "overlays",
                "mode",
                "reason",
                "control",
                "widen",
                "ticket",
                "until",
                "audit",
                "tmp",
                "default_policy",
                "project_roots",
                "harnesses",
                "scratch",
            ]
        ),
        _TREES,
        max_size=8,
    ),
)
def test_rows_and_site_files_of_any_shape(tmp_path, table, row):
    body = "".join(f"{key} = {_toml(each)}\n" for key, each in row.items())
    head = f"[[{table}]]" if table in ("assign", "exception") else f"[{table}]"
    path = tmp_path / "fuzz.toml"
    path.write_text(f"schema = 1\n{head}\n{body}")
    with contextlib.suppress(PolicyError):
        load_assignments(str(path))
    with contextlib.suppress(PolicyError):
        load_exceptions(str(path), {}, [])
    with contextlib.suppress(PolicyError):
        site_from_document(parse_document("site.toml", path.read_bytes()))


@pytest.mark.parametrize(
    "until", ["0001-01-01", "9999-12-31", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"]
)
def test_dates_at_the_ends_of_time(tmp_path, until):
    path = tmp_path / "e.toml"
    path.write_text(
        'schema = 1\n[[exception]]\nuser = "a"\ncontrol = "files"\nwiden = { "files.write" = ["/d"] }\n'
        f'reason = "r"\nuntil = {until}\n'
    )
    assert load_exceptions(str(path), {}, [])[0].until
