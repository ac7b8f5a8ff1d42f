# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Keys that are recognised by a format of their own: one row a kind.

A row gives the literal starts, the body that may follow, what an incident needs beyond that (`strict`, a full match,
and `check`, a checksum), samples that must be caught and texts that must be left. Samples are templates that
`guard.redact.samples` fills with random characters at run time, so that no realistic key stands in the source:
`<b62:36>` is 36 characters of base62, `<crc62>` a GitHub-style body with its checksum.

Lengths are those of the vendors' published formats; a body longer than that is taken whole, since vendors lengthen
their keys, and a shorter one down to `least` is redacted but no incident.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

B62: Final = rb"[A-Za-z0-9]"
U64: Final = rb"[A-Za-z0-9_\-]"
HEX: Final = rb"[0-9a-f]"
B64: Final = rb"[A-Za-z0-9+/]"

_BASE62 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Format(NamedTuple):
    """One kind of key with a recognisable format.

    `starts` are literals at which the matcher stops (regular expressions of fixed width are allowed); `cls` and `need`
    say which and how many characters must follow before the confirmer looks. `grow` (class, most) lets the token begin
    before the literal. `gate` names the question that the body must pass (`FormatRule` in `keys`). `before` is the part of
    the start that is no part of the secret. `web` lets the span begin with the address, at `https://`.
    """

    kind: str
    starts: tuple[bytes, ...]
    body: bytes
    strict: bytes
    samples: tuple[str, ...]
    advice: str
    leaves: tuple[str, ...]
    cls: bytes
    need: int
    least: int
    grow: tuple[bytes, int] | None
    check: Callable[[bytes], bool] | None
    gate: str
    before: bytes
    web: bool


def crc62(token: bytes) -> bool:
    """Check the last six characters: base62 of the CRC32 of what stands between prefix and them (GitHub, npm)."""
    body = token[token.index(b"_") + 1 :]
    value = zlib.crc32(body[:-6])
    digits = bytearray()
    for _ in range(6):
        value, rest = divmod(value, 62)
        digits.append(_BASE62[rest])
    return bytes(reversed(digits)) == body[-6:]


def jwt_header(token: bytes) -> bool:
    """Check that a token's first part is base64url of a JSON object with an algorithm."""
    head = token.partition(b".")[0]
    head = head[head.find(b"eyJ") :]
    try:
        text = base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4))
    except (binascii.Error, ValueError):
        return False
    return text.startswith(b"{") and (b'"alg"' in text or b'"enc"' in text or b'"kid"' in text)


def jwt_not_sample(token: bytes) -> bool:
    """Check a JWT as `jwt_header` does, and that it is not the one every tutorial shows (John Doe, sub 1234567890)."""
    if not jwt_header(token):
        return False
    part = token.split(b".")[1]
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        return True
    return b"John Doe" not in text and b"1234567890" not in text


_ROTATE = "revoke it at the provider, make a new one, and look through the provider's audit log for uses of the old"
_CLOUD = "deactivate the key in the cloud console, make a new one, and read the account's audit trail since first sight"
_FORGE = "revoke the token in the forge's settings, make a narrower one with an expiry, and read its security log"
_HASH = "treat the password behind the hash as known: change it"
_PRIVATE = "make a new key pair and take the old public key out of every place that trusts it"


def _f(
    kind: str,
    starts: str,
    body: bytes,
    samples: str,
    *,
    strict: bytes = rb".*",
    advice: str = _ROTATE,
    leaves: tuple[str, ...] = (),
    cls: bytes = U64,
    need: int = 8,
    least: int = 16,
    grow: tuple[bytes, int] | None = None,
    check: Callable[[bytes], bool] | None = None,
    gate: str = "example",
    before: bytes = b"",
    web: bool = False,
) -> Format:
    literal = tuple(re.escape(s).encode() if not s.startswith("~") else s[1:].encode() for s in starts.split())
    return Format(
        kind, literal, body, strict, tuple(samples.split()), advice, leaves, cls, need, least, grow, check, gate, before, web
    )  # fmt: skip


FORMATS: Final[tuple[Format, ...]] = (
    # Models and ML platforms
    _f("anthropic-key", "sk-ant-", rb"[A-Za-z0-9_\-]{8,400}",
       "sk-ant-api03-<u64:93>AA sk-ant-admin01-<u64:93>AA sk-ant-oat01-<u64:93>AA sk-ant-ort01-<u64:93>AA "
       "sk-ant-sid01-<u64:93>AA", strict=rb"sk-ant-[a-z]{2,6}\d\d-.{60,}"),
    _f("openai-key", "sk-proj- sk-svcacct- sk-admin- sk-None-", rb"[A-Za-z0-9_\-]{8,400}",
       "sk-proj-<u64:74>T3BlbkFJ<u64:74> sk-svcacct-<u64:58>T3BlbkFJ<u64:58> sk-admin-<u64:58>T3BlbkFJ<u64:58> "
       "sk-proj-<b62:20>T3BlbkFJ<b62:20>", strict=rb".{40,}", leaves=("sk-proj-my-project-name",), gate="random"),
    _f("openrouter-key", "sk-or-", rb"(?:v\d{1,2}-)?[A-Za-z0-9_\-]{8,200}", "sk-or-v1-<hex:64>", strict=rb"sk-or-v\d-[0-9a-f]{64,}"),
    _f("langfuse-key", "sk-lf- pk-lf-", rb"[0-9a-f]{8}-[0-9a-f\-]{8,60}", "sk-lf-<uuid>", cls=rb"[0-9a-f]"),
    _f("secret-key", "sk-", rb"(?:[a-z0-9]{2,8}-){0,2}[A-Za-z0-9][A-Za-z0-9_]{19,300}",
       "sk-<b62:20>T3BlbkFJ<b62:20> sk-<hex:32> sk-<b62:48> sk-<b62:32> sk-api-<b62:60> sk-kimi-<b62:48>", strict=rb".{35,}", need=16, least=20,
       gate="random", leaves=("sk-learnpipelinefeatureunion", "task-12345678901234567890", "sk-learn-feature-extraction-pipelines")),
    _f("huggingface-token", "hf_", rb"[A-Za-z0-9]{8,200}", "hf_<let:34> hf_<b62:34>", strict=rb"hf_[A-Za-z0-9]{34,}", cls=B62,
       gate="random", least=20, leaves=("hf_transformermodelconfig", "hf_" + "x" * 34)),
    _f("huggingface-org-token", "api_org_", rb"[A-Za-z0-9]{8,200}", "api_org_<let:34>", strict=rb".{42,}", cls=B62,
       gate="random", least=20),
    _f("groq-key", "gsk_", rb"[A-Za-z0-9]{8,200}", "gsk_<b62:52>", strict=rb".{56,}", cls=B62),
    _f("xai-key", "xai-", rb"[A-Za-z0-9]{8,200}", "xai-<b62:80>", strict=rb".{84,}", cls=B62, least=30, gate="random"),
    _f("perplexity-key", "pplx-", rb"[A-Za-z0-9]{8,200}", "pplx-<b62:48>", strict=rb".{53,}", cls=B62, least=20, gate="random"),
    _f("replicate-token", "r8_", rb"[A-Za-z0-9]{8,200}", "r8_<b62:37>", strict=rb".{40,}", cls=B62, least=24, gate="random"),
    _f("cerebras-key", "csk-", rb"[a-z0-9]{8,200}", "csk-<low36:48>", strict=rb".{52,}", cls=rb"[a-z0-9]", least=24,
       gate="random"),
    _f("nvidia-key", "nvapi-", rb"[A-Za-z0-9_\-]{8,300}", "nvapi-<u64:64>", strict=rb".{60,}", least=24),
    _f("langsmith-key", "lsv2_pt_ lsv2_sk_ ls__", rb"[0-9a-f]{8,64}(?:_[0-9a-f]{1,64})?",
       "lsv2_pt_<hex:32>_<hex:10> lsv2_sk_<hex:32>_<hex:10>", strict=rb"lsv2_.{43,}", cls=HEX),
    _f("fireworks-key", "fw_", rb"[A-Za-z0-9]{8,100}", "fw_<b62:22> fw_<b62:24>", strict=rb".{25,}", cls=B62, least=20,
       gate="random", leaves=("fw_getfirmwareversionnumber",)),
    _f("tavily-key", "tvly-", rb"(?:dev-|prod-)?[A-Za-z0-9_\-]{8,100}", "tvly-<b62:32> tvly-dev-<b62:32> tvly-prod-<b62:32>",
       strict=rb".{36,}", gate="random"),
    _f("together-key", "tgp_v1_", rb"[A-Za-z0-9_\-]{8,200}", "tgp_v1_<u64:43>", strict=rb".{50,}"),
    _f("wandb-key", "wandb_v1_", rb"[A-Za-z0-9_\-]{8,300}", "wandb_v1_<u64:77>", strict=rb".{80,}"),
    _f("azure-openai-key", "JQQJ99", rb"[A-Za-z0-9]{20,60}", "<b62:52>JQQJ99<b62:26>", strict=rb".{80,}", cls=B62,
       grow=(B62, 60), least=20),
    # Clouds
    _f("aws-access-key-id", "AKIA ASIA ABIA ACCA", rb"[A-Z0-9]{16}(?![A-Za-z0-9])", "AKIA<b32:16> ASIA<b32:16> ABIA<b32:16> ACCA<b32:16>",
       strict=rb"A[KSBC][IC]A[A-Z2-7]{16}", cls=rb"[A-Z0-9]", advice=_CLOUD, gate="plain",
       leaves=("AKIA" + "IOSFODNN7" + "EXAMPLE",)),
    _f("aws-bedrock-key", "ABSK", rb"[A-Za-z0-9+/]{60,300}={0,2}", "ABSK<bedrock>", cls=B64, need=24, least=60, advice=_CLOUD, gate="random"),
    _f("aws-session-token", "IQoJb3JpZ2lu FwoGZXIvYXdz", rb"[A-Za-z0-9+/%]{40,4000}={0,2}",
       "IQoJb3JpZ2lu<b64:300> FwoGZXIvYXdz<b64:300>", cls=B64, advice=_CLOUD, least=40),
    _f("google-api-key", "AIza", rb"[A-Za-z0-9_\-]{8,60}", "AIza<u64:35>", strict=rb".{39}", advice=_CLOUD, least=31, gate="random"),
    _f("google-oauth-secret", "GOCSPX-", rb"[A-Za-z0-9_\-]{8,60}", "GOCSPX-<u64:28>", strict=rb".{35,}", advice=_CLOUD),
    _f("google-oauth-token", "ya29.", rb"[A-Za-z0-9_\-.]{8,2100}", "ya29.<u64:120> ya29.a0<u64:160>", strict=rb".{40,}", advice=_CLOUD,
       least=20),
    _f("google-refresh-token", "1//0", rb"[A-Za-z0-9_\-]{30,200}", "1//0<u64:60>", strict=rb".{40,}", advice=_CLOUD, need=20,
       least=30, gate="random"),
    _f("azure-client-secret", r"~[0-9]Q~", rb"[A-Za-z0-9_~.\-]{28,40}", "<b62:3>8Q~<u64:34> <b62:3>8Q~<b62:31>~<b62:2>",
       cls=rb"[A-Za-z0-9_~.\-]", need=16, grow=(rb"[A-Za-z0-9_~.\-]", 3), least=28, advice=_CLOUD),
    _f("azure-storage-key", "AccountKey=", rb"[A-Za-z0-9+/%]{40,100}={0,2}", "AccountKey=<b64:86>==", cls=B64, advice=_CLOUD,
       gate="random", before=b"AccountKey="),
    _f("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", rb"[0-9a-f]{8,200}", "dop_v1_<hex:64> doo_v1_<hex:64> dor_v1_<hex:64>",
       strict=rb".{71,}", cls=HEX, advice=_CLOUD),
    _f("cloudflare-token", "cfat_ cfut_ cfk_", rb"[A-Za-z0-9_\-]{8,100}", "cfat_<b62:40>", strict=rb".{40,}", advice=_CLOUD, gate="random"),
    _f("cloudflare-origin-key", "v1.0-", rb"[0-9a-f]{24}-[0-9a-f]{100,200}", "v1.0-<hex:24>-<hex:146>", cls=HEX, need=16, advice=_CLOUD),
    _f("vercel-token", "vcp_ vck_ vci_ vca_ vcr_", rb"[A-Za-z0-9_\-]{8,120}", "vcp_<b62:56>", strict=rb".{28,}", advice=_CLOUD, gate="random"),
    _f("fly-token", "fm1_ fm2_ fm1r_ fm1a_", rb"[A-Za-z0-9+/=_\-,]{8,4000}", "fm2_<b64:300> fm1_<b64:200>", strict=rb".{60,}", advice=_CLOUD,
       cls=B64, least=20, gate="random"),
    _f("netlify-token", "nfp_ nfc_ nfo_ nfu_ nfb_", rb"[A-Za-z0-9_]{8,100}", "nfp_<b62:36> nfc_<b62:36> nfu_<b62:36>", strict=rb".{40,}",
       advice=_CLOUD, gate="random", least=20),
    _f("supabase-token", "sbp_ sb_secret_", rb"(?:v0_|oauth_)?[A-Za-z0-9_\-]{8,100}", "sbp_<hex:40> sb_secret_<u64:31>", strict=rb".{30,}",
       advice=_CLOUD, gate="random"),
    _f("planetscale-token", "pscale_tkn_ pscale_oauth_ pscale_pw_", rb"[A-Za-z0-9_\-.=]{8,120}",
       "pscale_tkn_<u64:43> pscale_oauth_<u64:43> pscale_pw_<u64:43>", strict=rb".{42,}", advice=_CLOUD),
    _f("databricks-token", "dapi", rb"[0-9a-f]{8,64}(?:-\d{1,3})?", "dapi<hex:32> dapi<hex:32>-2", strict=rb".{36,}", cls=HEX, least=28,
       advice=_CLOUD),
    _f("alibaba-key-id", "LTAI", rb"[A-Za-z0-9]{12,30}", "LTAI<b62:20>", strict=rb".{24}", cls=B62, advice=_CLOUD, gate="random"),
    _f("tencent-key-id", "AKID", rb"[A-Za-z0-9]{32,40}", "AKID<b62:32>", strict=rb".{36,}", cls=B62, need=16, advice=_CLOUD, gate="random"),
    _f("heroku-token", "HRKU-", rb"[A-Za-z0-9_\-]{20,100}", "HRKU-<uuid> HRKU-AA<u64:58>", strict=rb".{30,}", advice=_CLOUD),
    _f("dropbox-token", "sl.", rb"(?:u\.)?[A-Za-z0-9_\-]{60,2000}", "sl.<u64:130> sl.u.<u64:300>", strict=rb".{100,}", need=24, least=60,
       cls=rb"[A-Za-z0-9_\-.]", gate="random"),
    # Forges and packages
    _f("github-app-token", "ghs_", rb"[0-9]{3,12}_eyJ[A-Za-z0-9_\-]{8,2000}(?:\.[A-Za-z0-9_\-]{1,4000}){0,2}",
       "ghs_<dig:7>_<jwt>", strict=rb".{60,}", advice=_FORGE, need=3, cls=rb"[0-9]", gate="none"),
    _f("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", rb"[A-Za-z0-9]{8,255}",
       "ghp_<crc62> gho_<crc62> ghu_<crc62> ghs_<crc62> ghr_<crc62>", strict=rb"gh[pousr]_[A-Za-z0-9]{36}", cls=B62, check=crc62,
       advice=_FORGE, leaves=("ghp_" + "x" * 36, "ghp_" + "0" * 36)),
    _f("github-pat", "github_pat_", rb"[A-Za-z0-9_]{8,255}", "github_pat_<b62:22>_<b62:59>", strict=rb"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
       cls=rb"[A-Za-z0-9_]", advice=_FORGE),
    _f("github-old-token", "v1.", rb"[0-9a-f]{40}(?![0-9A-Za-z])", "v1.<hex:40>", cls=HEX, need=24, least=40, advice=_FORGE, gate="random"),
    _f("gitlab-token",
       "glpat- glrt- gldt- glcbt- glptt- glsoat- glft- glimt- glagent- gloas- glffct- glwt- glrtr-",
       rb"(?:[0-9a-zA-Z]{1,4}_)?[A-Za-z0-9_\-]{8,300}(?:\.[0-9a-z]{2}\.[0-9a-z]{7,20}|\.[0-9a-z]{7,20})?",
       "glpat-<u64:20> glpat-<u64:27>.01.<low36:9> glrt-<u64:20> gldt-<u64:20> glcbt-64_<u64:20> glptt-<hex:40> glsoat-<u64:20> glft-<u64:20> "
       "glimt-<u64:25> glagent-<u64:50> gloas-<hex:64> glffct-<u64:20>", strict=rb"gl[a-z]+-.{20,}", advice=_FORGE),
    _f("gitlab-runner-token", "GR1348941", rb"[A-Za-z0-9_\-]{8,60}", "GR1348941<u64:20>", strict=rb".{29,}", advice=_FORGE),
    _f("bitbucket-token", "ATBB", rb"[A-Za-z0-9_\-=]{20,200}", "ATBB<b62:32>", strict=rb".{36,}", advice=_FORGE, gate="random", least=20),
    _f("atlassian-token", "ATATT3 ATCTT3", rb"[A-Za-z0-9_\-]{8,400}(?:=[0-9A-Fa-f]{8})?=?", "ATATT3xFfGF0<u64:171>=<HEX:8> ATCTT3xFfGN0<u64:171>=<HEX:8>",
       strict=rb".{60,}", advice=_FORGE),
    _f("sourcegraph-token", "sgp_ sgd_", rb"(?:local_|[0-9a-f]{16}_)?[0-9a-f]{8,80}(?:_[0-9a-f]{10,80})?", "sgp_<hex:16>_<hex:40> sgp_<hex:40>", strict=rb".{44,}",
       cls=rb"[0-9a-f_local]", advice=_FORGE),
    _f("linear-token", "lin_api_ lin_oauth_", rb"[A-Za-z0-9]{8,100}", "lin_api_<b62:40> lin_oauth_<hex:64>", strict=rb".{40,}", cls=B62),
    _f("npm-token", "npm_", rb"[A-Za-z0-9]{8,100}", "npm_<crc62>", strict=rb"npm_[A-Za-z0-9]{36}", cls=B62, check=crc62, least=20, gate="random",
       leaves=("npm_configregistryurlproxy",)),
    _f("pypi-token", "pypi-", rb"Ag[A-Za-z0-9_\-]{30,1000}", "pypi-AgEIcHlwaS5vcmc<u64:130> pypi-AgENdGVzdC5weXBpLm9yZw<u64:130>", strict=rb".{60,}",
       least=30),
    _f("ruby-gems-key", "rubygems_", rb"[0-9a-f]{8,100}", "rubygems_<hex:48>", strict=rb".{57,}", cls=HEX),
    _f("crates-token", "cio", rb"[A-Za-z0-9]{32}(?![A-Za-z0-9])", "cio<b62:32>", cls=B62, need=24, least=32, gate="random"),
    _f("docker-token", "dckr_pat_ dckr_oat_", rb"[A-Za-z0-9_\-]{8,100}", "dckr_pat_<u64:27> dckr_oat_<u64:32>", strict=rb".{36,}"),
    _f("jfrog-key", "AKCp", rb"[A-Za-z0-9]{50,90}", "AKCp<b62:69>", cls=B62, need=24, least=50, gate="random"),
    _f("jfrog-reference-token", "cmVmdGtuO", rb"[A-Za-z0-9]{40,80}", "cmVmdGtuO<b62:55>", cls=B62, least=40, gate="random"),
    # Infrastructure
    _f("vault-token", "hvs. hvb. hvr.", rb"[A-Za-z0-9_\-]{8,400}", "hvs.<u64:90> hvs.<u64:24> hvb.<u64:150> hvr.<u64:90>", strict=rb".{28,}"),
    _f("terraform-token", ".atlasv1.", rb"[A-Za-z0-9_\-=]{8,100}", "<b62:14>.atlasv1.<u64:67>", strict=rb".{70,}", grow=(B62, 14)),
    _f("doppler-token", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", rb"(?:[a-z0-9_\-]{2,35}\.)?[A-Za-z0-9]{8,80}",
       "dp.pt.<b62:43> dp.st.dev.<b62:43> dp.ct.<b62:43> dp.sa.<b62:43> dp.scim.<b62:43> dp.audit.<b62:43>", strict=rb".{40,}",
       cls=rb"[A-Za-z0-9_.\-]"),
    _f("pulumi-token", "pul-", rb"[0-9a-f]{40,80}", "pul-<hex:40>", cls=HEX, need=16, least=40),
    _f("tailscale-key", "tskey-", rb"(?:auth|api|client|scim|webhook)-[A-Za-z0-9\-]{8,200}",
       "tskey-auth-k<b62:9>CNTRL-<b62:32> tskey-api-k<b62:9>CNTRL-<b62:32> tskey-client-k<b62:9>CNTRL-<b62:32>", strict=rb".{40,}"),
    _f("onepassword-token", "ops_eyJ", rb"[A-Za-z0-9+/_\-]{8,8000}={0,2}", "ops_eyJ<b64:250>", strict=rb".{200,}", cls=B64, gate="random"),
    _f("onepassword-secret-key", "A3-", rb"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}",
       "A3-<UP36:6>-<UP36:11>-<UP36:5>-<UP36:5>-<UP36:5>", cls=rb"[A-Z0-9]", need=6),
    _f("age-key", "AGE-SECRET-KEY-1 AGE-SECRET-KEY-PQ-1", rb"[0-9A-Za-z]{8,6000}", "AGE-SECRET-KEY-1<bech:58> AGE-SECRET-KEY-PQ-1<bech:80>", strict=rb".{74,}",
       cls=B62, advice=_PRIVATE),
    _f("grafana-token", "glsa_", rb"[A-Za-z0-9]{8,64}(?:_[0-9a-fA-F]{8})?", "glsa_<grafana>", strict=rb"glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}", cls=B62),
    _f("grafana-cloud-token", "glc_", rb"[A-Za-z0-9+/_\-]{30,600}={0,2}", "glc_eyJvIjoi<b64:120>", cls=B64, strict=rb".{50,}", least=30, gate="random"),
    _f("newrelic-key", "NRAK- NRAL- NRRA- NRII- NRIQ-", rb"[A-Za-z0-9_\-]{20,60}", "NRAK-<UP36:27>", strict=rb".{32,}", least=20, gate="plain"),
    _f("sentry-token", "sntryu_ sntrys_ sntrya_", rb"[A-Za-z0-9+/=_\-]{8,600}", "sntryu_<hex:64> sntrys_eyJ<b64:150>_<b62:43>", strict=rb".{60,}", cls=B64),
    _f("bitbucket-server-token", "BBDC-", rb"[A-Za-z0-9+/=]{32,100}", "BBDC-<b64:44>", cls=B64, least=32, gate="random"),
    _f("aws-short-key", "bedrock-api-key-", rb"[A-Za-z0-9+/=_\-]{40,4000}", "bedrock-api-key-<b64:200>", cls=B64, least=40, advice=_CLOUD),
    _f("adobe-secret", "p8e-", rb"[A-Za-z0-9_\-]{32}(?![A-Za-z0-9])", "p8e-<b62:32>", need=24, least=32, gate="random"),
    _f("mailersend-token", "mlsn.", rb"[A-Za-z0-9]{30,100}", "mlsn.<hex:64>", cls=B62, need=16, least=30),
    _f("grafana-api-key", "eyJrIjoi", rb"[A-Za-z0-9+/]{40,400}={0,2}", "eyJrIjoi<b64:90>", cls=B64, need=24, least=40, gate="random"),
    _f("salesforce-session", r"~00[A-Za-z0-9]{13}!", rb"[A-Za-z0-9._\-]{60,260}", "00D<b62:12>!<b62:96>", need=24, least=60, gate="random"),
    _f("feature-flag-key", "configcat-sdk-1/", rb"[A-Za-z0-9_\-]{20,24}/[A-Za-z0-9_\-]{20,24}", "configcat-sdk-1/<u64:22>/<u64:22>"),
    _f("alibaba-sts-token", "STS.", rb"[A-Za-z0-9]{20,64}", "STS.<b62:30>", cls=B62, need=16, least=20, gate="random", advice=_CLOUD),
    _f("voyage-key", "pa- al-", rb"[A-Za-z0-9_\-]{43}(?![A-Za-z0-9_\-])", "pa-<u64:43>", need=40, least=43, gate="random"),
    _f("openshift-token", "sha256~", rb"[A-Za-z0-9_\-]{20,60}", "sha256~<u64:43>", strict=rb".{50,}"),
    _f("buildkite-token", "bkua_ bkrt_ bkct_", rb"[0-9a-f]{20,100}", "bkua_<hex:40>", cls=HEX),
    _f("circleci-token", "CCIPAT_ CCIPRJ_", rb"[A-Za-z0-9_]{20,120}", "CCIPAT_<b62:22>_<hex:40>"),
    _f("pinecone-key", "pcsk_", rb"[A-Za-z0-9_]{20,120}", "pcsk_<b62:6>_<b62:60>", gate="random"),
    _f("posthog-key", "phx_ phc_ phs_", rb"[A-Za-z0-9]{30,80}", "phx_<b62:43>", cls=B62, least=30, gate="random"),
    _f("infisical-token", "st.", rb"[0-9a-f]{24}\.[0-9a-f]{32}\.[0-9a-f]{32}", "st.<hex:24>.<hex:32>.<hex:32>", cls=HEX, need=16),
    _f("munge-credential", "MUNGE:", rb"[A-Za-z0-9+/=]{20,3000}:?", "MUNGE:<b64:120>:", cls=B64, gate="random",
       advice="a credential lives five minutes; nothing to rotate unless munge.key itself was seen"),
    # Messages, payments, tools
    _f("slack-token", "xoxe.xoxp- xoxe.xoxb- xoxb- xoxp- xoxa- xoxe- xoxo- xoxr- xoxs- xoxc- xoxd-", rb"[A-Za-z0-9%+/=\-]{8,400}",
       "xoxb-<dig:12>-<dig:12>-<b62:24> xoxp-<dig:12>-<dig:12>-<dig:12>-<hex:32> xoxa-2-<dig:12>-<dig:12>-<dig:12>-<hex:32> xoxe-1-<b62:140> "
       "xoxe.xoxp-1-<b62:160> xoxr-<dig:12>-<b62:24> xoxs-<dig:12>-<dig:12>-<dig:12>-<hex:10> xoxo-<dig:12>-<dig:12>-<b62:24>",
       strict=rb".{24,}"),
    _f("slack-app-token", "xapp-", rb"\d-[A-Z0-9]{3,20}-\d{5,20}-[0-9a-f]{8,100}", "xapp-1-A<UP36:10>-<dig:13>-<hex:64>",
       strict=rb".{60,}", cls=rb"[A-Z0-9\-]", need=6),
    _f("slack-webhook", "hooks.slack.com", rb"\\?/(?:services|workflows|triggers)(?:\\?/[A-Za-z0-9_\-]{3,80}){2,6}",
       "https://hooks.slack.com/services/T<UP36:9>/B<UP36:10>/<b62:24> https://hooks.slack.com/workflows/T<UP36:9>/A<UP36:10>/<dig:18>/<b62:24> "
       "https://hooks.slack.com/triggers/T<UP36:9>/<dig:13>/<hex:32>", cls=rb"[a-z/\\]", need=3, web=True),
    _f("discord-webhook", "/api/webhooks/ /api\\/webhooks\\/", rb"[0-9]{15,22}\\?/[A-Za-z0-9_\-]{8,120}",
       "https://discord.com/api/webhooks/<dig:19>/<u64:68> https://discordapp.com/api/webhooks/<dig:19>/<u64:68>", cls=rb"[0-9]", web=True,
       grow=(rb"[a-z.]", 24), strict=rb".{60,}"),
    _f("teams-webhook", ".webhook.office.com", rb"\\?/webhookb2\\?/[A-Za-z0-9@/\-]{40,250}",
       "https://acme.webhook.office.com/webhookb2/<uuid>@<uuid>/IncomingWebhook/<hex:32>/<uuid>", cls=rb"[a-z0-9/\\]", web=True, grow=(rb"[a-z0-9\-]", 40)),
    _f("discord-bot-token", r"~[MNO][A-Za-z0-9_\-]{23}\.[A-Za-z0-9_\-]{6}\. ~[MNO][A-Za-z0-9_\-]{25}\.[A-Za-z0-9_\-]{6}\.",
       rb"[A-Za-z0-9_\-]{27,40}", "<discord>", need=24, least=27, gate="random"),
    _f("telegram-bot-token", r"~[0-9]{8}:AA", rb"[A-Za-z0-9_\-]{32,40}", "<dig:10>:AA<u64:33> <dig:9>:AA<u64:33>", strict=rb".{43,}", grow=(rb"[0-9]", 2), least=32),
    _f("stripe-key", "sk_live_ rk_live_ sk_test_ rk_test_ sk_org_live_", rb"[A-Za-z0-9]{8,300}", "sk_live_<b62:24> rk_live_<b62:99> sk_test_<b62:24> sk_live_<b62:99>",
       strict=rb"[sr]k_(?:org_)?live_[A-Za-z0-9]{24,}", cls=B62),
    _f("stripe-webhook-secret", "whsec_", rb"[A-Za-z0-9+/=]{8,200}", "whsec_<b62:32>", strict=rb".{38,}", cls=B64),
    _f("square-token", "EAAA", rb"[A-Za-z0-9_\-]{56,64}(?![A-Za-z0-9_\-+=]|/[A-Za-z0-9+/]{16})", "EAAA<u64:60>", strict=rb".{60,68}", need=24, least=56, gate="random"),
    _f("square-secret", "sq0csp- sq0atp- sq0idp-", rb"[A-Za-z0-9_\-]{8,80}", "sq0csp-<u64:43> sq0atp-<u64:22>", strict=rb"sq0[ca].{22,}"),
    _f("shopify-token", "shpat_ shpca_ shppa_ shpss_", rb"[0-9a-fA-F]{8,80}", "shpat_<hex:32> shpca_<hex:32> shppa_<hex:32> shpss_<hex:32>", strict=rb".{38,}",
       cls=rb"[0-9a-fA-F]"),
    _f("sendgrid-key", "SG.", rb"[A-Za-z0-9_\-]{8,40}\.[A-Za-z0-9_\-]{8,80}", "SG.<u64:22>.<u64:43>", strict=rb"SG\.[A-Za-z0-9_\-]{22}\.[A-Za-z0-9_\-]{43}",
       need=16, gate="random", least=24),
    _f("twilio-key", "SK", rb"[0-9a-f]{32}(?![0-9a-zA-Z])", "SK<hex:32>", cls=HEX, need=24, least=32),
    _f("mailgun-key", "key-", rb"[0-9a-f]{32}(?![0-9a-zA-Z])", "key-<hex:32>", cls=HEX, need=24, least=32),
    _f("mailchimp-key", r"~[0-9a-f]{24}-us", rb"[0-9]{1,2}(?![0-9A-Za-z])", "<hex:32>-us<dig:2>", grow=(HEX, 8), cls=rb"[0-9]", need=1, least=1),
    _f("notion-token", "ntn_", rb"[A-Za-z0-9]{8,80}", "ntn_<b62:46>", strict=rb".{50,}", cls=B62, least=30, gate="random"),
    _f("notion-old-token", "secret_", rb"[A-Za-z0-9]{43}(?![A-Za-z0-9])", "secret_<b62:43>", cls=B62, need=24, least=43, gate="random"),
    _f("figma-token", "figd_ figu_ figo_", rb"[A-Za-z0-9_\-]{8,100}", "figd_<u64:40>", strict=rb".{40,}", least=20, gate="random"),
    _f("postman-key", "PMAK- PMAT-", rb"[0-9A-Za-z\-]{8,120}", "PMAK-<hex:24>-<hex:34> PMAT-<UP36:26>", strict=rb".{28,}", cls=rb"[0-9A-Za-z]"),
    _f("airtable-token", r"~pat[A-Za-z0-9]{14}\.", rb"[0-9a-f]{8,80}", "pat<b62:14>.<hex:64>", strict=rb".{80,}", cls=HEX),
    _f("typeform-token", "tfp_", rb"[A-Za-z0-9_\-.]{30,80}", "tfp_<u64:44>_<b62:14>", gate="random"),
    _f("resend-key", "re_", rb"[A-Za-z0-9]{6,12}_[A-Za-z0-9]{20,40}(?![A-Za-z0-9_])", "re_<b62:8>_<b62:24>", need=8, cls=rb"[A-Za-z0-9_]", gate="random"),
    _f("sendinblue-key", "xkeysib- xsmtpsib-", rb"[0-9a-f]{20,80}-[A-Za-z0-9]{8,40}", "xkeysib-<hex:64>-<b62:16>", cls=HEX),
    _f("facebook-token", "EAA", rb"[A-Za-z0-9]{100,300}(?![A-Za-z0-9_\-+/=])", "EAA<b62:150>", cls=B62, need=32, least=100, gate="random"),
    _f("duffel-key", "duffel_live_ duffel_test_", rb"[A-Za-z0-9_\-=]{20,80}", "duffel_live_<u64:43>"),
    _f("easypost-key", "EZAK EZTK", rb"[A-Za-z0-9]{54}(?![A-Za-z0-9])", "EZAK<b62:54>", cls=B62, need=24, gate="random"),
    _f("flutterwave-key", "FLWSECK-", rb"[0-9a-zA-Z\-]{12,60}", "FLWSECK-<hex:32>-X"),
    _f("lob-key", "live_pub_ test_pub_", rb"[0-9a-f]{31,40}", "live_pub_<hex:31>", cls=HEX),
    _f("readme-key", "rdme_", rb"[a-z0-9]{60,90}", "rdme_<low36:70>", cls=rb"[a-z0-9]"),
    _f("shippo-key", "shippo_live_ shippo_test_", rb"[0-9a-f]{20,60}", "shippo_live_<hex:40>", cls=HEX),
    _f("clojars-token", "CLOJARS_", rb"[a-z0-9]{60}", "CLOJARS_<low36:60>", cls=rb"[a-z0-9]"),
    _f("contentful-token", "CFPAT-", rb"[A-Za-z0-9_\-]{20,80}", "CFPAT-<u64:43>"),
    _f("frameio-token", "fio-u-", rb"[A-Za-z0-9_\-=]{40,100}", "fio-u-<u64:64>"),
    _f("prefect-key", "pnu_ pnb_", rb"[A-Za-z0-9]{30,50}", "pnu_<b62:36>", cls=B62, gate="random"),
    _f("elevenlabs-key", "sk_ pk_", rb"[0-9a-f]{32,64}(?![0-9A-Za-z_])", "sk_<hex:48> pk_<hex:34>", cls=HEX, need=24, least=32),
    _f("clickup-token", "pk_", rb"[0-9]{5,9}_[A-Z0-9]{32}(?![0-9A-Za-z_])", "pk_<dig:8>_<UP36:32>", cls=rb"[0-9_]", need=6),
    _f("firecrawl-key", "fc-", rb"[0-9a-f]{32}(?![0-9A-Za-z_\-])", "fc-<hex:32>", cls=HEX, need=24, least=32),
    _f("jina-key", "jina_", rb"[A-Za-z0-9_\-]{40,80}", "jina_<hex:32><u64:28>", need=24, least=40),
    _f("e2b-key", "e2b_", rb"[0-9a-f]{40}(?![0-9a-zA-Z])", "e2b_<hex:40>", cls=HEX, need=24, least=40),
    _f("apify-token", "apify_api_", rb"[A-Za-z0-9]{30,50}", "apify_api_<b62:36>", cls=B62, least=30),
    _f("mapbox-token", "sk.eyJ pk.eyJ", rb"[A-Za-z0-9_\-]{30,200}\.[A-Za-z0-9_\-]{20,40}", "sk.eyJ<b62:50>.<u64:22>", least=30),
    _f("modal-token", "ak- as-", rb"[A-Za-z0-9]{22}(?![A-Za-z0-9_\-])", "ak-<b62:22> as-<b62:22>", cls=B62, need=20, least=22, gate="random"),
    _f("snyk-token", "snyk_uat. snyk_sat.", rb"[0-9a-f]{8}\.[A-Za-z0-9_\-]{40,120}", "snyk_uat.<hex:8>.<u64:90>", cls=HEX),
    _f("ory-token", "ory_st_ ory_at_ ory_rt_ ory_pat_ ory_apikey_", rb"[A-Za-z0-9_\-]{30,60}(?:\.[A-Za-z0-9_\-]{30,60})?", "ory_st_<b62:32> ory_at_<u64:43>.<u64:43>", least=30, gate="random"),
    _f("razorpay-key", "rzp_live_ rzp_test_", rb"[A-Za-z0-9]{14,40}", "rzp_live_<b62:14>", cls=B62, least=14),
    _f("google-ai-key", "AQ.Ab8", rb"[A-Za-z0-9_\-]{30,100}", "AQ.Ab8<u64:50>", need=24, least=30, advice=_CLOUD),
    _f("google-service-token", "ya29.c.", rb"[A-Za-z0-9_\-.]{40,2100}", "ya29.c.<u64:120>", need=24, least=40, advice=_CLOUD),
    _f("context7-key", "ctx7sk-", rb"[0-9a-f]{8}-[0-9a-f\-]{27}", "ctx7sk-<uuid>", cls=HEX),
    _f("youtrack-token", "perm: perm-", rb"[A-Za-z0-9+/]{8,60}={0,2}\.[A-Za-z0-9+/]{8,60}={0,2}\.[A-Za-z0-9]{24,60}", "perm:<b64:12>=.<b64:12>=.<b62:30> perm-<b64:12>.<b64:8>.<b62:30>", cls=B64, need=8),
    _f("sonar-token", "sqp_ squ_ sqa_", rb"[0-9a-f]{40}(?![0-9a-zA-Z])", "sqp_<hex:40> squ_<hex:40> sqa_<hex:40>", cls=HEX, need=24, least=40),
    _f("dynatrace-token", "dt0c01. dt0s01. dt0s16.", rb"[A-Z0-9]{8,24}\.[A-Z0-9]{64}", "dt0c01.<UP36:24>.<UP36:64> dt0s16.<UP36:8>.<UP36:64>", cls=rb"[A-Z0-9.]"),
    _f("launchdarkly-key", "sdk- api- mob-", rb"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9a-zA-Z])", "sdk-<uuid> api-<uuid> mob-<uuid>", cls=rb"[0-9a-f\-]", need=24),
    _f("wakatime-key", "waka_", rb"[0-9a-f]{8}-[0-9a-f\-]{27}", "waka_<uuid>", cls=HEX),
    _f("planet-key", "PLAK", rb"[0-9a-f]{32}(?![0-9a-zA-Z])", "PLAK<hex:32>", cls=HEX, need=24, least=32),
    _f("cursor-key", "key_ crsr_", rb"[0-9a-f]{64}(?![0-9a-zA-Z])", "key_<hex:64> crsr_<hex:64>", cls=HEX, need=32, least=64),
    _f("mongodb-service-secret", "mdb_sa_sk_", rb"[A-Za-z0-9_\-]{30,60}", "mdb_sa_sk_<u64:40>", need=16, least=30),
    _f("declared-token", "secret-token:", rb"[A-Za-z0-9._~!$&'()*+,;=:@%\-]{16,200}", "secret-token:<u64:40>", need=16, gate="random"),
    _f("anyscale-key", "aph0_ esecret_", rb"[A-Za-z0-9_\-]{20,90}", "aph0_<u64:64> esecret_<b62:26>", need=16, least=20, gate="random"),
    _f("databricks-oauth-secret", "dose", rb"[0-9a-f]{32}(?![0-9a-zA-Z])", "dose<hex:32>", cls=HEX, need=24, least=32, advice=_CLOUD),
    _f("hubspot-token", "pat-na1- pat-na2- pat-eu1- pat-ap1-", rb"[0-9a-f]{8}-[0-9a-f\-]{27}", "pat-na1-<uuid> pat-eu1-<uuid>", cls=HEX),
    _f("intra42-secret", "s-s4t2ud- s-s4t2af-", rb"[0-9a-f]{64}", "s-s4t2ud-<hex:64>", cls=HEX),
    _f("settlemint-token", "sm_pat_ sm_aat_ sm_sat_", rb"[A-Za-z0-9]{16,40}", "sm_pat_<b62:16>", cls=B62),
    _f("scalingo-token", "tk-us-", rb"[A-Za-z0-9_\-]{40,60}", "tk-us-<u64:48>", need=24, least=40),
    _f("password-hash", "{SSHA} {SSHA256} {SSHA512} {SHA} {SMD5} {CRYPT}", rb"[A-Za-z0-9+/$.]{20,130}={0,2}", "{SSHA}<b64:32> {SSHA512}<b64:96>", cls=B64, need=16, least=20,
       advice=_HASH, gate="random"),
    _f("django-hash", "pbkdf2_sha256$ pbkdf2_sha1$ bcrypt_sha256$", rb"\$?[A-Za-z0-9]{1,20}\$[A-Za-z0-9./$]{4,60}\$?[A-Za-z0-9+/.]{20,90}={0,2}", "pbkdf2_sha256$260000$<b62:22>$<b64:43>=",
       cls=rb"[0-9a-z$]", need=2, least=24, advice=_HASH, gate="random"),
    # Tokens
    _f("jwt", "eyJ", rb"[A-Za-z0-9_\-]{8,8192}\.(?:[A-Za-z0-9_\-]{2,16384}\.[A-Za-z0-9_\-]{0,8192}|[A-Za-z0-9_\-]{0,4096}(?:\.[A-Za-z0-9_\-]{0,16384}){3}|eyJ[A-Za-z0-9_\-]{8,16384})",
       "<jwt>", check=jwt_not_sample, need=10, least=20, gate="jwt",
       advice="end the session or rotate the signing key; a JWT is valid until it expires"),
    # Hashes
    _f("crypt-hash", "$1$ $2a$ $2b$ $2y$ $5$ $6$ $7$ $y$ $gy$ $apr1$ $argon2id$ $argon2i$ $argon2d$ $sha1$ $scrypt$ $pbkdf2-sha256$ $pbkdf2-sha512$ $pbkdf2$ $ml$ $P$ $H$ $S$",
       rb"(?:[A-Za-z0-9./=,+:_-]{1,120}\$){0,4}[A-Za-z0-9./+]{20,200}={0,2}",
       "$1$<crypt:8>$<crypt:22> $2b$12$<crypt:53> $2a$10$<crypt:53> $2y$10$<crypt:53> $5$<crypt:16>$<crypt:43> $6$<crypt:16>$<crypt:86> "
       "$6$rounds=5000$<crypt:16>$<crypt:86> $pbkdf2-sha256$29000$<crypt:22>$<crypt:43> $y$j9T$<crypt:22>$<crypt:43> $7$CU..../....<crypt:20>$<crypt:43> $apr1$<crypt:8>$<crypt:22>",
       cls=rb"[A-Za-z0-9./=,+]", need=2, least=24, advice=_HASH, gate="random", strict=rb"\$.*\$.{22,}"),
    _f("keytab", "BQIAAA", rb"[A-Za-z0-9+/]{40,60000}={0,2}", "BQIAAA<b64:120>", cls=B64, need=24, least=40, gate="random",
       advice="change the principal's key (kadmin: ktadd), which ends the old keytab"),
)  # fmt: skip
