"""Two hundred commands, forty of them with secrets made at run time, and what each must have run as."""

from __future__ import annotations

import random
from dataclasses import dataclass

from guard.redact import samples
from guard.redact.rules.formats import FORMATS

# What stands for a secret here is a word that no shell reads anything into; the arguments are told apart by blanks.
FORMS = (
    "mysql -u root -p<apw> db",
    "curl -u bob:<apw> https://h.example/x",
    "docker login -u bob -p <apw> reg.example",
    "sshpass -p <apw> ssh h",
    "redis-cli -h h -a <apw> ping",
    "psql postgres://bob:<apw>@h.example/db",
    "git clone https://bob:<apw>@h.example/x.git",
    "curl -H 'Authorization: Bearer <b62:40>' https://h.example",
    "rec --password=<apw>",
    "rec --token <b62:36>",
    "rec 'https://h.example/x?api_key=<b62:32>'",
    "rec AWS_SECRET_ACCESS_KEY=<b62:40>",
    "rec 'DB_PASSWORD: <apw>'",
)


@dataclass(frozen=True)
class Command:
    """One line to type: the text, what runs, and what must not be stored."""

    tag: str
    text: str
    argv: tuple[str, ...]
    secrets: tuple[str, ...] = ()


def words(text: str) -> tuple[str, ...]:
    """The arguments of a line that quotes with single quotes only."""
    out: list[str] = []
    for number, part in enumerate(text.split("'")):
        out += [part] if number % 2 else part.split()
    return tuple(out)


def _secret(number: int, rng: random.Random) -> tuple[str, list[str]]:
    if number < len(FORMS):
        return samples.fill(FORMS[number], rng)
    plain = [row for row in FORMATS if row.samples and not any(c in row.samples[0] for c in "'\"`!$\\{}|&;()*?/ ")]
    text, values = samples.fill(plain[(number * 7) % len(plain)].samples[0], rng)
    return f"rec {text}", [value for value in values if len(value) >= 16]


def commands(total: int, secret: int, rng: random.Random) -> list[Command]:
    """That many commands, the secret ones spread among them."""
    step = total // secret
    out = []
    for number in range(total):
        tag = f"n{number}n"
        if number % step == step // 2 and number // step < secret:
            text, values = _secret(number // step, rng)
            text = f"{text} {tag}"
            out.append(Command(tag, text, words(text), tuple(values)))
        else:
            text = rng.choice((
                f"rec plain {tag} 'two words' --flag -x a,b", f"rec {tag} commit -m 'fix the thing'", f"rec {tag} /usr/lib/x.so ~",
                f"rec '  blanks  ' {tag}", f"rec {tag} $HOME", f"rec {tag} 'äöü ↦ 漢'",
            ))  # fmt: skip
            out.append(Command(tag, text, words(text)))
    return out
