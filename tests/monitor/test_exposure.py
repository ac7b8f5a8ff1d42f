"""Secrets in arguments: none is kept, each is told once, and ordinary arguments are left as they are."""

import base64
import json

import pytest

from guard.events.producer import Producer
from guard.monitor.exposure import Arguments
from guard.monitor.facts import Process
from guard.monitor.findings import Image
from guard.monitor.lineage import Tree
from guard.monitor.record import Recorder
from guard.monitor.telling import say
from guard.redact.marking import Marks
from tests.monitor.desk import arguments, token

KEY = token()
CASES = {
    "an option and its value": ("x", "--token", KEY),
    "behind an equals sign": ("x", f"--token={KEY}"),
    "in a header": ("curl", "-H", f"Authorization: Bearer {KEY}", "http://x"),
    "in a URL": ("git", "clone", f"https://u:{KEY}@example.org/r"),
    "in a script": ("sh", "-c", f"export T={KEY}; run --now"),
    "in a script of several lines": ("bash", "-c", f"cd /x\nexport GH_TOKEN='{KEY}'\nmake"),
    "the last of sixty": (*(f"arg{n}" for n in range(59)), KEY),
    "at byte 9,000": ("x", "y" * 8_996, KEY),
    "behind 9,000 bytes of one argument": ("x", "q" * 9_000 + " " + KEY),
    "in JSON": ("x", json.dumps({"token": KEY, "n": 1})),
    "quoted within quotes": ("bash", "-c", f'python3 -c "t=\\"{KEY}\\""'),
    "in the environment's place": ("env", f"GITHUB_TOKEN={KEY}", "make"),
    "in base64": ("x", base64.b64encode(f"token={KEY}".encode()).decode()),
}


@pytest.mark.parametrize("argv", CASES.values(), ids=CASES)
def test_a_key_is_redacted_and_told_wherever_it_stands(argv: tuple[str, ...]) -> None:
    found = arguments().redact(argv)
    assert len(found.argv) == len(argv)
    assert not any(KEY in word for word in found.argv)
    assert found.exposures
    assert KEY not in repr(found)


@pytest.mark.parametrize("cut", range(4, 37))
def test_a_key_split_over_two_arguments_leaves_neither_half(cut: int) -> None:
    found = arguments().redact(("x", KEY[:cut], KEY[cut:]))
    left = "\n".join(found.argv)
    assert KEY[cut:] not in left
    assert KEY[:cut] not in left
    assert len(found.exposures) == 1
    assert found.exposures[0].identity is not None
    whole = arguments().redact(("x", KEY)).exposures[0].identity
    assert found.exposures[0].identity == whole


def test_a_first_half_that_looks_like_a_name_is_no_name() -> None:
    halves = f"ya29.c.{token()[4:14]}_token", token()[4:40]
    found = arguments().redact(("x", *halves))
    assert not any(half in word for half in halves for word in found.argv)
    assert [each.identity for each in found.exposures] == [
        arguments().redact(("x", "".join(halves))).exposures[0].identity
    ]


def test_several_secrets_of_one_list_are_several_exposures() -> None:
    other = token()
    found = arguments().redact(("x", "--token", KEY, f"--next={other}", f"a={KEY}:{other}"))
    assert not any(KEY in word or other in word for word in found.argv)
    assert len({exposure.identity for exposure in found.exposures}) == 2


@pytest.mark.parametrize(
    "argv",
    [
        ("gcc", "-O2", "-c", "main.c", "-o", "main.o"),
        ("git", "checkout", "6b5ed8d2c1a9b8f1e8a3f4c5d6e7f8091a2b3c4d"),
        ("python3", "-m", "pytest", "-q", "tests/test_token.py"),
        ("make", "-j4", "PASSWORD_FILE=/etc/x"),
        ("sha256sum", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("", "-", "--"),
        ("x", "\udcff\udc80 not text"),
    ],
)
def test_ordinary_arguments_are_kept_as_they_are(argv: tuple[str, ...]) -> None:
    found = arguments().redact(argv)
    assert found.argv == argv
    assert found.exposures == ()


class Broken(Marks):
    def mark(self, span: object) -> bytes:
        raise RuntimeError("the key is gone")


def test_what_cannot_be_redacted_is_dropped_and_counted() -> None:
    broken = Arguments(Broken())
    found = broken.redact(("x", "--token", KEY))
    assert (found.argv, found.exposures) == ((), ())
    assert broken.dropped == 1
    assert broken.text(f"path {KEY}") == "[WITHHELD]"


def test_an_event_holds_no_byte_of_the_key_wherever_the_program_put_it() -> None:
    recorder = Recorder(Producer("monitor"), arguments())
    image = Image(f"/opt/{KEY}", "x", ("x", KEY, "-c", f"t={KEY}"))
    who = Process(1, 1, 1, 1000, KEY[:15].encode(), 1, 1)
    tree = Tree(1, 1, "claude", user="u", session="s")
    (exposure, *_) = arguments().redact(image.argv).exposures
    told = say("exposed-secret", f"about {KEY}", {"path": f"/x/{KEY}", "list": (KEY,)}, tree=tree, image=image, who=who,
               exposure=exposure)  # fmt: skip
    line = recorder.event(told).to_json().decode()
    assert KEY not in line
    assert KEY[4:] not in line
    detail = json.loads(line)["detail"]
    assert detail["key_id"]
    assert detail["advice"]


def test_a_long_argument_is_cut_without_cutting_a_marker() -> None:
    recorder = Recorder(Producer("monitor"), arguments())
    image = Image("/x", "x", ("x", "a " * 2040 + KEY + " end" * 100))
    event = recorder.event(say("tree-start", "x", {}, image=image, who=Process(1, 1, 1, 0, b"x", 1, 1)))
    assert "[REDACTED" not in event.process.argv[1] or "]" in event.process.argv[1].rpartition("[REDACTED")[2]
    assert len(event.process.argv[1]) <= 4200


def test_arguments_can_be_left_out_by_the_site() -> None:
    recorder = Recorder(Producer("monitor"), arguments(), record_argv=False)
    event = recorder.event(
        say("tree-start", "x", {}, image=Image("/x", "x", ("x", "y")), who=Process(1, 1, 1, 0, b"x", 1, 1))
    )
    assert event.process.argv == ()
    assert event.process.argc == 2
