"""Who gets what: floors, assignments, exceptions, harness overlays, and files that do not load."""

import calendar
import importlib.util
import os
import time

import pytest

from guard.errors import PolicyError
from guard.policy.assign import Config, Request, resolve
from guard.policy.last_good import keep
from guard.policy.load import loads

NOW = float(calendar.timegm((2026, 6, 15, 12, 0, 0)))

SHIPPED = {
    "base.toml": '[files]\nread = ["/usr"]\nwrite = ["{tmp}"]\ndeny = ["{home}/.ssh"]\n',
    "login-node.toml": (
        'extends = "base"\nreason = "work"\n[files]\nread = ["{home}", "{scratch}"]\nwrite = ["{project}"]\n'
        "[network]\nconnect = [443]\n[env]\ndrop = ['*_KEY']\n"
    ),
    "tight.toml": 'extends = "base"\n[files]\nread = ["{project}"]\n[network]\nconnect = []\n',
    "overlays/claude.toml": (
        'reason = "state"\nopens = "state"\n[files]\nwrite = ["{home}/.claude"]\n[env]\nkeep = ["ANTHROPIC_*"]\n'
    ),
    "overlays/gpu.toml": 'reason = "gpu"\nopens = "gpu"\n[files]\ndevices = ["/dev/nvidia*"]\n',
}


@pytest.fixture
def place(tmp_path):
    """A site's configuration, a user's, a project and shipped policies, each only with what a test writes."""

    class Place:
        root = tmp_path
        config = Config(
            config_dir=str(tmp_path / "etc"),
            user_config_dir=str(tmp_path / "user"),
            shipped_dir=str(tmp_path / "shipped"),
            floor_dir=str(tmp_path / "etc"),
            last_good_dir=str(tmp_path / "last-good"),
        )

        def write(self, name, text):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"schema = 1\n{text}")
            return path

        def resolve(self, config=None, **request):
            given = {"user": "ada", "uid": 7, "groups": ("users",), "host": "login1.cluster", "now": NOW}
            return resolve(Request(**{**given, **request}), config or self.config)

        def refusal(self, **request):
            with pytest.raises(PolicyError) as caught:
                self.resolve(**request)
            return str(caught.value)

    made = Place()
    (tmp_path / "etc").mkdir()
    (tmp_path / "project").mkdir()
    for name, text in SHIPPED.items():
        made.write(f"shipped/{name}", text)
    return made


def project(place, text):
    place.write("project/.guard.toml", text)
    return {"project_dir": str(place.root / "project")}


@pytest.fixture(scope="module")
def oracle():
    """What a policy permits, worked out without the code under test."""
    path = os.path.join(os.path.dirname(__file__), "oracle.py")
    spec = importlib.util.spec_from_file_location("oracle", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Without a site -------------------------------------------------------------------------------------


def test_without_a_site_login_node_is_the_base(place):
    got = place.resolve()
    assert (got.name, got.assigned_by, got.mode, got.expires) == ("login-node", "default", "enforce", None)
    assert got.words("files.read") == ("/usr", "{home}")
    assert got.origins["files.read"]["{home}"].line == 5
    assert got.origins["files.read"]["{home}"].reason == "work"
    assert [os.path.basename(layer) for layer in got.layers] == ["base.toml", "login-node.toml"]


def test_a_wellknown_variable_without_a_value_is_left_out_and_told(place):
    assert any("{scratch} left out" in note for note in place.resolve().notes)


def test_without_a_site_a_policy_may_be_named_or_given_by_path(place):
    assert place.resolve(policy="tight").words("files.read") == ("/usr", "{project}")
    path = place.write("mine.toml", 'extends = "base"\n[files]\nread = ["/opt"]\n')
    got = place.resolve(policy=str(path))
    assert (got.name, got.assigned_by) == ("mine", "--policy")
    assert got.words("files.read") == ("/usr", "/opt")


def test_a_name_is_never_a_path(place, monkeypatch):
    place.write("tight", "")
    monkeypatch.chdir(place.root)
    place.write("here.toml", "")
    for name in ("here.toml", "..", ".", "here", "shipped"):
        assert "there is no policy" in place.refusal(policy=name)
    assert "there is no such file" in place.refusal(policy="./nothing.toml")


def test_the_project_and_the_user_only_tighten(place):
    place.write("user/policy.toml", '[files]\nread = ["/usr", "/etc"]\n[env]\ndrop = ["X"]\n')
    got = place.resolve(**project(place, '[files]\nwrite = ["{project}/src", "/data"]\n'))
    assert got.words("files.write") == ("{project}/src",)
    assert got.words("files.read") == ("/usr",)
    assert got.words("env.drop") == ("*_KEY", "X")
    assert any("/data left out" in note for note in got.notes)
    assert any("/etc left out" in note for note in got.notes)


def test_a_project_layer_can_be_left_aside(place):
    given = project(place, "not toml")
    assert ".guard.toml:2:5: is not TOML" in place.refusal(**given)
    assert "--no-project-policy" in place.refusal(**given)
    assert place.resolve(use_project_layer=False, **given).words("files.write") == ("{tmp}", "{project}")


def test_a_project_file_extends_shipped_names_only(place):
    place.write("etc/policies/ours.toml", '[files]\nread = ["/etc"]\n')
    assert "there is no policy 'ours'" in place.refusal(**project(place, 'extends = "ours"\n'))
    assert "there is no overlay" in place.refusal(**project(place, 'overlays = ["nothing"]\n'))
    assert place.resolve(**project(place, 'extends = "tight"\n')).connect() == ()


def test_a_project_file_is_read_through_no_link_and_no_fifo(place):
    target = place.root / "project" / ".guard.toml"
    target.symlink_to("/etc/hostname")
    given = {"project_dir": str(place.root / "project")}
    assert "is a symbolic link" in place.refusal(**given)
    target.unlink()
    os.mkfifo(target)
    assert "is a FIFO" in place.refusal(**given)


def test_a_harness_gets_the_overlay_of_its_name(place):
    got = place.resolve(harness="claude")
    assert "{home}/.claude" in got.words("files.write")
    assert got.words("env.keep") == ("ANTHROPIC_*",)
    assert got.harness == "claude"


def test_a_program_named_like_an_overlay_is_no_harness(place):
    assert place.resolve(harness="gpu").words("files.devices") == ()


def test_a_harness_without_an_overlay_is_told(place):
    assert any("no overlay for the harness codex" in note for note in place.resolve(harness="codex").notes)


@pytest.mark.parametrize("where", ["user/policy.toml", "project/.guard.toml"])
def test_any_layer_can_switch_harness_overlays_off(place, where):
    place.write(where, '[harness]\noverlays = "off"\n')
    got = place.resolve(harness="claude", project_dir=str(place.root / "project"))
    assert "{home}/.claude" not in got.words("files.write")
    assert got.word("harness.overlays") == "off"


# extends --------------------------------------------------------------------------------------------


def test_a_sites_policy_may_extend_the_shipped_one_of_its_name(place):
    place.write("etc/policies/login-node.toml", 'extends = "login-node"\n[files]\nread = ["/opt"]\n')
    assert place.resolve().words("files.read") == ("/usr", "{home}", "/opt")


def test_a_circle_of_extends_names_the_chain_and_shows_the_place(place):
    place.write("etc/policies/a.toml", 'extends = "b"\n')
    place.write("etc/policies/b.toml", 'extends = "a"\n')
    message = place.refusal(policy="a")
    assert "extends goes in a circle: a → b → a" in message
    assert "b.toml:2:11:" in message
    place.write("shipped/self.toml", 'extends = "self"\n')
    assert "extends itself" in place.refusal(policy="self")


def test_a_chain_too_deep_is_refused(place):
    for index in range(12):
        place.write(f"etc/policies/p{index}.toml", f'extends = "p{index + 1}"\n')
    assert "more than 8 policies deep: p0 → p1" in place.refusal(policy="p0")


def test_an_unknown_base_or_overlay_shows_its_place_and_what_there_is(place):
    place.write("etc/policies/a.toml", 'extends = "bse"\n')
    assert "a.toml:2:11: there is no policy 'bse'" in place.refusal(policy="a")
    place.write("etc/policies/a.toml", 'overlays = ["gpu", "gpx"]\n')
    message = place.refusal(policy="a")
    assert "a.toml:2:20: there is no overlay 'gpx'" in message
    assert "there are claude, gpu" in message


# A site's floor and assignments ---------------------------------------------------------------------

SITE = '[variables]\nscratch = "/scratch/{user}"\n[files]\nwrite = ["{project}", "{scratch}", "{tmp}"]\n'


def test_site_toml_is_the_floor_of_every_layer(place):
    place.write("etc/site.toml", SITE)
    place.write("etc/policies/wide.toml", '[files]\nwrite = ["/", "{project}"]\n')
    for request in ({}, {"policy": "wide"}, project(place, '[files]\nwrite = ["/data", "{project}"]\n')):
        assert set(place.resolve(**request).words("files.write")) <= {"{project}", "/scratch/{user}", "{tmp}"}


def test_with_a_site_a_named_policy_is_one_more_layer_that_tightens(place):
    place.write("etc/site.toml", "")
    got = place.resolve(policy="tight")
    assert (got.name, got.assigned_by) == ("login-node", "site.toml")
    assert got.connect() == ()
    path = place.write("mine.toml", '[files]\nwrite = ["/", "{project}"]\n[network]\nconnect = "any"\n')
    got = place.resolve(policy=str(path))
    assert got.words("files.write") == ("{tmp}", "{project}")
    assert len(got.connect()) == 1


def test_site_variables_are_put_in(place):
    place.write("etc/site.toml", '[variables]\nscratch = ["/s1/{user}", "/s2"]\n')
    assert place.resolve().words("files.read") == ("/usr", "{home}", "/s1/{user}", "/s2")


def test_a_variable_that_makes_no_sense_shows_the_entry(place):
    place.write("etc/site.toml", '[variables]\nscratch = "relative"\n')
    message = place.refusal()
    assert "login-node.toml:5:19: with the site's variables put in: is relative" in message


ASSIGN = """\
[[assign]]
user = "eve"
mode = "off"
reason = "test account"
[[assign]]
group = ["canary", "staff"]
host = "login*"
policy = "tight"
[[assign]]
harness = "claude"
overlays = ["gpu"]
[[assign]]
mode = "observe"
"""


@pytest.mark.parametrize(
    ("request_", "by", "name", "mode"),
    [
        ({"user": "eve", "groups": ("canary",)}, "assign.toml:2", "login-node", "off"),
        ({"groups": ("users", "canary")}, "assign.toml:6", "tight", "enforce"),
        ({"groups": ("canary",), "host": "login2"}, "assign.toml:6", "tight", "enforce"),
        ({"groups": ("canary",), "host": "node7"}, "assign.toml:13", "login-node", "observe"),
        ({"harness": "claude"}, "assign.toml:10", "login-node", "enforce"),
        ({}, "assign.toml:13", "login-node", "observe"),
    ],
)
def test_the_first_row_that_matches_all_it_names_decides(place, request_, by, name, mode):
    place.write("etc/assign.toml", ASSIGN)
    place.write("etc/site.toml", "")
    got = place.resolve(**request_)
    assert (got.assigned_by, got.name, got.mode) == (by, name, mode)
    assert (got.words("files.devices") == ("/dev/nvidia*",)) == ("harness" in request_)


def test_a_canary_group_is_enforced_while_all_others_observe(place):
    place.write("etc/assign.toml", '[[assign]]\ngroup = "canary"\n[[assign]]\nmode = "observe"\n')
    assert place.resolve(groups=("canary",)).mode == "enforce"
    assert place.resolve().mode == "observe"


def test_assignments_alone_make_a_site(place):
    place.write("etc/assign.toml", '[[assign]]\npolicy = "tight"\n')
    assert place.resolve(policy="login-node").words("files.write") == ("{tmp}",)


def test_a_row_that_names_nothing_known_shows_its_place(place):
    for text, where in (
        ('[[assign]]\npolicy = "tihgt"\n', "assign.toml:3:10: there is no policy 'tihgt'"),
        ('[[assign]]\noverlays = ["x"]\n', "assign.toml:3:13: there is no overlay 'x'"),
        ('[[assign]]\nmode = "on"\n', "assign.toml:3:8: mode is one of"),
        ('[[assign]]\nusre = "x"\n', "did you mean user?"),
        ("[[assign]]\nuser = []\n", "would match nobody"),
        ("[assign]\n", "is a list, not a table"),
    ):
        place.write("etc/assign.toml", text)
        assert where in place.refusal()


def test_another_configuration_than_roots_widens_nothing(place):
    place.write("etc/site.toml", SITE)
    place.write("mine/site.toml", "")
    place.write("mine/policies/login-node.toml", '[files]\nread = ["/"]\nwrite = ["/", "{project}"]\n')
    moved = Config(
        config_dir=str(place.root / "mine"),
        shipped_dir=place.config.shipped_dir,
        floor_dir=place.config.floor_dir,
        last_good_dir=None,
    )
    place.write("mine/assign.toml", '[[assign]]\nmode = "off"\n')
    got = place.resolve(config=moved)
    assert got.mode == "enforce"
    assert set(got.words("files.write")) <= set(place.resolve().words("files.write"))
    assert set(got.words("files.read")) <= {*place.resolve().words("files.read"), "{tmp}", "{scratch}"}


def test_overlays_asked_for_by_a_caller_count_only_where_no_site_decides(place):
    assert place.resolve(overlays=("gpu",)).words("files.devices") == ("/dev/nvidia*",)
    place.write("etc/site.toml", "")
    assert place.resolve(overlays=("gpu",)).words("files.devices") == ()


# Exceptions -----------------------------------------------------------------------------------------


def exception(**given):
    rows = {
        "group": '"lab"',
        "control": '"files"',
        "widen": '{ "files.write" = ["/data"] }',
        "reason": '"the lab\'s instrument"',
        "ticket": '"T-1"',
        "until": "2026-06-15",
        **given,
    }
    return "[[exception]]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items() if value)


def test_an_exception_widens_one_group_only(place):
    place.write("etc/site.toml", SITE)
    place.write("etc/exceptions.d/lab.toml", exception())
    lab = place.resolve(groups=("lab",))
    assert "/data" in lab.words("files.write")
    assert lab.exceptions == ("lab.toml#T-1",)
    assert lab.origins["files.write"]["/data"].reason == "the lab's instrument"
    others = place.resolve()
    assert "/data" not in others.words("files.write")
    assert (others.exceptions, others.expires) == ((), None)


@pytest.mark.parametrize(
    ("until", "ends"),
    [
        ("2026-06-15", (2026, 6, 16, 0, 0, 0)),  # a date holds to the end of its day, UTC
        ("2026-06-15T13:00:00Z", (2026, 6, 15, 13, 0, 0)),
        ("2026-06-15T13:00:00", (2026, 6, 15, 13, 0, 0)),
        ("2026-06-15 15:00:00+02:00", (2026, 6, 15, 13, 0, 0)),
    ],
)
def test_an_exception_ends_on_its_date(place, until, ends):
    place.write("etc/site.toml", SITE)
    place.write("etc/exceptions.d/lab.toml", exception(until=until))
    end = float(calendar.timegm(ends))
    got = place.resolve(groups=("lab",), now=end - 1)
    assert got.expires == end
    assert "/data" in got.words("files.write")
    got = place.resolve(groups=("lab",), now=end)
    assert "/data" not in got.words("files.write")
    assert (got.exceptions, got.expires) == ((), None)


def test_the_first_end_counts_and_distant_ones_are_no_trouble(place):
    place.write("etc/site.toml", SITE)
    place.write("etc/exceptions.d/a.toml", exception(until="9999-12-31") + exception(until="2026-07-01"))
    assert place.resolve(groups=("lab",)).expires == float(calendar.timegm((2026, 7, 2, 0, 0, 0)))


def test_an_exception_is_above_the_users_own_layers(place):
    place.write("etc/site.toml", SITE)
    place.write("etc/exceptions.d/lab.toml", exception())
    place.write("user/policy.toml", '[files]\nwrite = ["{project}"]\n')
    assert place.resolve(groups=("lab",)).words("files.write") == ("{project}",)


def test_an_exception_may_take_back_a_refusal(place):
    place.write("etc/site.toml", SITE)
    place.write("etc/exceptions.d/lab.toml", exception(widen='{ "files.deny" = ["{home}/.ssh"] }'))
    assert place.resolve(groups=("lab",)).words("files.deny") == ()
    assert place.resolve().words("files.deny") == ("{home}/.ssh",)


def test_an_exception_without_a_site_is_nobodys(place):
    place.write("etc/exceptions.d/lab.toml", exception())
    assert "/data" not in place.resolve(groups=("lab",)).words("files.write")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"reason": ""}, "needs 'reason'"),
        ({"until": ""}, "needs 'until'"),
        ({"until": '"2026-06-15"'}, "without quotes"),
        ({"until": "12:00:00"}, "without quotes"),
        ({"user": '"x"'}, "one subject"),
        ({"group": ""}, "one subject"),
        ({"group": "", "everyone": "false"}, "one subject"),
        ({"control": '"file"'}, "unknown control"),
        ({"control": '"world_writable"'}, "did you mean world-writable?"),
        ({"control": '"bind"'}, "belongs to the control files"),
        ({"widen": "{}"}, "widens nothing"),
        ({"widen": '{ "files.wrte" = [] }'}, "did you mean files.write?"),
        ({"widen": "{ files = { wrte = [] } }"}, "did you mean files.write?"),
        ({"widen": '{ "files.write" = ["data"] }'}, "is relative"),
        ({"widen": '{ "files.write" = ["{nothing}"] }'}, "unknown variable"),
        ({"tikcet": '"x"'}, "did you mean ticket?"),
    ],
)
def test_a_mistake_in_an_exception_is_told(place, given, sentence):
    place.write("etc/site.toml", SITE)
    place.write("etc/exceptions.d/lab.toml", exception(**given))
    message = place.refusal()
    assert sentence in message
    assert "lab.toml:" in message


# Site files that do not load ------------------------------------------------------------------------


def good(place):
    place.write("etc/site.toml", SITE)
    place.write("etc/assign.toml", '[[assign]]\npolicy = "ours"\n')
    place.write("etc/policies/ours.toml", 'extends = "tight"\n')
    place.write("etc/exceptions.d/lab.toml", exception())
    config = place.config
    assert keep(config.config_dir, config.shipped_dir, config.last_good_dir, NOW) == []


@pytest.mark.parametrize("name", ["site.toml", "assign.toml", "policies/ours.toml", "exceptions.d/lab.toml"])
def test_a_site_file_that_does_not_load_keeps_the_last_good_ones_in_force(place, name):
    good(place)
    before = place.resolve(groups=("lab",))
    place.write(f"etc/{name}", "broken")
    got = place.resolve(groups=("lab",))
    assert got.digest == before.digest
    assert name.split("/")[-1] in got.alerts[0]
    assert str(place.root / "etc" / name) in got.sources
    assert before.alerts == ()


def test_what_does_not_load_never_becomes_the_last_good(place):
    good(place)
    place.write("etc/assign.toml", "broken")
    config = place.config
    assert keep(config.config_dir, config.shipped_dir, config.last_good_dir, NOW) != []
    assert place.resolve().name == "ours"


def test_without_a_last_good_copy_nothing_starts(place):
    place.write("etc/site.toml", "broken")
    assert "site.toml:2:7:" in place.refusal()


def test_a_copy_that_others_could_have_written_is_not_taken(place):
    good(place)
    place.write("etc/site.toml", "broken")
    (place.root / "last-good").chmod(0o777)
    assert "site.toml:2:7:" in place.refusal()


def test_a_copy_without_a_site_does_not_hand_the_decision_to_the_user(place):
    place.write("etc/site.toml", "broken")
    (place.root / "last-good").mkdir()
    assert "site.toml:2:7:" in place.refusal(policy="tight")


def test_a_users_broken_file_is_his_own_trouble(place):
    good(place)
    place.write("user/policy.toml", "broken")
    assert "user/policy.toml:2:7:" in place.refusal()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_configuration_that_cannot_be_read_is_not_taken_for_none(place):
    place.write("etc/site.toml", SITE)
    (place.root / "etc").chmod(0)
    try:
        assert "cannot be looked for" in place.refusal()
    finally:
        (place.root / "etc").chmod(0o755)


# What is handed on ----------------------------------------------------------------------------------


def test_the_text_gives_the_values_and_the_digest_again(place):
    from guard.policy import layers
    from guard.policy.canonical import digest_of, values_of

    place.write("etc/site.toml", SITE)
    place.write("etc/assign.toml", '[[assign]]\nmode = "observe"\n')
    place.write(
        "etc/policies/login-node.toml",
        'extends = "login-node"\n[network]\nconnect = [{ ports = ["1-9", 22], except = ["metadata"] }]\n'
        'bind_allow = [{ addr = "10.0.0.0/8", ports = "5-6", exec = "/bin/srun", reason = "a \\"b\\"" }]\n'
        '[limits]\nmemory = 5\n[files]\nread = ["/a\\\\b\\"c"]\n',
    )
    got = place.resolve(harness="claude")
    again = loads(got.text.encode(), "again.toml")
    values = values_of(layers.complete(again.settings))
    assert values == got.values
    assert digest_of(again.name, values, "observe") == got.digest
    assert got.text.startswith("# mode: observe\n")


def test_the_digest_follows_name_values_and_mode_alone(place):
    one = place.resolve()
    assert place.resolve(now=NOW + 9, host="other").digest == one.digest
    assert place.resolve(policy="tight").digest != one.digest
    place.write("etc/assign.toml", '[[assign]]\nmode = "observe"\n')
    assert place.resolve().digest != one.digest


def test_every_file_that_would_change_the_answer_is_a_source(place):
    place.write("etc/site.toml", "")
    place.write("etc/exceptions.d/lab.toml", exception())
    got = place.resolve(harness="claude", project_dir=str(place.root / "project"))
    for name in (
        "etc/site.toml",
        "etc/assign.toml",
        "etc/exceptions.d",
        "etc/exceptions.d/lab.toml",
        "etc/policies/login-node.toml",
        "shipped/login-node.toml",
        "shipped/base.toml",
        "etc/policies/overlays/claude.toml",
        "shipped/overlays/claude.toml",
        "project/.guard.toml",
        "user/policy.toml",
    ):
        assert str(place.root / name) in got.sources, name


def test_resolving_is_quick(place):
    started = time.process_time()
    place.resolve(harness="claude")
    assert time.process_time() - started < 0.5


_SITES = (
    '[files]\nread = ["/usr", "{home}"]\nwrite = ["{project}"]\ndeny = ["{home}/.ssh"]\n',
    "[network]\nconnect = [443]\nbind = 'deny'\n[limits]\nprocesses = 10\n",
    "[controls]\nfiles = 'enforce'\n[harness]\noverlays = 'off'\n[env]\ndrop = ['*_TOKEN']\nkeep = []\n",
)
_LOWER = (
    'reason = "x"\n[files]\nread = ["/"]\nwrite = ["/"]\ndeny = []\n[network]\nconnect = "any"\nbind = "any"\n',
    '[env]\nkeep = ["*"]\ndrop = []\n[limits]\nprocesses = 1000000\n[controls]\nfiles = "off"\nbind = "observe"\n',
    'extends = "tight"\noverlays = ["gpu"]\n[unix]\nabstract = "allow"\n[kernel]\nbpf = "allow"\n',
    '[files]\nwrite = ["{project}/a", "/data"]\n[modes]\nsetuid = "off"\n[project]\nworktrees = true\n',
)


@pytest.mark.parametrize("site", range(len(_SITES)))
@pytest.mark.parametrize("lower", range(len(_LOWER)))
@pytest.mark.parametrize("harness", ["", "claude"])
def test_whatever_users_write_permits_nothing_that_the_site_refuses(place, oracle, site, lower, harness):
    place.write("etc/site.toml", _SITES[site])
    upper = place.resolve(harness=harness)
    path = str(place.write("mine.toml", _LOWER[lower]))
    given = project(place, _LOWER[lower])
    place.write("user/policy.toml", _LOWER[lower])
    for request in ({"policy": path}, given, {"policy": path, **given}, {"policy": "tight", **given}):
        got = place.resolve(harness=harness, overlays=("gpu",), **request)
        more = [act for act in oracle.ACTS if oracle.permits(got.values, act) and not oracle.permits(upper.values, act)]
        assert more == []
