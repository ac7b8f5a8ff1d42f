"""monitor.toml: every key, and one clear error that shows the place for what is wrong."""

from pathlib import Path

import pytest

from guard.errors import PolicyError
from guard.monitor import settings
from guard.monitor.rules import NAMES
from guard.policy.source import parse_document


def read(text: str) -> settings.MonitorSettings:
    return settings.from_document(parse_document("monitor.toml", f"schema = 1\n{text}".encode()), NAMES)


def test_a_node_without_the_file_is_watched_by_the_defaults(tmp_path: Path) -> None:
    assert settings.load(str(tmp_path), NAMES) == settings.MonitorSettings()


def test_everything_that_a_site_may_say() -> None:
    site = read(
        """
[monitor]
unwrapped = "medium"
least_confidence = "high"
external = ["192.0.2.0/24"]
proxies = [3128]
users = [1000, 1001]
exempt_users = [1001]
record_argv = false
max_cost = 0.05
metrics_port = 9180
fail_closed = true
[severity]
hand-off = "medium"
io-uring = "off"
[enforce]
bind = "rewrite"
world-writable = "deny"
listen = "off"
[fetchers]
add = ["our-fetch"]
remove = ["pip"]
[launchers]
add = ["our-mpirun"]
[[bind_allow]]
addr = "10.0.0.0/8"
ports = "60001-63000"
exec = "/usr/bin/srun"
reason = "SrunPortRange"
[limits]
scheduler_polls = 5
[harness.ours]
programs = ["our-agent"]
confidence = "high"
[harness.claude]
programs = ["claude-site"]
"""
    )
    assert site.unwrapped == "medium"
    assert site.watches(1000)
    assert not site.watches(1001)
    assert not site.watches(1002)
    assert site.enforce == {"bind": "rewrite", "world-writable": "deny"}
    assert "our-fetch" in site.trusted
    assert "pip" not in site.trusted
    assert site.limits.scheduler_polls == 5
    assert site.limits.window == 60
    assert site.bind_allow[0].ports == ((60001, 63000),)
    assert site.catalogue.recognise("/opt/our-agent", "", ["our-agent"]) is not None
    assert site.catalogue.recognise("/usr/bin/claude", "", ["claude"]) is None


def test_a_site_that_trusts_no_fetcher() -> None:
    assert read('[fetchers]\nremove = ["*"]\nadd = ["apt"]').trusted == ("apt",)


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("[monitro]", "2:2", "did you mean monitor?"),
        ('[monitor]\nunwrapped = "loud"', "3:13", "one of off, info"),
        ("[monitor]\nmax_cost = 3", "3:12", "share of one processor"),
        ('[monitor]\nexternal = ["10.0.0.1/8"]', "3:13", "write 10.0.0.0/8"),
        ("[monitor]\nproxies = [70000]", "3:12", "from 0 to 65535"),
        ('[severity]\nworld-writeable = "low"', "3:1", "did you mean world-writable?"),
        ('[enforce]\nlisten = "rewrite"', "3:10", "one of off, deny"),
        ('[fetchers]\nremove = ["pipp"]', "3:12", "did you mean"),
        ('[fetchers]\nadd = ["/usr/bin/x"]', "3:8", "without directories"),
        ("[[bind_allow]]\nports = 80", "2:1", "needs a `reason`"),
        ("[limits]\nwindow = 0", "3:10", "at least 1"),
        ("[limits]\npolls = 3", "3:1", "unknown"),
        ('[harness.x]\ntitle = "X"', "2:1", "nothing to be recognised by"),
        ('[harness.x]\nprograms = "x"', "3:12", "is a list"),
        ('[harness.x]\nprograms = ["x"]\nruntimes = ["java"]', "4:13", "one of node, python"),
        ('[harness."a b"]\nprograms = ["x"]', "2:1", "is a name"),
    ],
)
def test_what_is_wrong_is_shown_with_its_place(text: str, place: str, says: str) -> None:
    with pytest.raises(PolicyError) as error:
        read(text)
    assert f"monitor.toml:{place.split(':')[0]}:" in str(error.value)
    assert says in str(error.value)


def test_a_file_without_a_schema_is_refused() -> None:
    with pytest.raises(PolicyError, match="schema is missing"):
        settings.from_document(parse_document("monitor.toml", b"[monitor]\n"), NAMES)
