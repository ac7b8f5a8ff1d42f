# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""What went wrong in other redactors, by their public reports."""

import hashlib
import json
import subprocess
import sys
import uuid

import pytest

from guard.redact import redact_argv, samples
from guard.redact.fingerprint import Key


def test_detect_secrets_858_the_whole_key_goes_and_two_keys_are_two(scanner, rng):
    keys = [samples.fill("ghp_<crc62>", rng)[0] for _ in range(2)]
    spans = [scanner.find(f"t={key}\n".encode())[0] for key in keys]
    assert [span.value.decode() for span in spans] == keys
    secret = Key("local-x", b"k" * 32)
    assert secret.of(spans[0].value) != secret.of(spans[1].value)


def test_gitleaks_1036_trufflehog_2093_a_bearer_token_goes(redact, rng):
    token = samples.fill("<b62:40>", rng)[0]
    assert (
        redact(f'curl -H "Authorization: Bearer {token}" h\n'.encode())
        == b'curl -H "Authorization: Bearer [REDACTED:bearer-token]" h\n'
    )


@pytest.mark.parametrize("newline", ["\n", "\\n", " ", ""])
def test_trufflehog_2338_a_pem_block_on_one_line_goes(newline, redact, rng, remains):
    block = samples.pem(rng, newline=newline)
    for text in (block, json.dumps({"k": block})):
        assert remains(redact(text.encode() + b"\n"), block[200:240].replace("\n", "")[:20]) is None


def test_gitleaks_1243_the_last_line_without_a_newline_is_redacted(redact, key):
    assert redact(key.encode()) == b"[REDACTED:github-token]"


def test_gitleaks_1710_an_escaped_newline_behind_the_key_stays(redact, key):
    assert redact(f"{key}\\n".encode()) == b"[REDACTED:github-token]\\n"


def test_gitleaks_2223_another_pair_in_front_hides_nothing(redact, word):
    line = json.dumps({"name": "x", "user": "bob", "password": word})
    assert word.encode() not in redact(line.encode() + b"\n")


def test_llm_guard_305_detect_secrets_493_every_occurrence_goes(redact, key):
    assert redact(f"{key} {key} {key}\n".encode()).count(b"[REDACTED:") == 3


def test_detect_secrets_958_an_app_token_with_a_jwt_goes(redact, rng, remains):
    token = samples.fill("ghs_<dig:7>_<jwt>", rng)[0]
    assert remains(redact(f"t {token}\n".encode()), token) is None


def test_agent_afk_549_ids_digests_and_images_stay(redact):
    text = "\n".join(
        [
            f"commit {hashlib.sha1(b'x').hexdigest()}", f"id: {uuid.UUID(int=7 << 90)}", f"sha256:{hashlib.sha256(b'y').hexdigest()}",
            f'"etag": "{hashlib.md5(b"z").hexdigest()}"', f'"cache_key": "{hashlib.sha256(b"q").hexdigest()}"',
            '{"type": "image", "data": "' + "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk" * 40 + '"}', "",
        ]
    ).encode()  # fmt: skip
    assert redact(text) == text


def test_atuin_3057_a_path_is_not_a_slack_token(redact):
    line = b"cd ~/xoxo && ./multitool.py && cat notes/xoxb-plan.md\n"
    assert redact(line) == line


def test_paperclip_11037_a_backslash_is_not_eaten(redact, key):
    line = json.dumps({"a": f'C:\\temp\\{key}\\x "quoted \\" {key}" \\\\ end'}) + "\n"
    assert (
        json.loads(redact(line.encode()))["a"]
        == 'C:\\temp\\[REDACTED:github-token]\\x "quoted \\" [REDACTED:github-token]" \\\\ end'
    )


def test_hermes_69196_what_follows_an_escaped_quote_goes_too(redact, word):
    out = redact(json.dumps({"password": f'ab9"{word}'}).encode() + b"\n")
    assert word[:4].encode() not in out


def test_actions_runner_326_a_short_value_masks_nothing(redact):
    assert redact(b"PASSWORD=a\na cat sat on a mat\n") == b"PASSWORD=a\na cat sat on a mat\n"


def test_actions_runner_291_base64_is_seen_at_every_alignment(redact, key):
    import base64

    for head in (b"", b"x:", b"yy:"):
        text = base64.b64encode(head + key.encode() + b"\n")
        assert text[8:40] not in redact(b"a " + text + b"\n")


def test_envdrift_479_a_redacted_text_has_no_secret(scanner, redact, key):
    assert scanner.find(redact(f"export GITHUB_TOKEN={key}\n".encode())) == []


def test_hermes_57735_an_ordinary_command_is_recorded_as_it_was():
    argv = ["git", "commit", "-m", "fix: token\nhandling", "", "\udcff", "--key-size=2048"]
    assert list(redact_argv(argv)) == argv


def test_azure_cli_28839_a_key_in_a_path_goes(redact, key):
    assert (
        redact(f'openat(AT_FDCWD, "/tmp/{key}", O_RDONLY) = 3\n'.encode())
        == b'openat(AT_FDCWD, "/tmp/[REDACTED:github-token]", O_RDONLY) = 3\n'
    )


def test_litellm_39879_a_long_stripe_key_goes_whole(redact, rng):
    key = samples.fill("sk_live_<b62:99>", rng)[0]
    assert redact(f"k {key}\n".encode()) == b"k [REDACTED:stripe-key]\n"


def test_detect_secrets_203_an_unquoted_value_goes(redact, word):
    assert redact(f"db_password={word}\n".encode()) == b"db_password=[REDACTED:password]\n"


def test_importing_the_package_loads_no_scanner_and_no_network():
    program = "import sys, guard.redact; print([m for m in ('detect_secrets', 'requests', 'hyperscan', 'json', 'guard.redact.scan') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )


def test_redacted_text_is_made_by_the_redactor_alone(word):
    from guard.redact import Redacted, redact_text

    with pytest.raises(TypeError):
        Redacted("x")
    text = redact_text(f"mysql -p{word} db")
    assert isinstance(text, Redacted)
    assert text == "mysql -p[REDACTED:password] db"
    assert type(text[1:]) is str
