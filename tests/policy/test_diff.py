"""diff tells what the second policy opens and closes."""

from guard.policy import layers
from guard.policy.diff import compare
from guard.policy.load import loads


def changes(one, other):
    whole = [layers.complete(loads(f"schema = 1\n{text}".encode(), "p.toml").settings) for text in (one, other)]
    return [(each.effect, each.key, each.before, each.after) for each in compare(*whole)]


def test_the_same_policy_has_no_changes():
    text = '[files]\nread = ["/a", "/b"]\n[network]\nconnect = [80]'
    assert changes(text, text) == []


def test_what_says_the_same_in_other_words_has_no_changes():
    assert changes('[files]\nread = ["/a", "/b"]', '[files]\nread = ["/b/", "/a", "/a"]') == []


def test_grants_widen_and_refusals_narrow():
    assert changes('[files]\nread = ["/a"]\ndeny = ["/x"]', '[files]\nread = ["/b"]\ndeny = ["/y"]') == [
        ("narrower", "files.read", "/a", ""),
        ("wider", "files.read", "", "/b"),
        ("wider", "files.deny", "/x", ""),
        ("narrower", "files.deny", "", "/y"),
    ]


def test_a_grant_within_another_changes_nothing():
    assert changes('[files]\nread = ["/a"]', '[files]\nread = ["/a", "/a/b"]') == [("same", "files.read", "", "/a/b")]
    assert ("same", "files.read", "", "/w") in changes(
        '[files]\nwrite = ["/w"]', '[files]\nread = ["/w"]\nwrite = ["/w"]'
    )


def test_words_numbers_and_flags_show_both_sides():
    one = '[modes]\nsetuid = "deny"\n[limits]\ncore = 0\n[project]\nworktrees = true'
    other = '[modes]\nsetuid = "off"\n[limits]\ncore = 5\nprocesses = 9\n[project]\nworktrees = false'
    assert changes(one, other) == [
        ("wider", "modes.setuid", "deny", "off"),
        ("wider", "limits.core", "0", "5"),
        ("narrower", "limits.processes", "untouched", "9"),
        ("narrower", "project.worktrees", "true", "false"),
    ]


def test_any_is_wider_than_every_list():
    any_, some = '[network]\nconnect = "any"', "[network]\nconnect = [80]"
    assert changes(any_, some) == [("narrower", "network.connect", "any", '[{ ports = [80], to = "any" }]')]
    assert changes(some, any_) == [("wider", "network.connect", '[{ ports = [80], to = "any" }]', "any")]
