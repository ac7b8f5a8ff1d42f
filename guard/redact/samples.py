"""Synthetic secrets for tests and benches: the rules' sample templates, filled with random characters.

No realistic key stands in any file; each is made when it is needed, with the right alphabet and checksum.
"""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from typing import Final

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LOWER = "abcdefghijklmnopqrstuvwxyz"

ALPHABETS: Final = {
    "b62": _BASE62,
    "let": _LOWER + _LOWER.upper(),
    "u64": _BASE62 + "-_",
    "b64": _BASE62 + "+/",
    "hex": "0123456789abcdef",
    "HEX": "0123456789ABCDEF",
    "low36": _LOWER + "0123456789",
    "UP36": _LOWER.upper() + "0123456789",
    "b32": _LOWER.upper() + "234567",
    "bech": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
    "dig": "0123456789",
    "crypt": _BASE62 + "./",
}

_SLOT = re.compile(r"<([A-Za-z0-9]+)(?::(\d+))?>")


def _draw(rng: random.Random, alphabet: str, size: int) -> str:
    # No separator first or last: vendors' keys do not begin or end with one, and a reader of a log would
    # lose it.
    text = [rng.choice(alphabet) for _ in range(size)]
    plain = [c for c in alphabet if c.isalnum()]
    text[0], text[-1] = rng.choice(plain), rng.choice(plain)
    return "".join(text)


def _crc62(body: str) -> str:
    value = zlib.crc32(body.encode())
    out = ""
    for _ in range(6):
        value, rest = divmod(value, 62)
        out = _BASE62[rest] + out
    return out


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwt(rng: random.Random) -> str:
    """Return a JWT of random claims."""
    head = json.dumps({"alg": rng.choice(["HS256", "RS256", "ES256"]), "typ": "JWT"}, separators=(",", ":"))
    body = json.dumps({"sub": _draw(rng, _BASE62, 12), "iat": rng.randrange(10**9, 2 * 10**9)}, separators=(",", ":"))
    return f"{_b64url(head.encode())}.{_b64url(body.encode())}.{_b64url(rng.randbytes(32))}"


def password(rng: random.Random, punctuation: str = "!%+=@^_~.-", size: int | None = None) -> str:
    """Return a password of 8 to 20 characters with letters, digits and (if given) punctuation."""
    size = size or rng.randrange(8, 21)
    chars = [rng.choice(_LOWER), rng.choice(_LOWER.upper()), rng.choice("0123456789")]
    chars += [rng.choice(_BASE62 + punctuation) for _ in range(size - 3)]
    rng.shuffle(chars)
    if not chars[0].isalnum():
        chars[0] = rng.choice(_BASE62)
    if not chars[-1].isalnum():
        chars[-1] = rng.choice(_BASE62)
    return "".join(chars)


def _slot(rng: random.Random, name: str, size: int) -> str:
    if name in ALPHABETS:
        return _draw(rng, ALPHABETS[name], size)
    if name == "pw":
        return password(rng)
    if name == "apw":
        return password(rng, "")
    if name == "upw":
        return password(rng, "!+=_~.-")
    if name == "crc62":
        body = _draw(rng, _BASE62, 30)
        return body + _crc62(body)
    if name == "grafana":
        body = _draw(rng, _BASE62, 32)
        return f"{body}_{zlib.crc32(body.encode()):08x}"
    if name == "uuid":
        digits = _draw(rng, "0123456789abcdef", 32)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if name == "jwt":
        return jwt(rng)
    if name == "discord":
        first = base64.b64encode(str(rng.randrange(10**17, 10**18)).encode()).decode().rstrip("=")
        return f"{first}.{_draw(rng, _BASE62, 6)}.{_draw(rng, _BASE62 + '-_', 38)}"
    if name == "bedrock":
        return (
            base64.b64encode(
                f"BedrockAPIKey-{_draw(rng, _LOWER, 4)}-at-{_draw(rng, '0123456789', 12)}:".encode() + rng.randbytes(42)
            )
            .decode()
            .rstrip("=")
        )
    if name == "userpass":
        return base64.b64encode(f"bob:{password(rng)}".encode()).decode()
    raise KeyError(name)


def fill(template: str, rng: random.Random) -> tuple[str, list[str]]:
    """Fill a template.

    Args:
        template: text with slots such as `<b62:36>`, `<crc62>`, `<pw>`.
        rng: the source of randomness; a seed makes the sample repeatable.

    Returns:
        The text and what was put into the slots.
    """
    values: list[str] = []

    def one(match: re.Match[str]) -> str:
        try:
            value = _slot(rng, match.group(1), int(match.group(2) or 0))
        except KeyError:
            return match.group()
        values.append(value)
        return value

    return _SLOT.sub(one, template), values


def pem(rng: random.Random, label: str = "RSA PRIVATE KEY", size: int = 1200, newline: str = "\n") -> str:
    """Return a PEM block with a random body of `size` bytes."""
    body = base64.b64encode((b"openssh-key-v1\0" if "OPENSSH" in label else b"\x30\x82") + rng.randbytes(size)).decode()
    lines = [body[i : i + 64] for i in range(0, len(body), 64)]
    return newline.join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def putty(rng: random.Random) -> str:
    """Return a PuTTY key file with random bodies."""
    lines = [_draw(rng, _BASE62, 64) for _ in range(14)]
    head = [
        "PuTTY-User-Key-File-3: ssh-ed25519",
        "Encryption: none",
        "Comment: bob@host",
        "Public-Lines: 2",
        lines[0],
        lines[1],
    ]
    return "\n".join([*head, "Private-Lines: 12", *lines[2:], f"Private-MAC: {_draw(rng, '0123456789abcdef', 64)}", ""])
