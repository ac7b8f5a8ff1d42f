"""What a command line runs: whether a program fetches, interprets or passes on, and where an interpreter's code is.

Names and arguments only; nothing here asks the kernel. Option letters are those of the programs' manuals.
"""

from guard.kernel import basename

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FETCHER, INTERPRETER, WRAPPER, COPIER, OTHER = "fetcher", "interpreter", "wrapper", "copier", "other"

FETCHERS = {
    "curl", "wget", "wget2", "aria2c", "axel", "fetch", "http", "https", "httpie", "xh", "xhs", "curlie", "nc", "ncat",
    "netcat", "nc.openbsd", "nc.traditional", "socat", "ftp", "lftp", "lftpget", "tnftp", "lynx", "w3m", "links",
    "elinks", "rclone", "gsutil", "s3cmd", "GET", "lwp-request", "lwp-download",
}  # fmt: skip
"""Package managers, git, ssh, rsync and their kin are left out on purpose: what they bring is another policy."""

COPIERS = {
    "cat", "tac", "tee", "cp", "mv", "ln", "install", "dd", "base64", "base32", "basenc", "uudecode", "xxd", "gunzip",
    "gzip", "zcat", "pigz", "unpigz", "xz", "unxz", "xzcat", "bzip2", "bunzip2", "bzcat", "zstd", "unzstd", "zstdcat",
    "lz4", "lz4cat", "unlz4", "brotli", "openssl", "gpg", "sed", "tr", "head", "tail", "cut", "rev", "dos2unix",
    "iconv", "uncompress", "fold", "strings",
}  # fmt: skip
"""What comes out of these is what went in, in another place or form."""

# Start another program with the rest of their arguments, mostly by an exec that is judged in its turn; those that
# start it where nobody sees (another host, a batch job, another user) make it worth while to look ahead.
_WRAPPERS = {
    "sudo", "doas", "env", "nohup", "nice", "ionice", "chrt", "setsid", "stdbuf", "timeout", "time", "su", "runuser",
    "setpriv", "chroot", "unshare", "nsenter", "strace", "ltrace", "flock", "taskset", "numactl", "srun", "ssh",
    "docker", "podman", "kubectl", "unbuffer", "rlwrap", "catchsegv", "busybox", "toybox", "proxychains4",
    "torsocks", "systemd-run", "script", "xargs", "parallel",
}  # fmt: skip
# Their options that take the next word. What is not listed costs a look ahead, never a wrong refusal of plain work.
_WRAPPER_VALUES = {
    "sudo": "ugpCDhrtTRU", "doas": "uC", "env": "uC", "nice": "n", "ionice": "cnp", "stdbuf": "ioe", "timeout": "ks",
    "su": "sgGw", "runuser": "ugGsw", "strace": "opesaEPSuUX", "ltrace": "opeasunF", "flock": "wEc",
    "numactl": "CNmipP", "srun": "ApnNcJtwxoiekmM", "ssh": "bcDEeFIiJLlmOoPpQRSWw", "xargs": "ILnPsadE",
}  # fmt: skip
# Take their standard input as a job to run somewhere else.
_JOBS = {"sbatch", "at", "batch", "qsub", "bsub"}

# Letters: `code` take the program's text, `value` take another value, `module` end it all (python -m).
# `file` are options whose value is code to run as well, `long` those with two dashes that take a value.
_SHELL: "dict[str, object]" = {
    "code": "c",
    "stdin": "s",
    "value": "oO",
    "file": ("--rcfile", "--init-file"),
    "long": (),
}
_FAMILIES: "dict[str, dict[str, object]]" = {
    "sh": _SHELL,
    "fish": {"code": "c", "value": "dfDC", "file": (), "long": ("--debug", "--features", "--init-command")},
    "python": {"code": "c", "module": "m", "value": "WX", "file": (), "long": ("--check-hash-based-pycs",)},
    "perl": {"code": "eE", "value": "I", "rest": "MmiDF0lCxdV", "file": (), "long": ()},
    "ruby": {"code": "e", "value": "ICEr", "rest": "FTKxW0i", "file": (), "long": ()},
    "node": {"code": "ep", "value": "C", "file": ("-r", "--require", "--import", "--loader"),
             "long": ("--input-type", "--conditions", "--env-file"), "words": ("--eval", "--print")},
    "deno": {"code": "", "value": "cr", "file": (), "long": ("--config", "--import-map", "--preload"), "verb": "run"},
    "php": {"code": "rBRE", "value": "cdzSt", "file": ("-f", "--file"), "long": ("--define", "--php-ini"),
            "words": ("--run", "--process-code")},
    "lua": {"code": "e", "value": "l", "file": (), "long": ()},
    "tclsh": {"code": "", "value": "", "file": (), "long": ("-encoding",)},
    "expect": {"code": "c", "value": "", "file": ("-f",), "long": ()},
    "julia": {"code": "eE", "value": "Jpt", "file": ("-L", "--load"), "long": ("--project",), "words": ("--eval",)},
    "Rscript": {"code": "e", "value": "", "file": (), "long": ()},
    "R": {"code": "e", "value": "g", "file": ("-f",), "long": (), "plain": "data"},
    "awk": {"code": "", "value": "vFilL", "file": ("-f", "--file", "--exec", "-E"), "long": ("--assign",),
            "plain": "text"},
    "make": {"code": "", "value": "CIOWo", "file": ("-f", "--file", "--makefile"), "long": ("--directory", "--eval"),
             "plain": "data", "silent": True},
    "pwsh": {"code": "", "value": "", "file": ("-File", "-f"), "long": ("-ExecutionPolicy", "-WorkingDirectory"),
             "words": ("-Command", "-c", "-EncodedCommand", "-e")},
}  # fmt: skip
_NAMES = {
    **dict.fromkeys(("sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh", "pdksh", "yash", "csh",
                     "tcsh", "oksh", "lksh", "posh", "nu", "elvish", "xonsh", "hush"), "sh"),
    **dict.fromkeys(("python", "pypy", "ipython", "python3-dbg"), "python"),
    **dict.fromkeys(("ruby", "irb", "jruby"), "ruby"),
    **dict.fromkeys(("node", "nodejs", "ts-node", "tsx"), "node"), "bun": "deno", "deno": "deno",
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk", "original-awk"), "awk"),
    **dict.fromkeys(("make", "gmake"), "make"),
    **dict.fromkeys(("lua", "luajit"), "lua"),
    **dict.fromkeys(("tclsh", "wish"), "tclsh"),
    "fish": "fish", "perl": "perl", "php": "php", "php-cli": "php", "expect": "expect", "julia": "julia",
    "Rscript": "Rscript", "R": "R", "pwsh": "pwsh",
}  # fmt: skip
_FETCHING_SURELY = (
    "urlopen", "urlretrieve", "requests.get", "httpx.get", "LWP::", "open-uri", "Net::HTTP", "HTTP::Tiny",
)  # fmt: skip
_FETCHING = (
    *_FETCHING_SURELY, "fetch(", "http.get(", "https.get(", "file_get_contents", "readfile(", "create_connection",
)  # fmt: skip
_ENVIRONMENT = ("environ", "getenv", "process.env", "ENV[", "ENV{")
_EVALUATING = ("exec(", "eval(", "eval ", "system(", "compile(", "Function(")

_kinds: "dict[str, str]" = {}  # a pure function's answers, bounded


def family(name: str) -> "str | None":
    """The family of an interpreter by its program's name (`python3.11` is python); None for what is none."""
    return _NAMES.get(name) or _NAMES.get(name.rstrip("0123456789.-"))


def kind(name: str) -> str:
    """What sort of program a name stands for."""
    found = _kinds.get(name)
    if found is None:
        found = _kind(name)
        if len(_kinds) < 4096:
            _kinds[name] = found
    return found


def _kind(name: str) -> str:
    if name in FETCHERS:
        return FETCHER
    if name in _JOBS or family(name):
        return INTERPRETER
    if name in _WRAPPERS or name.startswith(("ld-linux", "ld-musl", "ld.so", "ld64.so", "crontab")):
        return WRAPPER
    return COPIER if name in COPIERS else OTHER


def meant(name: str, arguments: "Sequence[str]") -> "tuple[str, list[str]]":
    """The program that `env`, `sudo` and their like will start, with its arguments.

    Args:
        name: the file's name.
        arguments: with the zeroth.
    """
    rest = list(arguments)
    for _ in range(8):
        if kind(name) != WRAPPER or name in ("xargs", "parallel"):
            break
        inner = _inside(name, rest)
        if not inner:
            break
        rest = inner
        name = basename(rest[0])
    return name, rest


def _inside(name: str, words: "list[str]") -> "list[str]":
    """One wrapper taken off; [] where it starts nothing that can be told."""
    if name in ("busybox", "toybox"):
        applet = basename(words[0]) if words else name
        return words if applet not in (name, "busybox", "toybox", "") else words[1:]
    if name == "crontab":
        return ["sh"] if "-" in words[1:] else []
    if name == "script":
        return _split(_after(words, ("-c", "--command")))
    text = _after(words, ("-c", "--command")) if name in ("su", "runuser", "flock") else ""
    if text:
        return _split(text)
    if name == "env":
        text = _after(words, ("-S", "--split-string"))
        if text:
            return _split(text)
    at = _end_of_options(name, words)
    if name in ("docker", "podman", "kubectl"):
        return _in_container(words[at:])
    if name in ("ssh", "su", "runuser", "chroot", "flock", "taskset", "timeout", "nsenter"):
        if name in ("ssh", "flock", "chroot") or (name in ("taskset", "timeout") and words[at:]):
            at += 1  # the host, the lock's file, the new root, the mask, the time
        elif name in ("su", "runuser") and words[at:]:
            return []
    rest = words[at:]
    if name == "ssh" and rest:
        return _split(" ".join(rest))
    return rest


def _end_of_options(name: str, words: "list[str]") -> int:
    values = _WRAPPER_VALUES.get(name, "")
    at = 1
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1
        if name.startswith("ld") and word in ("--library-path", "--argv0", "--preload", "--audit", "--inhibit-rpath"):
            at += 1
        elif word.startswith("-") and word != "-":
            if word[1:2] != "-" and word[-1] in values and all(letter not in values for letter in word[1:-1]):
                at += 1
        elif not (name in ("env", "sudo") and "=" in word and not word.startswith("=")):
            return at
        at += 1
    return min(at, len(words))


def _in_container(words: "list[str]") -> "list[str]":
    """`exec -i NAME CMD`, `run --rm -i IMAGE CMD`: from the first interpreter on."""
    if words[:1] not in (["exec"], ["run"]):
        return []
    for at, word in enumerate(words):
        if at > 1 and kind(basename(word)) in (INTERPRETER, FETCHER):
            return words[at:]
    return []


def _after(words: "list[str]", options: "tuple[str, ...]") -> str:
    for at, word in enumerate(words[1:], 1):
        if word in options:
            return words[at + 1] if at + 1 < len(words) else ""
        if word.startswith("--") and word.partition("=")[0] in options:
            return word.partition("=")[2]
        if word[:1] == "-" and word[1:2] != "-" and word.endswith(options[0][1]) and word[1:].isalpha():
            return words[at + 1] if at + 1 < len(words) else ""
        if options[0] == "-S" and word.startswith("-S"):
            return word[2:]
    return ""


def _split(text: str) -> "list[str]":
    return [word.strip("'\"") for word in text.split()]


class Program:
    """Where an interpreter takes its code from.

    Attributes:
        stdin: its standard input is code.
        files: paths whose content is code.
        text: the code itself, where it is an argument.
    """

    __slots__ = ("files", "stdin", "text")

    def __init__(self, stdin: bool = False, files: "tuple[str, ...]" = (), text: "str | None" = None) -> None:
        self.stdin, self.files, self.text = stdin, files, text


_STDIN = ("/dev/stdin", "/proc/self/fd/0", "/dev/fd/0", "/proc/thread-self/fd/0")


def program(name: str, arguments: "Sequence[str]") -> "Program":
    """What an interpreter will run.

    Args:
        name: the program's name. arguments: with the zeroth.
    """
    if name in _JOBS:
        inline = name not in ("at", "batch") and any(not word.startswith("-") for word in arguments[1:])
        return Program(stdin=not inline and "-l" not in arguments)
    kin = family(name) or "sh"
    found = _parse(kin, arguments)
    files = tuple(path for path in found.files if path not in (*_STDIN, "-"))
    return Program(found.stdin or len(files) < len(found.files), files, found.text)


def _parse(kin: str, arguments: "Sequence[str]") -> "Program":
    row = _FAMILIES[kin]
    plain, by_option = str(row.get("plain", "file")), row["file"]
    assert isinstance(by_option, tuple)  # noqa: S101 - a row's type
    files: list[str] = []
    text = None
    coded = stdin = ended = False
    at = 1
    while at < len(arguments):
        word = arguments[at]
        at += 1
        following = arguments[at] if at < len(arguments) else ""
        if not ended and word.partition("=")[0] in by_option:
            if "=" in word:
                files.append(word.partition("=")[2])
            else:
                files.append(following)
                at += 1
        elif not ended and word == "-" and kin == "sh":
            ended = True
        elif not ended and word == "--":
            ended = True
            if kin in ("R", "make"):
                break
        elif not ended and word[:1] in ("-", "+") and word != "-":
            said = _option(kin, row, word, following)
            if said == "value":
                at += 1
            elif said == "stdin":
                stdin = True
            elif said == "end":
                return Program(False, tuple(files), "")
            elif said == "coded":
                coded = True
            elif said is not None:  # code that stands in the word or is the next
                text = said[1:] or following
                return Program(False, tuple(files), text)
        elif coded:
            return Program(False, tuple(files), word)
        elif stdin:
            break
        elif plain == "text":
            return Program(False, tuple(files), "" if files else word)
        elif plain == "data" or (word == row.get("verb") and not files):
            continue
        else:
            return Program(False, (*files, word), text)
    if coded:
        return Program(False, tuple(files), "")
    if kin == "make" or (plain == "text" and files):
        return Program(False, tuple(files))
    if kin == "R" and files:
        return Program(False, tuple(files))
    return Program(True, tuple(files))


def _option(kin: str, row: "dict[str, object]", word: str, following: str) -> "str | None":
    """What an option means: value, stdin, end, coded (the code comes later), `=TEXT`, or None for nothing."""
    words, longs = row.get("words", ()), row["long"]
    assert isinstance(words, tuple)  # noqa: S101 - a row's type
    assert isinstance(longs, tuple)  # noqa: S101 - a row's type
    head, equals, tail = word.partition("=")
    if head in words:
        return "=" + (tail if equals else "")
    if word in longs:
        return "value"
    if word in ("--version", "--help"):
        return "end"
    if word.startswith("--") or kin in ("tclsh", "pwsh"):
        return None
    code, value, rest = str(row["code"]), str(row["value"]), str(row.get("rest", ""))
    for at, letter in enumerate(word[1:], 1):
        if letter in code:
            if kin == "sh":
                return "coded"
            return "=" + word[at + 1 :] if kin != "node" else "="
        if letter in str(row.get("stdin", "")) and word[0] == "-":
            return "stdin"
        if letter in str(row.get("module", "")):
            return "end"
        if letter in value:
            return "value" if at == len(word) - 1 or kin == "sh" else None
        if letter in rest:
            return None
    return None


def from_list(name: str, arguments: "Sequence[str]") -> bool:
    """Whether xargs or parallel run what stands on their standard input as code."""
    words = list(arguments)
    at = _end_of_options(name, words)
    rest = words[at:]
    if name == "parallel":
        rest = rest[: rest.index(":::")] if ":::" in rest else rest
        if not rest:
            return ":::" not in words
    marker = "{}"
    for index, word in enumerate(words[:at]):
        if word == "-I" and index + 1 < at:
            marker = words[index + 1]
        elif word.startswith(("-I", "--replace=")) and len(word) > 2:
            marker = word.partition("=")[2] if "=" in word else word[2:]
    if not rest:
        return False
    inner, rest = meant(basename(rest[0]), rest)
    if rest and rest[0] == marker:
        return True
    if kind(inner) != INTERPRETER:
        return False
    found = program(inner, rest)
    return found.text is not None and (found.text.strip("'\" ") in ("", marker) or found.text == marker)


def fetches_in_code(text: str, arguments: "Sequence[str]" = ()) -> bool:
    """Whether an interpreter's code fetches by itself.

    Args:
        text: the code.
        arguments: of the command line, where the address may stand as well.
    """
    if any("://" in words for words in (text, *arguments)):
        return any(word in text for word in _FETCHING)
    return any(word in text for word in _ENVIRONMENT) and any(word in text for word in _FETCHING_SURELY)


def names_in_code(text: str) -> "list[str]":
    """The quoted words of code that may be names of files."""
    found: list[str] = []
    for quote in ("'", '"'):
        for word in text.split(quote)[1::2]:
            if word and len(word) < 256 and "://" not in word and not any(char in word for char in " \n\t{}()\0"):
                found.append(word)
    return found[:16]


def evaluates_what_it_fetches(text: str, arguments: "Sequence[str]" = ()) -> bool:
    """Whether code runs what it fetches: `exec(urlopen(…).read())`; see `fetches_in_code`."""
    if not fetches_in_code(text, arguments):
        return False
    for word in _EVALUATING:
        at = text.find(word)
        while at >= 0:
            near = text[at : at + 120].partition("\n")[0]
            if any(fetch in near for fetch in _FETCHING):
                return True
            at = text.find(word, at + 1)
    return False


def outputs(name: str, arguments: "Sequence[str]") -> "tuple[list[str], bool]":
    """The files that a fetcher's arguments name for what it fetches, and whether it writes to standard output too."""
    found: list[str] = []
    urls: list[str] = []
    remote = False
    folder = ""
    plain = name in ("curl", "curlie")  # options come in clusters, `-o` takes a file
    at = 1
    while at < len(arguments):
        word = arguments[at]
        at += 1
        following = arguments[at] if at < len(arguments) else ""
        head, equals, tail = word.partition("=")
        if head in ("--output", "--output-document", "--out", "--download-to"):
            found.append(tail if equals else following)
            at += not equals
        elif head in ("--directory-prefix", "--output-dir", "--dir"):
            folder = tail if equals else following
            at += not equals
        elif word in ("--remote-name", "--remote-name-all"):
            remote = True
        elif word.startswith("--") or word in ("-", ""):
            continue
        elif word.startswith("-"):
            letter, value = _cluster(name, word)
            if letter in ("o", "O") and plain and letter == "O":
                remote = True
            elif letter == ("O" if name.startswith("wget") else "o"):
                found.append(value or following)
                at += not value
            elif letter in ("P", "d") and not plain:
                folder = value or following
                at += not value
            elif letter == "=":
                at += 1
        else:
            urls.append(word)
    stdout = "-" in found or any(path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") for path in found)
    if name.startswith(("wget", "aria2c", "axel", "lftpget", "lwp-download")):
        remote = remote or not found
    elif plain:
        stdout = stdout or (len(found) < max(len(urls), 1) and not remote)
    else:
        stdout = stdout or not found
    names = [path for path in found if path and path != "-"]
    if remote:
        names += [name_ for url in urls for name_ in _remote_names(url, plain)]
    if folder:
        names = [path if path.startswith("/") else f"{folder}/{path}" for path in names]
    return names, stdout


# Letters of curl and wget that take the next word.
_CURL_VALUES, _WGET_VALUES = "AbcCdDeEFhHKmPQrtTuUwxXyYz", "aAeioBtTwQPUlDRIX"


def _cluster(name: str, word: str) -> "tuple[str, str]":
    """The deciding letter of a cluster of options, with the value that is stuck to it; `=` takes the next word."""
    if name.startswith("wget"):
        wanted, values = "OP", _WGET_VALUES
    elif name in ("curl", "curlie"):
        wanted, values = "oO", _CURL_VALUES
    else:
        wanted, values = "od", ""
    for at, letter in enumerate(word[1:], 1):
        if letter in wanted:
            return letter, "" if letter == "O" and name == "curl" else word[at + 1 :].lstrip("=")
        if letter in values:
            return ("=", "") if at == len(word) - 1 else ("", "")
    return "", ""


def _remote_names(url: str, plain: bool) -> "list[str]":
    path = url.partition("://")[2] or url
    path = path.partition("#")[0]
    bare = path.partition("?")[0]
    names = [basename(bare) if "/" in bare else ""]
    if not plain:
        names = [basename(bare) + path[len(bare) :] if "/" in bare else "", *names]
        names = [name or "index.html" for name in names]
        names += [f"{name}.{number}" for name in names[:1] for number in (1, 2, 3)]
    return [name for name in dict.fromkeys(names) if name]


def copies(name: str, arguments: "Sequence[str]") -> "tuple[list[str], list[str]]":
    """What a copying program reads and writes by name; nothing written means its standard output."""
    words = [word for word in arguments[1:] if not word.startswith("-") or word == "-"]
    if name == "dd":
        pairs = [word.partition("=") for word in words]
        return [value for key, _, value in pairs if key == "if"], [value for key, _, value in pairs if key == "of"]
    if name in ("cp", "mv", "ln", "install"):
        target = _after(list(arguments), ("-t", "--target-directory"))
        if target:
            words = [word for word in words if word != target]
            return words, [f"{target}/{basename(word)}" for word in words]
        if len(words) < 2:
            return words, [basename(word) for word in words] if name == "ln" else []
        *sources, last = words
        return sources, [last, *(f"{last}/{basename(word)}" for word in sources)]
    if name == "tee":
        return [], words
    options = [word for word in arguments[1:] if word[:1] == "-"]
    if name in _IN_PLACE and not any(_has(word, "c", "--stdout", "--to-stdout") for word in options):
        return words, [word.rpartition(".")[0] for word in words if "." in word]
    if name == "sed" and any(_has(word, "i", "--in-place") for word in options):
        return words, words
    if name in ("openssl", "gpg", "xxd", "brotli", "iconv"):
        out = _after(list(arguments), ("-o", "--output")) or _after(list(arguments), ("-out",))
        return words, [out] if out else words[1:2] if name == "xxd" else []
    if name == "dos2unix":
        return words, words
    return words, []


_IN_PLACE = {"gunzip", "gzip", "unxz", "xz", "bunzip2", "bzip2", "unzstd", "zstd", "unlz4", "lz4", "pigz", "unpigz",
             "uncompress", "brotli"}  # fmt: skip


def _has(word: str, letter: str, *longs: str) -> bool:
    """Whether an option is one of these, alone or in a cluster."""
    return word.partition("=")[0] in longs or (word[1:2] != "-" and letter in word[1:].partition(".")[0])
