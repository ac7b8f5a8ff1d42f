"""The judgement of curl|sh without a kernel: what flows where, what a command line runs, what a script says."""

from __future__ import annotations

import itertools
import random
import shlex

import pytest

from guard.confine.handlers import commands, scripts
from guard.confine.handlers.flow import FILE, Downloads, Flow

# A pipeline as its starts: source writes a pipe, filter reads and writes, sink reads.
Start = tuple[str, ...]
CURL, SH = ("source", "a"), ("sink", "a")
THROUGH_ONE = (("source", "a"), ("filter", "a", "b"), ("sink", "b"))
THROUGH_TWO = (("source", "a"), ("filter", "a", "b"), ("filter", "b", "c"), ("sink", "c"))


def _add(flow: Flow, start: Start) -> bool:
    kind, *pipes = start
    if kind == "source":
        return flow.add_source(pipes[0])
    if kind == "sink":
        return flow.add_sink(pipes[0])
    return flow.add_filter(*pipes)


@pytest.mark.parametrize("pipeline", [(CURL, SH), THROUGH_ONE, THROUGH_TWO])
def test_whichever_program_starts_last_completes_the_way(pipeline: tuple[Start, ...]) -> None:
    for order in itertools.permutations(pipeline):
        flow = Flow()
        assert [_add(flow, start) for start in order] == [False] * (len(order) - 1) + [True], order


@pytest.mark.parametrize("pipeline", [(CURL, SH), THROUGH_ONE, THROUGH_TWO])
def test_a_refusal_sticks_for_every_further_try(pipeline: tuple[Start, ...]) -> None:
    for order in itertools.permutations(pipeline):
        flow = Flow()
        for start in order:
            _add(flow, start)
        assert _add(flow, order[-1])
        assert _add(flow, order[-1])


@pytest.mark.parametrize(
    "starts",
    [
        (("source", "a"), ("sink", "b")),
        (("source", "a"), ("filter", "b", "c"), ("sink", "c")),
        (("source", "out"), ("sink", "in"), ("filter", "in", "out")),  # a shell fed by a pipe runs curl: not backwards
        (("source", "a"), ("filter", "a", "a"), ("sink", "b")),
        (("filter", "a", "b"), ("filter", "b", "a"), ("sink", "a")),
    ],
)
def test_what_does_not_lead_from_a_download_to_an_interpreter_is_left_alone(starts: tuple[Start, ...]) -> None:
    for order in itertools.permutations(starts):
        flow = Flow()
        assert not any(_add(flow, start) for start in order)


def test_a_pipe_that_nobody_holds_is_forgotten() -> None:
    flow = Flow()
    flow.add_source("a")
    flow.add_filter("a", "b")
    flow.forget({"c"})
    assert len(flow) == 0
    assert not flow.add_sink("a")  # the number came again


def test_what_went_through_a_dead_pipe_stays_known() -> None:
    flow = Flow()
    flow.add_filter("a", "b")
    flow.add_filter("b", "c")
    flow.forget({"a", "c"})
    flow.add_source("a")
    assert flow.add_sink("c")


def test_thousands_of_pipelines_leave_nothing_behind() -> None:
    flow = Flow()
    for number in range(20_000):
        flow.add_filter(f"{number}", f"{number + 1}")
        if len(flow) > 1024:
            flow.forget({f"{number + 1}"})
    assert len(flow) <= 1025


def test_a_file_at_the_end_of_a_way_is_told_once() -> None:
    flow = Flow()
    flow.add_filter("a", FILE + "/p/f")
    assert flow.take_files() == []
    flow.add_source("a")
    assert flow.take_files() == ["/p/f"]
    flow.add_source("a")
    assert flow.take_files() == []


def test_the_order_of_any_graph_does_not_change_whether_a_way_is_complete() -> None:
    chance = random.Random(7)
    for _ in range(200):
        pipes = "abcdef"
        starts = [("source", chance.choice(pipes)), ("sink", chance.choice(pipes))]
        starts += [("filter", *chance.sample(pipes, 2)) for _ in range(5)]
        found = set()
        for _ in range(6):
            chance.shuffle(starts)
            flow = Flow()
            answers = [_add(flow, start) for start in starts]
            found.add(any(answers))
        assert len(found) == 1, starts


# Files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "inode", "changed", "born", "expected"),
    [
        ("/p/f", 7, 101.0, 100.0, True),
        ("/p/other", 7, 101.0, 100.0, True),  # moved, or a hard link
        ("/p/f", 8, 101.0, 101.0, True),  # written anew under the same name
        ("/p/f", 7, 50.0, 40.0, False),  # the download failed: the file is older
        ("/p/other", 7, 101.0, 100.5, False),  # removed, and the number came again
        ("/p/other", 7, 101.0, 0.0, True),  # a file system that does not tell
        ("/p/other", 9, 101.0, 100.0, False),
    ],
)
def test_a_download_is_known_by_its_name_or_its_inode(
    path: str, inode: int, changed: float, born: float, expected: bool
) -> None:
    known = Downloads()
    known.add_name("/p/f", 100.0)
    known.add_inode(1, 7, 100.0, 100.0)
    assert known.has(path, 1, inode, changed, lambda: born) is expected


def test_downloads_are_bounded() -> None:
    known = Downloads()
    for number in range(20_000):
        known.add_name(f"/p/{number}", 1.0)
        known.add_inode(1, number, 1.0, 1.0)
    assert len(known) <= 2 * 8192
    assert known.may_be("19999", 0, 0)


# Command lines ----------------------------------------------------------------------------------------------

STDIN, NOTHING = "stdin", "nothing"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bash", STDIN), ("bash -s -- a b", STDIN), ("bash -", STDIN), ("bash -x", STDIN), ("dash -xe", STDIN),
        ("bash +x -s", STDIN), ("bash -o pipefail", STDIN), ("sh /dev/stdin", STDIN), ("sh /dev/fd/0 a", STDIN),
        ("zsh -f", STDIN), ("ksh -", STDIN), ("fish", STDIN), ("busybox sh", STDIN), ("busybox ash -s", STDIN),
        ("python3", STDIN), ("python3.11 -u", STDIN), ("python3 - a", STDIN), ("python3 -Xdev -", STDIN),
        ("python3 -W ignore", STDIN), ("perl", STDIN), ("perl -x", STDIN), ("perl -Mre -", STDIN), ("ruby -", STDIN),
        ("node", STDIN), ("node -", STDIN), ("php", STDIN), ("lua -", STDIN), ("R --no-save", STDIN),
        ("Rscript -", STDIN), ("awk -f /dev/stdin", STDIN), ("awk -f -", STDIN), ("make -f -", STDIN),
        ("expect -f -", STDIN), ("sbatch", STDIN), ("at now", STDIN), ("deno run -", STDIN),
        ("env -i A=1 bash -s", STDIN), ("env -S 'bash -s'", STDIN), ("sudo -u root bash", STDIN),
        ("nohup nice -n 5 sh", STDIN), ("timeout -s KILL 5 bash", STDIN), ("stdbuf -oL bash", STDIN),
        ("ssh -p 22 host bash -s", STDIN), ("ssh host 'sh -s'", STDIN), ("srun -n 1 bash", STDIN),
        ("docker exec -i c sh", STDIN), ("su -c 'bash -s' root", STDIN), ("flock /l sh", STDIN),
        ("/lib64/ld-linux-x86-64.so.2 /bin/bash", STDIN), ("crontab -", STDIN),
        ("bash x y", "x"), ("bash - x", "x"), ("bash -eo pipefail x", "x"), ("sh /dev/fd/63", "/dev/fd/63"),
        ("python3 -W ignore x", "x"), ("perl -w x", "x"), ("node x", "x"), ("bun x", "x"), ("make -f x", "x"),
        ("R -f x", "x"),
        ("timeout 5 python3 x", "x"), ("awk -f x y", "x"), ("deno run x", "x"),
        ("bash -c 'a b'", "=a b"), ("bash -lc a", "=a"), ("bash -o pipefail -c a", "=a"), ("sh -ec a b", "=a"),
        ("python3 -c a", "=a"), ("python3 -Ic a", "=a"), ("perl -ne a", "=a"), ("perl -i.bak -pe a x", "=a"),
        ("node -e a", "=a"), ("awk -F: a", "=a"), ("julia -e a", "=a"), ("fish -c a", "=a"), ("ruby -e a", "=a"),
        ("python3 -m json.tool", NOTHING), ("bash --version", NOTHING), ("make -j4", NOTHING), ("sbatch x", NOTHING),
    ],
)  # fmt: skip
def test_where_an_interpreter_takes_its_program_from(line: str, expected: str) -> None:
    words = shlex.split(line)
    name, words = commands.meant(words[0].rpartition("/")[2], words)
    assert commands.kind(name) == commands.INTERPRETER
    found = commands.program(name, words)
    if expected == STDIN:
        assert found.stdin
    elif expected == NOTHING:
        assert not found.stdin
        assert not found.files
        assert not found.text
    elif expected.startswith("="):
        assert (found.stdin, found.text) == (False, expected[1:])
    else:
        assert (found.stdin, found.files) == (False, (expected,))


def test_a_start_up_file_is_run_as_well() -> None:
    assert commands.program("bash", ["bash", "--rcfile", "/dev/fd/63", "-i"]).files == ("/dev/fd/63",)
    assert commands.program("node", ["node", "-r", "./a.js", "b.js"]).files == ("./a.js", "b.js")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("xargs sh -c", True), ("xargs -I{} sh -c {}", True), ("xargs -I % bash -c %", True), ("parallel", True),
        ("parallel sh -c {}", True), ("xargs -I{} {}", True),
        ("xargs", False), ("xargs rm", False), ("xargs -n1 sh -c 'echo $0'", False), ("xargs -0 -P4 python3 x", False),
        ("parallel gzip {}", False), ("xargs -n 1 wget", False), ("parallel ::: a b", False),
    ],
)  # fmt: skip
def test_whether_a_list_is_run(line: str, expected: bool) -> None:
    words = shlex.split(line)
    assert commands.from_list(words[0], words) is expected


@pytest.mark.parametrize(
    ("line", "names", "stdout"),
    [
        ("curl u", [], True), ("curl -fsSL u", [], True), ("curl -H a:b -d x u", [], True), ("curl -o- u", [], True),
        ("curl -o f u", ["f"], False), ("curl -sSLo f u", ["f"], False), ("curl -of u", ["f"], False),
        ("curl --output=f u", ["f"], False), ("curl u -o f", ["f"], False), ("curl -O http://h/f?q", ["f"], False),
        ("curl -fsSLO http://h/f", ["f"], False), ("curl --output-dir d -O http://h/f", ["d/f"], False),
        ("curl -o f u v", ["f"], True), ("wget -qO- u", [], True), ("wget -O - u", [], True),
        ("wget -O f http://h/x", ["f"], False), ("wget -nv http://h/x -O f", ["f"], False),
        ("aria2c -d d -o f u", ["d/f"], False), ("nc h 80", [], True), ("socat - TCP:h:80", [], True),
    ],
)  # fmt: skip
def test_where_a_fetcher_writes(line: str, names: list[str], stdout: bool) -> None:
    words = shlex.split(line)
    assert commands.outputs(words[0], words) == (names, stdout)


def test_wget_names_files_by_their_address_and_counts_them() -> None:
    found, stdout = commands.outputs("wget", ["wget", "-q", "-P", "d", "http://h/p/f.sh?x=1"])
    assert {"d/f.sh?x=1", "d/f.sh", "d/f.sh?x=1.1"} <= set(found)
    assert not stdout


@pytest.mark.parametrize(
    ("line", "sources", "targets"),
    [
        ("cp a b", ["a"], ["b", "b/a"]), ("mv -f a b c", ["a", "b"], ["c", "c/a", "c/b"]),
        ("install -m 755 a b", ["755", "a"], ["b", "b/755", "b/a"]), ("cp -t d a", ["a"], ["d/a"]),
        ("gunzip a.gz", ["a.gz"], ["a"]), ("gunzip -c a.gz", ["a.gz"], []),
        ("sed -i s/x/y/ a", ["s/x/y/", "a"], ["s/x/y/", "a"]),
        ("dd if=a of=b", ["a"], ["b"]), ("tee a b", [], ["a", "b"]), ("base64 -d a", ["a"], []),
    ],
)  # fmt: skip
def test_what_a_copying_program_reads_and_writes(line: str, sources: list[str], targets: list[str]) -> None:
    words = shlex.split(line)
    assert commands.copies(words[0], words) == (sources, targets)


@pytest.mark.parametrize("name", ["git", "pip", "npm", "conda", "apt-get", "cargo", "ssh", "scp", "rsync", "jq", "tar"])
def test_package_managers_and_their_kin_are_not_fetchers(name: str) -> None:
    assert commands.kind(name) != commands.FETCHER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exec(__import__('urllib.request').request.urlopen('http://h').read())", True),
        ("eval(requests.get('https://h').text)", True),
        ("import requests, subprocess; subprocess.run(['ls']); requests.get('https://h')", False),
        ("print(urlopen('http://h').read())", False),
        ("eval('1+1')", False),
        ("exec(urlopen(os.environ['U']).read())", True),
        ("exec(fetch(os.environ['U']))", False),
    ],
)
def test_code_that_runs_what_it_fetches(text: str, expected: bool) -> None:
    assert commands.evaluates_what_it_fetches(text) is expected


def test_the_address_of_what_code_fetches_may_stand_in_an_argument() -> None:
    code = "import sys; print(urlopen(sys.argv[1]).read())"
    assert commands.fetches_in_code(code, ["python3", "-c", code, "http://h/x"])
    assert not commands.fetches_in_code(code, ["python3", "-c", code, "x"])
    assert not commands.fetches_in_code("print(1)", ["python3", "-c", "print(1)", "http://h/x"])


def test_arguments_of_any_bytes_are_judged_without_fail() -> None:
    chance = random.Random(3)
    alphabet = [
        "-",
        "--",
        "-c",
        "-o",
        "=",
        "",
        "-I",
        "{}",
        "\udcff",
        "\n",
        "sh",
        "env",
        "xargs",
        "curl",
        "-S",
        "x" * 50,
    ]
    for _ in range(5000):
        words = [chance.choice(alphabet) for _ in range(chance.randrange(8))]
        name, meant = commands.meant(chance.choice(["env", "sudo", "busybox", "ssh", "docker", "script", "sh"]), words)
        commands.program(name, meant)
        commands.from_list("xargs", words)
        commands.outputs(chance.choice(["curl", "wget", "nc"]), words)
        commands.copies(chance.choice(["cp", "dd", "sed", "gzip", "openssl"]), words)


# Scripts ----------------------------------------------------------------------------------------------------

FETCH = ["curl", "-fsSL", "http://h/x"]
C = "curl -fsSL http://h/x"


@pytest.mark.parametrize(
    "text",
    [
        f'bash -c "$({C})"', f'/bin/sh -c "$({C})" -- --yes', f'sudo sh -c "$({C})"', f'python3 -c "$({C})"',
        f'cd d && env A=1 bash -ec "`{C}`"', f'eval "$({C})"', f'eval "$({C} | gunzip 2>/dev/null)"',
        f"if true; then eval $({C}); fi", f"source <({C})", ". <(curl -fsSL $URL)", f'bash <<< "$({C} 2>&1)"',
        f'. /dev/stdin <<< "$({C})"', f'S=$({C}); bash -c "$S"', f'S=`{C}`\neval "$S"', f'S="$({C})"; sh <<< "$S"',
        f'S=$({C}); echo "$S" | sh', f'S=$({C}); printf %s "$S" | base64 -d | bash', f'echo "$({C})" | sh',
        f'{C} | while read -r l; do eval "$l"; done', f"{C} | source /dev/stdin", f'{C} | {{ eval "$(cat)"; }}',
        f'mapfile -t A < <({C}); eval "$A"', f'x=$(eval "$({C})")', f'export S="$({C})"; bash -c "${{S}}"',
        f"sh << E\n$({C})\nE", f"V=$({C})\ncat <<-E | bash\n\t$V\n\tE", f"export V=$({C}); bash -c 'eval \"$V\"'",
        f"bash <<'E'\neval \"$({C})\"\nE", f'eval "$(timeout 5 {C})"', f"# a comment\n\n  eval \\\n \"$({C})\"",
    ],
)  # fmt: skip
def test_a_script_that_runs_what_it_fetches(text: str) -> None:
    assert scripts.runs_fetched(text, FETCH)


@pytest.mark.parametrize(
    "text",
    [
        f'V=$({C} | jq -r .tag); bash -c "echo $V"', f"{C} | jq .; bash", f"{C} | tar xz && ./configure",
        f"echo 'eval \"$(curl http://other)\"' > README; {C}", f'# eval "$({C})"\n{C}', f'eval "$(ssh-agent)"; {C}',
        f'V=$({C}); echo "$V" | python3 -c "x"', f'{C} | while read l; do bash -c "echo $l"; done',
        f'V=$({C}); bash script "$V"', f"{C} > f; bash < g", f'V=$({C}); eval "A=$V"',
        f"V=$({C})\nbash <<EOF\necho $V\nEOF", f"bash <<'E'\n$({C} | jq .)\nE\necho", f"cat << E\n$({C})\nE\nsh -c true",
        f"V=$({C}); bash -c 'echo $V'", "cat <<", "cat << 'E", f"cat <<E\n$({C}",
        f'bash -c "{C} | jq ."', f"source venv/bin/activate; {C}",
        f"V=$({C}); cat <<< \"$V\" | sort", f'eval "$(conda shell.bash hook)"; {C} -o f',
        "", "$(", '"', "`", "${", "<(",
        f'for u in $({C}); do wget "$u"; done', f"{C} | tee log | (bash < local.sh)",
    ],
)  # fmt: skip
def test_a_script_that_only_reads_what_it_fetches(text: str) -> None:
    assert not scripts.runs_fetched(text, FETCH)


@pytest.mark.parametrize("piece", ['echo "$(', "cat <<< $(", "x <<E\n", "cat << A\n$(", "bash -c 'x=$(curl); eval $x"])
def test_a_text_nested_as_deep_as_may_be_is_judged_without_fail(piece: str) -> None:
    assert not scripts.runs_fetched(piece * (65536 // len(piece)), FETCH)


def test_the_here_documents_of_an_interpreter() -> None:
    text = "cat > f << 'A'\nurlopen('http://h')\nA\nA=1 python3 - x << B | sh\nprint(1)\nB\npython3 <<-C\n\tprint(2)\n\tC\n"
    assert scripts.documents(text, "python") == "print(1)\n\n\tprint(2)"
    assert not scripts.documents(text, "perl")
    assert not scripts.documents("python3 -c 'print(1 << 2)'", "python")


def test_a_download_that_its_script_sources() -> None:
    fetch = ["curl", "-o", "env.sh", "http://h/x"]
    text = "curl -o env.sh http://h/x && . ./env.sh"
    assert scripts.runs_fetched(text, fetch, ["env.sh"])
    assert not scripts.runs_fetched("curl -o env.sh http://h/x; . /etc/env.sh", fetch, ["env.sh"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cd d && . ./f; x", ["./f"]), ('source "a b" c', ["a b"]), ("if true; then . f; fi", ["f"]),
        ('. "$F"', []), ("echo . f", []), ("ls .", []), ("find . -name x", []), ("# . f", []), ("", []),
    ],
)  # fmt: skip
def test_the_files_that_a_script_sources(text: str, expected: list[str]) -> None:
    assert scripts.sourced(text) == expected


def test_a_script_of_any_text_is_judged_without_fail_and_in_time() -> None:
    chance = random.Random(5)
    parts = [
        "$(",
        ")",
        "`",
        '"',
        "'",
        "\\",
        "<(",
        "<<<",
        "|",
        ";",
        "\n",
        "curl -fsSL http://h/x",
        "eval ",
        "${",
        "}",
        "#",
    ]
    for _ in range(2000):
        scripts.runs_fetched("".join(chance.choice(parts) for _ in range(40)), FETCH)
    scripts.runs_fetched("$(" * 20_000, FETCH)
    scripts.runs_fetched('eval "$(' * 5000, FETCH)
    scripts.runs_fetched("a" * 10_000_000, FETCH)
