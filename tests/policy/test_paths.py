"""What lies beneath what: paths by component, variables as atoms, globs by what they match."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.policy.paths import below, fill, glob_within, normal


@pytest.mark.parametrize(
    ("upper", "lower", "inside"),
    [
        ("/", "/usr", True),
        ("/", "{project}/x", True),
        ("/usr", "/usr", True),
        ("/usr", "/usr/bin", True),
        ("/usr", "/usrlocal", False),
        ("/usr/bin", "/usr", False),
        ("{home}", "{home}/x", True),
        ("{home}/x", "{home}", False),
        ("{project}", "{project}/sub", True),
        ("{home}", "{project}", False),
        ("{project}", "{home}", False),
        ("/home/ada", "{home}", False),
        ("{home}", "/home/ada", False),
        ("/run/user/{uid}", "/run/user/{uid}/bus", True),
        ("/run/user/7", "/run/user/{uid}", False),
        ("/dev/nvidia*", "/dev/nvidia0", True),
        ("/dev/nvidia*", "/dev/nvidia-caps/cap1", True),
        ("/dev/nvidia*", "/dev/nvidia*", True),
        ("/dev/nvidia0", "/dev/nvidia*", False),
        ("/dev/nvidia*", "/dev/nv*", False),
        ("/dev/nv*", "/dev/nvidia*", True),
    ],
)
def test_beneath(upper, lower, inside):
    assert below(upper, lower) is inside


_GLOBS = st.text("ab*", max_size=6)


@given(_GLOBS, _GLOBS, st.text("ab", max_size=8))
def test_a_glob_within_another_matches_nothing_beyond_it(upper, lower, text):
    if glob_within(upper, lower) and fnmatch.fnmatchcase(text, lower):
        assert fnmatch.fnmatchcase(text, upper)


@given(_GLOBS, st.text("ab", max_size=8))
def test_a_plain_name_is_within_a_glob_exactly_when_it_matches(glob, text):
    assert glob_within(glob, text) is fnmatch.fnmatchcase(text, glob)


_PARTS = st.sampled_from(["a", "b", "{user}", "{uid}x", "c d", "é"])
_PATHS = st.tuples(
    st.sampled_from(["/", "{home}", "{project}", "{tmp}"]), st.lists(_PARTS, max_size=4), st.sampled_from(["/", "//"])
).map(lambda three: three[0].rstrip("/") + "".join(three[2] + part for part in three[1]) or "/")


@given(_PATHS)
def test_one_spelling_is_kept(path):
    known = ("home", "project", "tmp", "user", "uid")
    once = normal(path, known)
    assert normal(once, known) == once
    assert below(once, once)


@given(_PATHS, _PATHS)
def test_only_one_and_the_same_place_lies_both_above_and_beneath(one, other):
    known = ("home", "project", "tmp", "user", "uid")
    one, other = normal(one, known), normal(other, known)
    if below(one, other) and below(other, one):
        assert one == other


def test_a_variable_with_several_values_gives_one_path_for_each():
    assert fill("{a}/{b}/x", {"a": ("/1", "/2"), "b": ("3",)}) == ["/1/3/x", "/2/3/x"]
    assert fill("{home}/x", {"a": ("/1",)}) == ["{home}/x"]
