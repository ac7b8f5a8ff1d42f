"""Layers: a lower one can only tighten; within one level of trust they widen."""

import importlib.util
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.policy import layers
from guard.policy.canonical import values_of
from guard.policy.keys import KEYS, Kind, Tighten
from guard.policy.load import loads
from guard.policy.model import BindAllow, ConnectRule

_spec = importlib.util.spec_from_file_location("oracle", os.path.join(os.path.dirname(__file__), "oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)
ACTS, permits = oracle.ACTS, oracle.permits


def partial(text: str):
    return loads(f"schema = 1\n{text}".encode(), "layer.toml").settings


def whole(text: str):
    return layers.complete(partial(text))


def tightened(upper: str, *lower: str):
    got = whole(upper)
    for each in lower:
        got = layers.tighten(got, partial(each), [])
    return values_of(got)


# What a person would expect, case by case -----------------------------------------------------------

CASES = {
    "paths beneath a grant stay": (
        '[files]\nread = ["/usr", "{home}"]',
        '[files]\nread = ["/usr/bin", "{home}/x", "/opt"]',
        {"files.read": ("/usr/bin", "{home}/x")},
    ),
    "a wider path is cut to the grant": (
        '[files]\nwrite = ["/data/x"]',
        '[files]\nwrite = ["/data"]',
        {"files.write": ("/data/x",)},
    ),
    "a like-named neighbour is another place": (
        '[files]\nwrite = ["/data"]',
        '[files]\nwrite = ["/database"]',
        {"files.write": ()},
    ),
    "a part of the project is in the project": (
        '[files]\nwrite = ["{project}", "{tmp}"]',
        '[files]\nwrite = ["{project}/sub"]',
        {"files.write": ("{project}/sub",), "files.read": ("{project}", "{tmp}")},
    ),
    "a variable is no literal path": (
        '[files]\nwrite = ["/home/ada"]',
        '[files]\nwrite = ["{home}"]',
        {"files.write": ()},
    ),
    "everything lies beneath the root": (
        '[files]\nread = ["/"]',
        '[files]\nread = ["{home}", "/usr"]',
        {"files.read": ("{home}", "/usr")},
    ),
    "what may be written may be asked to be read": (
        '[files]\nread = ["/usr"]\nwrite = ["{project}"]',
        '[files]\nread = ["{project}/doc"]\nwrite = []',
        {"files.read": ("{project}/doc",), "files.write": ()},
    ),
    "what is not named stays": (
        '[files]\nread = ["/usr"]',
        '[files]\ndeny = ["/usr/x"]',
        {"files.read": ("/usr",), "files.deny": ("/usr/x",)},
    ),
    "refusals add": (
        '[files]\ndeny = ["/a"]\n[env]\ndrop = ["X"]',
        '[files]\ndeny = ["/b", "/a"]\n[env]\ndrop = ["Y*"]',
        {"files.deny": ("/a", "/b"), "env.drop": ("X", "Y*")},
    ),
    "devices match by glob": (
        '[files]\ndevices = ["/dev/nvidia*", "/dev/shm"]',
        '[files]\ndevices = ["/dev/nvidia0", "/dev/shm/a", "/dev/nv*", "/dev/sda"]',
        {"files.devices": ("/dev/nvidia0", "/dev/nvidia*", "/dev/shm/a")},
    ),
    "kept variables meet by glob": (
        '[env]\nkeep = ["AWS_*", "X"]',
        '[env]\nkeep = ["AWS_REGION", "*", "Y"]',
        {"env.keep": ("AWS_REGION", "AWS_*", "X")},
    ),
    "words go to the tighter": (
        '[modes]\nworld_writable = "strip"\nsetuid = "deny"',
        '[modes]\nworld_writable = "deny"\nsetuid = "off"',
        {"modes.world_writable": "deny", "modes.setuid": "deny"},
    ),
    "numbers go to the smaller": (
        "[limits]\nprocesses = 100\nmemory = 5",
        "[limits]\nprocesses = 200\ncpu_seconds = 3\nmemory = 4",
        {"limits.processes": 100, "limits.cpu_seconds": 3, "limits.memory": 4, "limits.core": 0},
    ),
    "false wins": (
        "[project]\nworktrees = false",
        "[project]\nworktrees = true",
        {"project.worktrees": False},
    ),
    "any meets a list in the list": (
        '[network]\nconnect = "any"',
        "[network]\nconnect = [443]",
        {"network.connect": (ConnectRule(((443, 443),)),)},
    ),
    "a list meets any in the list": (
        "[network]\nconnect = [443]",
        '[network]\nconnect = "any"',
        {"network.connect": (ConnectRule(((443, 443),)),)},
    ),
    "connect rules meet in ports, addresses and exceptions": (
        '[network]\nconnect = [{ ports = ["1-100"], to = "10.0.0.0/8", except = ["metadata"] }]',
        '[network]\nconnect = [{ ports = ["80-200"], to = "any", except = ["10.1.0.0/16"] }, 22]',
        {
            "network.connect": (
                ConnectRule(((80, 100),), "10.0.0.0/8", ("10.1.0.0/16", "metadata")),
                ConnectRule(((22, 22),), "10.0.0.0/8", ("metadata",)),
            )
        },
    ),
    "loopback is two networks": (
        '[network]\nconnect = [{ ports = [1], to = "loopback" }]',
        '[network]\nconnect = [{ ports = [1], to = "0.0.0.0/0" }, { ports = [1], to = "::1/128" }]',
        {"network.connect": (ConnectRule(((1, 1),), "127.0.0.0/8"), ConnectRule(((1, 1),), "::1/128"))},
    ),
    "nothing in common is nothing": (
        "[network]\nconnect = [80]",
        "[network]\nconnect = [443]",
        {"network.connect": ()},
    ),
    "a bind exception fits under bind = any": (
        '[network]\nbind = "any"',
        '[network]\nbind = "loopback"\nbind_allow = [{ addr = "10.0.0.0/8", ports = "1-9", reason = "x" }]',
        {"network.bind": "loopback", "network.bind_allow": (BindAllow("10.0.0.0/8", ((1, 9),)),)},
    ),
    "a bind exception does not fit under bind = loopback": (
        '[network]\nbind = "loopback"',
        '[network]\nbind_allow = [{ addr = "10.0.0.0/8", ports = "1-9", reason = "x" }]',
        {"network.bind_allow": ()},
    ),
    "bind exceptions meet in the program": (
        '[network]\nbind_allow = [{ addr = "any", ports = "1-9", exec = "/a", reason = "x" }]',
        '[network]\nbind_allow = [{ addr = "10.0.0.0/8", ports = "5-20", reason = "y" },'
        '{ addr = "any", ports = "1-9", exec = "/b", reason = "y" }]',
        {"network.bind_allow": (BindAllow("10.0.0.0/8", ((5, 9),), "/a"),)},
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tightening(case):
    upper, lower, expected = CASES[case]
    got = tightened(upper, lower)
    assert {key: got[key] for key in expected} == expected


def test_what_a_layer_asked_for_and_did_not_get_is_told():
    notes = []
    lower = partial('[files]\nwrite = ["/data", "/usr"]\n[unix]\nabstract = "allow"')
    layers.tighten(whole('[files]\nwrite = ["/data/x"]'), lower, notes)
    assert notes == [
        "layer.toml:3: files.write: /data narrowed to what the layer above grants",
        "layer.toml:3: files.write: /usr left out, not granted above",
        "layer.toml:5: unix.abstract = allow would loosen, so it is not applied",
    ]


def test_every_row_of_the_table_has_a_case():
    seen = {KEYS[key].tighten for _, _, expected in CASES.values() for key in expected}
    kinds = {KEYS[key].kind for _, _, expected in CASES.values() for key in expected}
    assert seen == set(Tighten)
    assert kinds | {Kind.SOCKETS} == set(Kind)


# No combination of layers permits what an upper one refuses -----------------------------------------

_PATHS = st.sampled_from(
    [
        "/",
        "/usr",
        "/data",
        "/data/x",
        "/datax",
        "/etc",
        "/home/ada",
        "{home}",
        "{home}/.ssh",
        "{home}/.config",
        "{home}/work",
        "{project}",
        "{project}/src",
        "{project}/.git/hooks",
        "{tmp}",
        "/tmp",
        "/run/user/{uid}",
        "/run/user/{uid}/bus",
        "/dev",
    ]
)
_DEVICES = st.sampled_from(
    ["/dev/null", "/dev/nvidia*", "/dev/nvidia0", "/dev/n*", "/dev/pts", "/dev/shm", "/dev/shm/a", "/dev/*"]
)
_GLOBS = st.sampled_from(["AWS_*", "AWS_REGION", "*_API_KEY", "*", "SSH_AUTH_SOCK", "A*", "*KEY", "PATH", "X*Y"])
_TO = st.sampled_from(
    [
        "any",
        "loopback",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "127.0.0.0/8",
        "127.0.0.1/32",
        "0.0.0.0/0",
        "::/0",
        "::1/128",
        "2001:db8::/32",
    ]
)
_EXCEPT = st.lists(st.sampled_from(["loopback", "link-local", "metadata", "10.1.0.0/16"]), max_size=2)
_PORTS = st.lists(st.sampled_from([22, 80, 443, "1-100", "80-8080", "60001-63000", "1-65535"]), min_size=1, max_size=2)


def _toml(value):
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


_RULES = st.fixed_dictionaries({"ports": _PORTS}, optional={"to": _TO, "except": _EXCEPT})
_BINDS = st.fixed_dictionaries(
    {"addr": _TO, "ports": _PORTS, "reason": st.just("x")},
    optional={"exec": st.sampled_from(["/usr/bin/srun", "/usr/bin/nc"])},
)
_VALUES = {
    Kind.PATHS: st.lists(_PATHS, max_size=4),
    Kind.SOCKETS: st.lists(_PATHS, max_size=4),
    Kind.DEVICES: st.lists(_DEVICES, max_size=3),
    Kind.GLOBS: st.lists(_GLOBS, max_size=3),
    Kind.CONNECT: st.one_of(st.just("any"), st.lists(st.one_of(st.sampled_from([22, 80, 443]), _RULES), max_size=3)),
    Kind.BIND_ALLOW: st.lists(_BINDS, max_size=3),
    Kind.NUMBER: st.sampled_from([0, 1, 50, 100, 10**9]),
    Kind.FLAG: st.booleans(),
}


def _value(key):
    return st.sampled_from(key.words) if key.kind is Kind.WORD else _VALUES[key.kind]


# Lists more often than words: they are where the mistakes would be.
_NAMES = st.one_of(
    st.sampled_from([key.name for key in KEYS.values() if key.kind.is_list]), st.sampled_from(list(KEYS))
)


@st.composite
def layer_texts(draw):
    tables = {}
    for name in draw(st.lists(_NAMES, max_size=8, unique=True)):
        table, key = name.split(".")
        tables.setdefault(table, []).append(f"{key} = {_toml(draw(_value(KEYS[name])))}")
    return "".join(f"[{table}]\n" + "\n".join(rows) + "\n" for table, rows in tables.items())


def _more(upper, lower):
    return [act for act in ACTS if permits(lower, act) and not permits(upper, act)]


_KINDS_OF_ACT = {
    "files.read": ("read",),
    "files.write": ("write",),  # what may no longer be written may still be read
    "files.devices": ("device",),
    "files.deny": ("read", "write"),
    "files.protect": ("write",),
    "network.connect": ("connect",),
    "network.bind_allow": ("bind",),
    "unix.allow": ("unix",),
    "env.drop": ("variable",),
    "env.keep": ("kept", "variable"),
}
# What lets the acts happen that a refusal is about.
_ALSO = {
    "files.deny": '[files]\nread = ["/"]\nwrite = ["/"]\n',
    "files.protect": '[files]\nwrite = ["/"]\n',
    "env.keep": '[env]\ndrop = ["*"]\n',
}


@pytest.mark.parametrize("name", _KINDS_OF_ACT)
@settings(max_examples=400 if os.environ.get("GUARD_TEST_LONG") else 40, deadline=None)
@given(st.data())
def test_each_list_is_the_intersection_of_what_layers_grant(name, data):
    """Lists one by one, where the whole-policy property below draws too thinly: exactly what both allow."""
    upper, lower = (data.draw(_value(KEYS[name]), label=label) for label in ("upper", "lower"))
    table, key = name.split(".")
    also = _ALSO.get(name, "")
    head = also or f"[{table}]\n"
    first, second = (f"{head}{key} = {_toml(value)}\n" for value in (upper, lower))
    above, below = values_of(whole(first)), values_of(whole(second))
    got = tightened(first, second)
    for act in ACTS:
        if act.kind in _KINDS_OF_ACT[name]:
            both = permits(above, act) and permits(below, act)
            assert not permits(got, act) or both, act
            # Grants that name one place in two ways lose it, by design; the rest is exact.
            exact = name not in ("files.read", "files.write", "unix.allow", "env.keep")
            assert permits(got, act) or not both or not exact, act


@pytest.mark.parametrize("name", oracle.WORDS)
def test_each_word_goes_to_the_tighter(name):
    table, key = name.split(".")
    order = oracle.WORDS[name]
    for upper in order:
        for lower in order:
            got = tightened(f"[{table}]\n{key} = '{upper}'", f"[{table}]\n{key} = '{lower}'")
            assert got[name] == order[max(order.index(upper), order.index(lower))]


@settings(max_examples=1000 if os.environ.get("GUARD_TEST_LONG") else 60, deadline=None)
@given(layer_texts(), layer_texts(), layer_texts())
def test_no_layer_permits_what_an_upper_one_refuses(site, project, user):
    upper = values_of(whole(site))
    assert _more(upper, tightened(site, project)) == []
    assert _more(upper, tightened(site, project, user)) == []
    assert _more(tightened(site, project), tightened(site, project, user)) == []


@settings(max_examples=40, deadline=None)
@given(layer_texts(), layer_texts(), layer_texts(), layer_texts())
def test_a_lower_layer_with_a_base_and_overlays_permits_no_more(site, base, child, overlay):
    lower = layers.overlay(layers.extend(partial(base), partial(child)), partial(overlay))
    upper = whole(site)
    assert _more(values_of(upper), values_of(layers.tighten(upper, lower, []))) == []


@settings(max_examples=40, deadline=None)
@given(layer_texts(), layer_texts())
def test_a_layer_also_holds_what_it_says_itself(upper, lower):
    """What the lower layer names is never wider than it says: it is no mere wish."""
    got, own, named = tightened(upper, lower), values_of(whole(lower)), partial(lower)
    for act in ACTS:
        keys = {
            "write": ("files.write",),
            "device": ("files.devices",),
            "connect": ("network.connect",),
            "unix": ("unix.allow",),
            "kept": ("env.keep",),
            "bind": ("network.bind", "network.bind_allow"),
            "read": ("files.read", "files.write"),
        }.get(act.kind) or (act.what[0] if isinstance(act.what, tuple) else act.what,)
        if all(key in named for key in keys) and permits(got, act):
            assert permits(own, act), act


@settings(max_examples=30, deadline=None)
@given(layer_texts())
def test_a_layer_under_itself_changes_nothing(text):
    same = values_of(whole(text))
    assert [act for act in ACTS if permits(tightened(text, text), act) != permits(same, act)] == []


def test_the_oracle_sees_what_layers_take_away():
    """A property that nothing could break would prove nothing."""
    wide = values_of(whole('[files]\nread = ["/"]\nwrite = ["/"]\n[network]\nbind = "any"'))
    tight = values_of(whole("[network]\nconnect = []\nbind = 'deny'"))
    lost = {act.kind for act in _more(tight, wide)}
    assert lost >= {"read", "write", "connect", "bind"}


# Widening -------------------------------------------------------------------------------------------


def test_a_child_adds_to_lists_and_replaces_words():
    base = partial('[files]\nread = ["/a"]\n[modes]\nsetuid = "deny"\n[network]\nconnect = [1]')
    child = partial('[files]\nread = ["/b", "/a"]\n[modes]\nsetuid = "off"\n[network]\nconnect = [2]')
    got = values_of(layers.complete(layers.extend(base, child)))
    assert got["files.read"] == ("/a", "/b")
    assert got["modes.setuid"] == "off"
    assert got["network.connect"] == (ConnectRule(((1, 1),)), ConnectRule(((2, 2),)))


def test_a_childs_list_replaces_any():
    got = layers.extend(partial('[network]\nconnect = "any"'), partial("[network]\nconnect = [2]"))
    assert values_of(layers.complete(got))["network.connect"] == (ConnectRule(((2, 2),)),)


def test_an_overlay_never_bounds_what_was_without_bounds():
    overlay = partial('[network]\nconnect = [27000]\n[files]\nread = ["/opt/x"]\ndeny = ["/d"]')
    assert values_of(layers.overlay(layers.complete({}), overlay))["network.connect"] is None
    lower = layers.overlay({}, overlay)
    assert "files.read" not in lower
    assert "files.deny" in lower


def exempted(base: str, widen: str, notes=None):
    return values_of(layers.exempt(whole(base), partial(widen), [] if notes is None else notes))


def test_an_exception_adds_grants_takes_refusals_away_and_replaces_words():
    base = '[files]\nwrite = ["/a"]\ndeny = ["/x", "/y", "/y/z"]\n[unix]\nabstract = "deny"\n[limits]\ncore = 0'
    widen = '[files]\nwrite = ["/b"]\ndeny = ["/y"]\n[unix]\nabstract = "allow"\n[limits]\ncore = 9'
    got = exempted(base, widen)
    assert got["files.write"] == ("/a", "/b")
    assert got["files.deny"] == ("/x",)
    assert got["unix.abstract"] == "allow"
    assert got["limits.core"] == 9


def test_an_exception_never_tightens():
    notes = []
    got = exempted('[modes]\nsetuid = "off"', '[modes]\nsetuid = "deny"\n[network]\nconnect = [1]', notes)
    assert got["modes.setuid"] == "off"
    assert got["network.connect"] is None
    assert "would tighten" in notes[0]


@settings(max_examples=40, deadline=None)
@given(layer_texts(), layer_texts())
def test_an_exception_takes_no_right_away(base, widen):
    assert _more(exempted(base, widen), values_of(whole(base))) == []
