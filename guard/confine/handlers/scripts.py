"""What a shell's own text says it will do with what it fetches: `eval "$(curl …)"` never starts a program.

Harnesses run `bash -c TEXT`, and scripts are files: the text can be read when the shell starts the fetcher in it.
Only a fetch whose words are those of the fetcher that starts counts, so that a text that merely speaks of one is
left alone. Not a shell's parser: quotes, substitutions, comments and operators, which is what the forms need.
"""

from guard.confine.handlers import commands
from guard.kernel import basename

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_TEXT, _MOST_DEPTH = 65536, 6
_MOST_DOCUMENTS, _MOST_EXPANDED = 16, 2048  # of a here-document only what it begins with says something
_RESERVED = {"then", "do", "else", "elif", "if", "while", "until", "!", "{", "}", "fi", "done", "time", "coproc",
             "builtin", "command", "exec", "trap"}  # fmt: skip


_DECLARES = {"local", "export", "declare", "typeset", "readonly"}
_STDIN = {"/dev/stdin", "/proc/self/fd/0", "/dev/fd/0"}
_FROM_INPUT = {"cat", "cat -", "</dev/stdin", "< /dev/stdin"}


class _Word:
    """One word: its text without quotes, substitutions as NUL; what is substituted; the variable it consists of.

    Of a here-document, which is one as well, the lines as they stand there.
    """

    __slots__ = ("document", "inner", "literal", "text", "variables")

    def __init__(self) -> None:
        self.text = ""
        self.document = ""
        self.literal = True  # nothing in it is expanded
        self.inner: list[str] = []
        self.variables: list[str] = []


def runs_fetched(text: str, fetcher: "Sequence[str]", written: "Sequence[str]" = ()) -> str:
    """Whether a script runs what this fetcher brings; returns the form, "" for none.

    Args:
        text: the script's.
        fetcher: the arguments of the fetcher that is about to start, with the zeroth.
        written: the names of the files that it was told to write.
    """
    if len(text) > _MOST_TEXT or not fetcher:
        return ""
    return _Script(fetcher, written).form(text, 0)


def sourced(text: str) -> "list[str]":
    """The files that a script names plainly after `.` or `source`."""
    if len(text) > _MOST_TEXT or not any(word in text for word in (". ", "source ")):
        return []
    found: list[str] = []
    for pipeline in _pipelines(_tokens(text)):
        for stage in pipeline:
            words = [word for word in _words(stage) if word.text not in _RESERVED]
            if len(words) > 1 and words[0].text in (".", "source") and words[1].literal:
                found.append(words[1].text)
    return found[:16]


def documents(text: str, family: "str | None") -> str:
    """The here-documents that a script gives to the interpreters of a family."""
    if len(text) > _MOST_TEXT or "<<" not in text:
        return ""
    found: list[str] = []
    for pipeline in _pipelines(_tokens(text)):
        for stage in pipeline:
            if any(commands.family(basename(word.text)) == family for word in _words(stage)):
                found += [token.document for token in stage if isinstance(token, _Word)]
    return "\n".join(found).strip()


class _Script:
    def __init__(self, fetcher: "Sequence[str]", written: "Sequence[str]") -> None:
        self._name = basename(fetcher[0])
        self._given = set(fetcher[1:])
        self._written = {path.removeprefix("./") for path in written}
        self._variables: set[str] = set()
        self._descriptors: set[str] = set()
        self._loop = False
        self._within = 0  # how many substitutions are being looked into

    def form(self, text: str, depth: int) -> str:
        """The first form found in a text."""
        if depth > _MOST_DEPTH:
            return ""
        pipelines = _pipelines(_tokens(text))
        # `while read l; do eval "$l"; done < <(curl …)`: what feeds a loop stands behind it.
        self._loop = any(
            self._brings_in(stage) and _words(stage)[:1] and _words(stage)[0].text in _CLOSES
            for pipeline in pipelines
            for stage in pipeline
        )
        for pipeline in pipelines:
            fetched = printed = False  # whether an earlier stage brings the download, or a copy that the shell kept
            for stage in pipeline:
                found = self._stage(stage, fetched or printed, printed, depth)
                if found:
                    return found
                fetched = fetched or self._fetches(stage)
                printed = printed or self._prints(stage)
        return ""

    def _stage(self, tokens: "list[_Word | str]", fetched: bool, printed: bool, depth: int) -> str:
        here = _input(tokens)  # what the shell itself puts on the command's standard input
        number = _number(tokens)
        if number and self._brings_in(tokens):
            self._descriptors.add(f"/dev/fd/{number}")  # `exec 5< <(curl …)`
        words = _words(tokens)
        every, words = words, self._assign(words)
        if not words:
            return self._deeper(every, depth)
        brought = fetched or self._loop if here is None else self._brings(here)
        if words[0].text == "read" and brought:
            self._variables.update(word.text for word in words[1:] if not word.text.startswith("-"))
        if words[0].text in ("mapfile", "readarray") and brought:
            self._variables.add(words[-1].text)
        kept = brought if here is not None else printed
        return self._runs(words, brought, kept, depth) or self._deeper(every, depth)

    def _runs(self, words: "list[_Word]", fetched: bool, kept: bool, depth: int) -> str:
        """Whether a command runs it.

        Args:
            words: the command's.
            fetched: its standard input is the download. kept: the shell itself put it there: no exec will tell.
            depth: how many texts this one stands in.
        """
        name = basename(words[0].text)
        arguments = [word.text for word in words]
        if name == "eval":
            if any(self._brings(word) or (fetched and _reads_stdin(word)) for word in words[1:]):
                return "eval"
            return ""
        if name in (".", "source"):
            if len(words) < 2:
                return ""
            what = words[1]
            if self._brings(what) or (what.literal and what.text.removeprefix("./") in self._written):
                return "source"
            if (what.text in _STDIN and fetched) or what.text in self._descriptors:
                return "source"
            return ""
        name, arguments = commands.meant(name, arguments)
        if commands.kind(name) != commands.INTERPRETER:
            return ""
        run = commands.program(name, arguments)
        if run.text is not None:
            for word in words[1:]:
                if word.text == run.text and self._brings(word):
                    return f"an argument of {name}"
            if self._variables and commands.family(name) == "sh" and "\0" not in run.text:
                return self.form(run.text, depth + 1)  # it evaluates what it got as a variable
        elif run.stdin and kept:
            return f"the standard input of {name}"
        return ""

    def _deeper(self, words: "list[_Word]", depth: int) -> str:
        """What stands in substitutions is a script too."""
        for word in words:
            for inner in word.inner:
                found = self.form(inner, depth + 1)
                if found:
                    return found
        return ""

    def _assign(self, words: "list[_Word]") -> "list[_Word]":
        """Take the assignments and reserved words off the front; remember variables that hold the download."""
        at = 0
        while at < len(words):
            text = words[at].text
            name, equals, rest = text.partition("=")
            name = name.removesuffix("+")
            if equals and name.replace("_", "a").isalnum() and not name[:1].isdigit():
                if self._brings(words[at], rest):
                    self._variables.add(name)
            elif not (
                text in _DECLARES or text in _RESERVED or (at and text[:1] == "-" and words[at - 1].text in _DECLARES)
            ):
                break
            at += 1
        return words[at:]

    def _brings(self, word: "_Word", text: "str | None" = None) -> bool:
        """Whether a word begins with the download: a substitution that fetches, or a variable that holds it."""
        text = word.text if text is None else text
        if not text.lstrip().startswith("\0"):
            return False
        return any(self._substitutes(inner) for inner in word.inner[:1]) or any(
            name in self._variables for name in word.variables[:1]
        )

    def _brings_in(self, tokens: "list[_Word | str]") -> bool:
        here = _input(tokens)
        return here is not None and self._brings(here)

    def _substitutes(self, inner: str) -> bool:
        if self._within >= _MOST_DEPTH:
            return False
        self._within += 1
        stages = (stage for pipeline in _pipelines(_tokens(inner)) for stage in pipeline)
        found = any(self._fetches(stage) or self._prints(stage) for stage in stages)
        self._within -= 1
        return found

    def _prints(self, stage: "list[_Word | str]") -> bool:
        """`echo "$S"`, `printf %s "$(curl …)"`, `cat <<< "$S"`."""
        words = self._assign(_words(stage))
        name = basename(words[0].text) if words else ""
        if name not in ("echo", "printf", "print", "cat"):
            return False
        return any(self._brings(word) for word in words[1:]) or (name == "cat" and self._brings_in(stage))

    def _fetches(self, stage: "list[_Word | str]") -> bool:
        """Whether a command is the fetcher that starts: its literal words are among those given."""
        words = self._assign(_words(stage))
        texts = [word.text for word in words]
        at = next((at for at, text in enumerate(texts) if basename(text) == self._name), -1)
        if at < 0 or (at and commands.kind(basename(texts[0])) != commands.WRAPPER):
            return False
        literal = [word.text for word in words[at + 1 :] if word.literal]
        return all(text in self._given for text in literal) and len(words) > at + 1


def _words(tokens: "list[_Word | str]") -> "list[_Word]":
    """A command's words, without redirections."""
    found = []
    before: _Word | str = ""
    for token in tokens:
        if isinstance(token, _Word):
            if not (isinstance(before, str) and before[:1] in ("<", ">")):
                found.append(token)
        elif token[:1] in ("<", ">") and isinstance(before, _Word) and before.text.isdigit() and found:
            found.pop()  # the number of a redirection
        before = token
    return found


def _input(tokens: "list[_Word | str]") -> "_Word | None":
    """What a command's input is redirected from."""
    found = None
    before: _Word | str = ""
    for token in tokens:
        if isinstance(token, _Word) and before in ("<<<", "<"):
            found = token
        before = token
    return found


def _number(tokens: "list[_Word | str]") -> str:
    """The descriptor of a redirection `5< …`, "" for the standard one."""
    before: _Word | str = ""
    for each in tokens:
        if each == "<" and isinstance(before, _Word) and before.text.isdigit():
            return before.text
        before = each
    return ""


def _reads_stdin(word: "_Word") -> bool:
    return word.text.startswith("\0") and any(inner.strip() in _FROM_INPUT for inner in word.inner)


def _pipelines(tokens: "list[_Word | str]") -> "list[list[list[_Word | str]]]":
    """Cut into pipelines, each a list of stages; what a loop or group of a pipeline holds are stages of it too."""
    found: list[list[list[_Word | str]]] = []
    stages: list[list[_Word | str]] = [[]]
    for each in tokens:
        if each == "|":
            stages.append([])
        elif each in (";", "\n", "&"):
            if len(stages) > 1 and _is_open(stages):
                stages.append([])
            else:
                found.append(stages)
                stages = [[]]
        elif each not in ("(", ")"):
            stages[-1].append(each)
    found.append(stages)
    return found


def _is_open(stages: "list[list[_Word | str]]") -> bool:
    """Whether a loop or group that a pipeline leads into has not ended."""
    depth = 0
    for stage in stages[1:]:
        for token in stage:
            if isinstance(token, _Word) and token.text in _OPENS:
                depth += 1
            elif isinstance(token, _Word) and token.text in _CLOSES:
                depth -= 1
    return depth > 0


_OPENS, _CLOSES = {"while", "until", "for", "if", "{"}, {"done", "fi", "}"}


def _tokens(text: str) -> "list[_Word | str]":
    found: list[_Word | str] = []
    at, end, documents = 0, len(text), 0
    while at < end:
        char = text[at]
        if char in " \t\r":
            at += 1
        elif char == "\\" and text[at + 1 : at + 2] == "\n":
            at += 2
        elif char == "#":
            stop = text.find("\n", at)
            at = end if stop < 0 else stop
        elif text.startswith("<<<", at):
            found.append("<<<")
            at += 3
        elif text.startswith("<<", at) and documents < _MOST_DOCUMENTS:
            word, at = _here_document(text, at + 2)
            found += ["<<<", word]
            documents += 1
        elif text.startswith(("<(", ">("), at):
            word, at = _word(text, at)
            found.append(word)
        elif char in "<>":
            found.append(char)
            at += 1
            while at < end and text[at] in "<>&-|":
                at += 1
        elif text.startswith("||", at) or text.startswith("&&", at):
            found.append(";")
            found.append("\n")
            at += 2
        elif text.startswith("|&", at):
            found.append("|")
            at += 2
        elif char in "|;&()\n":
            found.append(char)
            at += 1
        else:
            word, at = _word(text, at)
            found.append(word)
    return found


def _here_document(text: str, at: int) -> "tuple[_Word, int]":
    """What a here-document whose operator ends at `at` gives; returns where its delimiter ends.

    Its lines stay where they are, to be read as commands: of a shell that gets them they are.
    """
    at += text.startswith("-", at)
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    delimiter, after = _word(text, at)
    begin = text.find("\n", after) + 1
    lines = []
    for line in text[begin:].split("\n") if begin else ():
        if line.lstrip("\t") == delimiter.text:
            break
        lines.append(line)
    quoted = set(text[at:after]) & set("'\"\\")  # nothing in it is expanded
    word = _Word() if quoted else _word("\n".join(lines)[:_MOST_EXPANDED], 0, document=True)[0]
    word.document = "\n".join(lines)
    return word, after


def _word(text: str, at: int, *, document: bool = False) -> "tuple[_Word, int]":
    """One word; a here-document's lines are one in which quotes are letters."""
    word = _Word()
    quoted = document
    start, end = at, len(text)
    while at < end:
        char = text[at]
        if char == '"' and not document:
            quoted = not quoted
            at += 1
        elif char == "'" and not quoted:
            stop = text.find("'", at + 1)
            stop = end if stop < 0 else stop
            word.text += text[at + 1 : stop]
            at = stop + 1
        elif char == "\\":
            if text[at + 1 : at + 2] != "\n":
                word.text += text[at + 1 : at + 2]
            at += 2
        elif char == "$" or char == "`" or (not quoted and text.startswith(("<(", ">("), at) and at == start):
            at = _expansion(text, at, word)
        elif not quoted and char in " \t\r\n;|&()<>":
            break
        else:
            if not quoted and char in "*?[~":
                word.literal = False
            word.text += char
            at += 1
    return word, max(at, start + 1)


def _expansion(text: str, at: int, word: "_Word") -> int:
    """Take `$(…)`, a backquote, `<(…)`, `$NAME` or `${…}` off; returns where it ends."""
    if text[at] == "`":
        stop = at + 1
        while stop < len(text) and text[stop] != "`":
            stop += 2 if text[stop] == "\\" else 1
        return _substitution(word, text[at + 1 : stop].replace("\\`", "`"), stop + 1)
    opener = text[at + 1 : at + 2]
    if opener == "(":
        stop = _closing(text, at + 2)
        return _substitution(word, text[at + 2 : stop], stop + 1)
    if opener == "{":
        stop = text.find("}", at)
        stop = len(text) if stop < 0 else stop
        inside = text[at + 2 : stop]
        stop += 1
    else:
        stop = at + 1
        while stop < len(text) and (text[stop].isalnum() or text[stop] == "_"):
            stop += 1
        inside = text[at + 1 : stop]
        if not inside and opener in ("'", '"'):  # $'…': a quote
            return at + 1
        if not inside:
            stop = at + 2  # $@, $1, $?
    name = ""
    for char in inside:
        if not (char.isalnum() or char == "_"):
            break
        name += char
    word.literal = False
    word.variables.append(name)
    word.text += "\0"
    return stop


def _substitution(word: "_Word", inner: str, end: int) -> int:
    word.literal = False
    word.inner.append(inner)
    word.text += "\0"
    return end


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that is open at `at` closes."""
    quote = ""
    opened = [""]  # the quotes that each open parenthesis stands in
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote == "'":
            quote = "" if char == "'" else quote
        elif char == '"':
            quote = "" if quote else '"'
        elif char == "'" and not quote:
            quote = "'"
        elif char == "(" and (not quote or text[at - 1] == "$"):
            opened.append(quote)
            quote = ""
        elif char == ")" and not quote:
            quote = opened.pop()
            if not opened:
                return at
        at += 1
    return len(text)
