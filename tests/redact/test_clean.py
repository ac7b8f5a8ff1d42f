# ruff: noqa: E501 - long literals read better unbroken
"""Text without secrets stays as it is: sources, headers and manuals that stand on every machine."""

import json
import os
import sysconfig

import pytest

from guard.redact.stream import Redactor


def sample(folder, suffixes, limit):
    out = []
    size = 0
    for place, _folders, names in sorted(os.walk(folder)):
        for name in sorted(names):
            if name.endswith(suffixes):
                with open(os.path.join(place, name), "rb") as file:
                    data = file.read()
                out.append(data)
                size += len(data)
                if size > limit:
                    return b"".join(out)
    return b"".join(out)


def rates(text, scanner):
    sightings = []
    redactor = Redactor(scanner, observe=sightings.append)
    for start in range(0, len(text), 1 << 19):
        redactor.feed(text[start : start + (1 << 19)])
    redactor.finish()
    size = len(text) / 1e6
    return len(sightings) / size, sum(s.span.incident for s in sightings) / size


@pytest.fixture(scope="module")
def library():
    return sample(sysconfig.get_paths()["stdlib"], (".py",), 8_000_000)


def test_python_sources_in_agents_transcripts(library, scanner):
    lines = library.split(b"\n")
    text = b"".join(
        json.dumps(
            {"type": "tool_result", "content": b"\n".join(lines[i : i + 200]).decode("utf-8", "replace")}
        ).encode()
        + b"\n"
        for i in range(0, len(lines), 200)
    )
    redactions, incidents = rates(text, scanner)
    assert redactions <= 3
    assert incidents <= 0.25  # a sample of 8 MB: two


def test_python_sources_as_text(library, scanner):
    redactions, incidents = rates(library, scanner)
    assert redactions <= 3
    assert incidents <= 0.25


@pytest.mark.skipif(not os.path.isdir("/usr/include"), reason="no C headers here")
def test_c_headers(scanner):
    text = sample("/usr/include", (".h",), 8_000_000)
    if len(text) < 1_000_000:
        pytest.skip("too few C headers here")
    redactions, incidents = rates(text, scanner)
    assert redactions <= 1
    assert incidents <= 0.25


def test_a_binary_passes_unchanged(scanner):
    import random

    from guard.redact.stream import redact_bytes

    text = random.Random(3).randbytes(4_000_000)
    assert redact_bytes(text, scanner) == text


def test_images_in_transcripts_stay(scanner):
    import base64
    import random

    from guard.redact.stream import redact_bytes

    image = base64.b64encode(random.Random(4).randbytes(2_000_000)).decode()
    line = (
        json.dumps({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}).encode()
        + b"\n"
    )
    assert redact_bytes(line, scanner) == line
