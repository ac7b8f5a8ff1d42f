"""What a refusal says of itself: short, without a path, and an overlay only where it opens just that."""

import ast
import re
from pathlib import Path

import pytest

from guard.confine.handlers import advice
from guard.policy import layers
from guard.policy.assign import Config
from guard.policy.canonical import values_of
from guard.policy.keys import CONTROLS
from guard.policy.library import Library
from guard.policy.model import ConnectRule

HANDLERS = Path(advice.__file__).parent
SHIPPED = Library((Config().shipped_dir,))
# What login-node has by itself; it is named where another policy leaves it out.
OVERLAYS = [name for name, _ in SHIPPED.names("overlay")]


def _values(name):
    return values_of(SHIPPED.laid(layers.complete({"network.connect": layers.Setting((), layers.DEFAULT_ORIGIN)}),
                                  SHIPPED.overlay(name, "a test")))  # fmt: skip


def _rules():
    for name in OVERLAYS:
        for rule in _values(name)["network.connect"] or ():
            if isinstance(rule, ConnectRule):
                for low, high in rule.ports:
                    yield name, low, rule
                    yield name, high, rule


@pytest.mark.parametrize(("rule", "texts"), advice.ADVICE.items())
def test_every_sentence_fits_a_line_and_names_no_place(rule, texts):
    for text in texts:
        assert 0 < len(text) < 78
        assert "/" not in text, "it would be withheld from the event"


RULE = re.compile(r"[a-z]+(-[a-z]+)+")


def _rules_of_handlers():
    """Every rule that a handler's source gives to `decide`, `tell`, `Denied` or `_refuse`."""
    for path in HANDLERS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "attr", getattr(getattr(node, "func", None), "id", ""))
            if isinstance(node, ast.Call) and name in ("decide", "tell", "_refuse", "Denied"):
                texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
                yield from (each for each in texts if isinstance(each, str) and RULE.fullmatch(each))


@pytest.mark.parametrize("rule", sorted(set(_rules_of_handlers()) - set(CONTROLS)))
def test_every_rule_of_a_handler_has_its_sentences(rule):
    assert rule in advice.ADVICE


@pytest.mark.parametrize(("name", "port", "rule"), list(_rules()), ids=str)
def test_a_port_that_an_overlay_opens_names_an_overlay_that_opens_it(name, port, rule):
    found = advice.overlay("connect-address", f"10.1.2.3:{port}")
    assert found, f"{name} opens it"
    assert any(low <= port <= high for each in _values(found)["network.connect"] for low, high in each.ports)


@pytest.mark.parametrize(("name", "port", "rule"), list(_rules()), ids=str)
@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_an_overlay_that_leaves_loopback_out_is_not_named_for_it(name, port, rule, address):
    found = advice.overlay("connect-address", f"{address}:{port}")
    opens = [
        each
        for other in OVERLAYS
        for each in _values(other)["network.connect"] or ()
        if any(low <= port <= high for low, high in each.ports) and "loopback" not in each.except_
    ]
    assert bool(found) == bool(opens)


@pytest.mark.parametrize(
    "target",
    ["169.254.169.254:22", "[fe80::1]:22", "100.100.100.200:22", "10.1.2.3:23", "10.1.2.3:99999", "nonsense", ""],
)
def test_no_overlay_is_named_where_none_opens_it(target):
    assert advice.overlay("connect-address", target) == ""


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, path) for name in OVERLAYS for path in _values(name)["unix.allow"] if not path.startswith("/var/run/")],
)
def test_a_socket_that_an_overlay_opens_names_it(name, path):
    assert advice.overlay("unix-path", path) == name
    assert advice.overlay("unix-path", f"{path}/below") == name
    assert advice.overlay("unix-path", f"{path}-beside") == ""


def test_an_overlay_goes_before_the_handlers_own_text():
    assert "git-ssh" in advice.allow("connect-address", "connect 10.1.2.3:22", "something else")
    assert advice.allow("connect-address", "connect 10.1.2.3:23", "something else") == "something else"
    assert advice.allow("unheard-of", "an act") == advice.ASK
