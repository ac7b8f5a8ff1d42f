"""What a program's text does with what it is given: whether it evaluates it, and whether fetched words stand in it.

The kernel sees a shell that reads fetched data; whether `x=$(curl …)` or `eval "$(curl …)"` did it, only the text
tells. Texts alone are never a finding: they join what the kernel saw flow.
"""

from __future__ import annotations

import re

from guard.confine.handlers.commands import evaluates_what_it_fetches, family, program
from guard.monitor.findings import Image

SAMPLE_LEAST = 4
"""Bytes of a sample below which it says nothing."""
_SAMPLE_MOST = 32

# At the place of a command: after a separator, an opening, or a word that a command follows; within `bash -c '…'`, too.
_HERE = (
    r"(?:^|[;&|({`\n]|\b(?:then|do|else|time|exec|command|builtin|sudo|env|nohup)\s"
    r"|\b(?:bash|sh|zsh|dash|ksh)\s+(?:-\w+\s+)*-\w*c\s+[\"'])\s*"
)
_EVALUATES = re.compile(
    _HERE + r"(?:eval\b|(?:source|\.)\s+(?:<\(|/dev/(?:fd|stdin)|/proc/|[\"']?\$))"
    r"|" + _HERE + r"[\"']?\$\((?:[^()]|\([^()]*\))*\b(?:curl|wget|fetch|nc|ncat|socat|https?)\b"
    r"|<<<\s*[\"']?\$"
    r"|\b(?:trap|alias)\s+[^;\n]*\$\("
    r"|\b(?:bash|sh|zsh|dash|ksh)\s+(?:-\w+\s+)*-\w*c\s+[\"']?\$"
    r"|\bmapfile\b[^;\n]*-C|\bPROMPT_COMMAND=|\bBASH_ENV=",
    re.MULTILINE,
)
_SOURCES = re.compile(_HERE + r"(?:source|\.)\s+\S", re.MULTILINE)
_IN_PROCESS = {
    "python": re.compile(r"\b(?:exec|eval|compile|runpy|marshal\.loads|pickle\.loads|os\.system|subprocess)\b"),
    "node": re.compile(r"\beval\b|\bFunction\b|\bvm\.|\bimport\(|child_process|_compile"),
    "deno": re.compile(r"\beval\b|\bFunction\b|\bimport\("),
    "perl": re.compile(r"\beval\b|\bsystem\b|\bdo\b|\bexec\b|`|\bqx\b"),
    "ruby": re.compile(r"\beval\b|\binstance_eval\b|\bsystem\b|\bexec\b|`|%x"),
    "php": re.compile(r"\beval\b|\binclude\b|\brequire\b|\bsystem\b|\bassert\b|shell_exec|passthru"),
    "lua": re.compile(r"\bload(?:string)?\b|\bdofile\b|os\.execute"),
    "tclsh": re.compile(r"\beval\b|\bsource\b|\bexec\b"),
    "julia": re.compile(r"\beval\b|include_string|Meta\.parse|\brun\("),
    "Rscript": re.compile(r"\beval\b|\bsource\(|\bparse\(|\bsystem\("),
    "R": re.compile(r"\beval\b|\bsource\(|\bparse\(|\bsystem\("),
    "sh": re.compile(r"\beval\b|/dev/tcp/"),
}
_CONSTANT = re.compile(
    r"(?:^|[;\n])[ \t]*import [\w., ]+"
    r"|\b(?:os\.system|subprocess\.(?:run|call|check_call|check_output|Popen))\(\s*"
    r"(?:([\"'])[^\"'\\]*\1|\[(?:\s*([\"'])[^\"'\\]*\2\s*,?)*\s*\])"
    r"(?:\s*,\s*(?:shell|check|text|capture_output|cwd|timeout)\s*=\s*(?:True|False|\d+))*\s*\)"
)
"""In Python: an import, and a command that is written out, which is not made of anything fetched."""
_FETCHES = re.compile(
    r"://|/dev/tcp/|urlopen|urlretrieve|http\.client|HTTPConnection|requests\.|httpx\.|socket|create_connection|"
    r"\bfetch\(|https?\.get|\bnet\.|open-uri|Net::HTTP|LWP|HTTP::Tiny|file_get_contents|curl_|readLines|download|"
    r"\burl\("
)


def code_of(image: Image) -> str:
    """Return the code that stands in an interpreter's arguments, "" for none."""
    name = image.interpreter
    if not name:
        return ""
    return program(name, image.argv).text or ""


def evaluates(image: Image) -> bool:
    """Whether a shell's own text runs what it reads: `eval "$(…)"`, `source <(…)`, `. /dev/stdin`, `$(curl …)`."""
    return family(image.interpreter) in ("sh", "fish") and bool(_EVALUATES.search(code_of(image)))


def sources(image: Image) -> bool:
    """Whether a shell's own text sources some file."""
    return bool(_SOURCES.search(code_of(image)))


def only_checks(image: Image) -> bool:
    """Whether a shell reads its script and runs nothing of it: `bash -n`. An interactive one ignores that."""
    checks = False
    if family(image.interpreter) not in ("sh", "fish"):
        return False
    for word in image.argv[1:]:
        if word in ("-", "--") or word[:1] not in ("-", "+"):
            break
        if word.startswith("--"):
            checks = checks or word == "--no-execute"  # fish's
            continue
        if word[0] == "+" or not set(word).isdisjoint("ioO"):
            return False
        checks = checks or "n" in word
    return checks


def runs_what_it_fetched(image: Image) -> bool:
    """Whether an interpreter's own text both fetches and evaluates: `exec(urlopen(…).read())`."""
    text = code_of(image)
    if not text:
        return False
    if evaluates_what_it_fetches(text):
        return True
    kind = family(image.interpreter) or ""
    pattern = _IN_PROCESS.get(kind)
    evaluating = _CONSTANT.sub(" ", text) if kind == "python" else text
    return pattern is not None and bool(pattern.search(evaluating)) and bool(_FETCHES.search(text))


_BEFORE_COMMAND = re.compile(_HERE + r"$", re.MULTILINE)


def stands_in(samples: tuple[bytes, ...], image: Image) -> bool:
    """Whether what lately came from outside stands as a command in an interpreter's code.

    A value that is merely quoted in the code (an API's answer handed to a one-liner) is data, and is not told.

    Args:
        samples: first bytes of what came.
        image: the interpreter and its arguments.
    """
    code = code_of(image).encode("utf-8", "surrogateescape")
    if not code:
        return False
    for raw in samples:
        sample = raw.strip()[:_SAMPLE_MOST].rstrip()
        if len(sample) < SAMPLE_LEAST:
            continue
        at = code.find(sample)
        while at >= 0:
            before = code[max(0, at - 64) : at].decode("utf-8", "surrogateescape")
            if not before.strip() or _BEFORE_COMMAND.search(before):
                return True
            at = code.find(sample, at + 1)
    return False
