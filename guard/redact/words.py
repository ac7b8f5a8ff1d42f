# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Which names promise a secret, and which values look like one.

Two judgements are made from words alone: is `AZURE_CLIENT_SECRET` the name of a secret while `token_count` is not;
is the value beside it a secret, a placeholder, a reference to one, or a piece of a program. Whole words are tested,
never substrings: the letters `my` occur in 9 % of random 93-character keys.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final

from guard.redact.lazy import Lazy

PASSWORD, TOKEN, KEY, WEAK = 4, 3, 2, 1
"""How much a name promises: a password may be short, a weak name needs a value that looks random."""

_SPLIT = Lazy(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_PASSWORD_WORDS: Final = frozenset(
    b"password passwd passwrd passphrase pwd pass passcode pswd psswd pw passwort sshpass pgpassword storepass keypass "
    b"userpass authtok bindpw rootpw dbpass dbpasswd dbpassword mypass userpassword rootpassword adminpassword mysqlpwd rootpass "
    b"kennwort motdepasse contrasena senha wachtwoord passe requirepass masterauth adminpass smtppass ldappass bindpass passin passout authpass "
    b"loginpassword pskpass newpassword oldpassword currentpassword confirmpassword psk unlockcode clave parola".split()
)
_TOKEN_WORDS: Final = frozenset(
    b"token secret jwt secrets apikey authtoken accesstoken apitoken bearer clientsecret secretkey refreshtoken idtoken "
    b"accesskey privatekey authkey secretaccesskey sessiontoken webhooksecret appsecret apisecret githubtoken "
    b"accountkey sharedaccesskey signingkey encryptionkey masterkey consumersecret tok secretid sharedsecret "
    b"subscriptionkey apppassword presharedkey usertoken bottoken deploytoken servicekey sastoken accesssecret "
    b"registrationtoken runnertoken identitytoken registrytoken".split()
)
_WEAK_WORDS: Final = frozenset(
    b"key auth credential credentials creds cred cookie pat keys authorization signature sig sessionid session sid "
    b"dsn webhook connectionstring sas nonce tokens passwords".split()
)
# Words that, standing before `key`, make a key a secret.
_KEY_MAKERS: Final = frozenset(
    b"api access secret private account shared sharedaccess signing encryption master consumer subscription service "
    b"app application client auth admin root deploy license storage primary2 aes hmac jwt session preshared wg crypto "
    b"decrypt decryption encrypt webhook rest platform project license developer dev host vault unseal recovery user".split()
)
# A last word that says: not the secret itself, but something about it.
_ABOUT: Final = frozenset(
    b"file files path paths dir url uri urls name names id ids type types count counts size len length limit max min "
    b"ttl expiry expires expiration expire timeout age policy prompt field fields label hint regex regexp pattern "
    b"format env var variable prefix suffix index idx pos position num number usage budget rate cost map dict "
    b"class func function handler manager provider store cache validator check required enabled disabled valid error "
    b"errors message msg title description desc help arg args param params option opt options mode version algorithm alg "
    b"method endpoint host port username stream kind ring board word words bits digest fingerprint source change "
    b"reset strength rule rules stdin command cmd helper program input output attempts retries attempt group groups "
    b"algo salt callback hook generator gen factory iter iterator start end begin line column offset loc span node "
    b"error2 info status state scope scopes owner location lifetime header headers fd is has needs use with set get "
    b"changed updated created at time date issuer audience ref refs reference lookup list manager auth2 exists "
    b"protected encrypted hashed masked hidden visible placeholder template schema spec sep separator delimiter "
    b"table column2 row tree parser lexer verifier verify hasher rotation days interval period event events "
    b"display show hide toggle button form page view icon "
    b"types2 lower upper kwarg kwargs cls obj object item items width height bytes2 func2 test tests2 cb fn "
    b"sign point points pair pairs press down code codes up event2 space stroke frame frames by stone note words2 "
    b"hash hashes order sort usage2 uses policy2 rotate expand used left right total per".split()
)
# A word after the sensitive one that changes nothing.
_QUALIFIER: Final = frozenset(
    b"prod production dev devel development test testing staging stage old new base64 b64 value raw default main root "
    b"admin live here string str plain plaintext cleartext clear current previous primary secondary backup local remote "
    b"ro rw read write next enc db text data for aws gcp azure github gitlab user key keys hex base".split()
)


@lru_cache(maxsize=8192)
def name_strength(name: bytes) -> int:
    """Say how strongly a variable, key, option or header name promises a secret: 0 (not) to PASSWORD.

    Args:
        name: without quotes and separators, at most a line long; only the last 64 bytes are judged.
    """
    words = [w.lower() for w in _SPLIT.findall(name[-64:])]
    if not name.isascii() and _FOREIGN.search(name):
        return PASSWORD
    while words and (words[-1].isdigit() or words[-1] in _QUALIFIER) and len(words) > 1:
        if words[-1] in (b"key", b"keys"):
            break
        words.pop()
    if not words:
        return 0
    last = words[-1]
    pair = words[-2] + last if len(words) > 1 else b""
    triple = words[-3] + pair if len(words) > 2 else b""
    if last in _PASSWORD_WORDS or pair in _PASSWORD_WORDS or pair in (b"passphrase", b"passcode", b"password"):
        if last == b"pass" and len(words) > 1 and words[-2] in (b"by", b"first", b"second", b"two", b"single", b"one"):
            return 0
        if last in (b"pass", b"pw", b"pwd") and len(words) > 1 and words[-2] in (b"old", b"all", b"n", b"num"):
            return PASSWORD if words[-2] == b"old" and last == b"pw" else 0
        return PASSWORD
    if last in _TOKEN_WORDS or pair in _TOKEN_WORDS or triple in _TOKEN_WORDS:
        return TOKEN
    if last in _ABOUT:
        return 0
    if last in (b"key", b"keys"):
        if len(words) > 1 and words[-2] in _KEY_MAKERS:
            return KEY
        return 0 if len(words) > 1 and words[-2] in _NOT_SECRET_KEYS else WEAK
    if last == b"pat":
        # A pattern in most programs; a personal access token where the name is a variable's or says so.
        if name.isupper() or (
            len(words) > 1 and words[-2] in (b"github", b"gitlab", b"azure", b"access", b"gh", b"gl")
        ):
            return TOKEN
        return WEAK if len(words) < 2 or words[-2] in _PATTERNS else KEY
    if last in _WEAK_WORDS:
        return WEAK
    if last in PROVIDERS or (
        len(words) > 1 and words[-2] in PROVIDERS and last in (b"app", b"application", b"id", b"prod")
    ):
        return WEAK
    # `password_of_bob`, `tokenProdEu`: a secret word that something else follows.
    for word in words[:-1] if b"with" not in words else ():
        if word in _PASSWORD_WORDS and word not in (b"pass", b"pw", b"pwd"):
            return KEY
        if word in (b"secret", b"apikey", b"token"):
            return WEAK
    # One run without any separator: `mysqlrootpassword`, `ncbiapikey`.
    if len(last) > 8 and last.endswith((b"password", b"passwd", b"passphrase", b"storepass", b"keypass")):
        return PASSWORD
    if len(last) > 6 and last.endswith(
        (b"apikey", b"authtoken", b"secretkey", b"accesstoken", b"accesskey", b"apitoken")
    ):
        return TOKEN
    return 0


FOREIGN: Final = (
    "contrase\u00f1a", "\u5bc6\u7801", "\u5bc6\u78bc", "\u53e3\u4ee4", "\u30d1\u30b9\u30ef\u30fc\u30c9", "\u043f\u0430\u0440\u043e\u043b\u044c", "\u041f\u0430\u0440\u043e\u043b\u044c",
    "\ube44\ubc00\ubc88\ud638", "has\u0142o",
)  # fmt: skip
"""Passwords in Spanish, Chinese, Japanese, Russian, Korean, Polish."""

_FOREIGN = Lazy("|".join(FOREIGN).encode())

_PATTERNS: Final = frozenset(
    b"re regex search name path file line word sub glob url date time match test my the a input output new old ext".split()
)
"""Words before `pat` that make it a pattern."""

PROVIDERS: Final = frozenset(
    b"cohere mistral cloudflare snowflake okta auth0 dropbox heroku datadog splunk elastic algolia adafruit asana bittrex coinbase "
    b"contentful confluent fastly finnhub freshbooks gitter kraken kucoin launchdarkly linkedin looker mailchimp mattermost nytimes "
    b"plaid sendbird squarespace sumologic travisci twitch twitter yandex zendesk wandb shodan virustotal newrelic pagerduty".split()
)
"""Providers whose keys have no format; their bare name before a value is a hint, no more."""

_NOT_SECRET_KEYS: Final = frozenset(
    b"foreign public sort cache partition hash group row column index search dict map object lookup unique "
    b"composite natural parent child tab enter arrow shift space hot registry config settings json yaml xml sub super "
    b"any no first last next prev the this that each every new old translation message i18n state react item data event "
    b"keyboard home end up down left right escape ctrl alt meta function f test by of with order compare ordering "
    b"rsa dsa ec pub trusted host known sigstore minisign route routing storage2 idempotency dedupe s3 blob bucket "
    b"metadata meta cert node edge gpg pgp signed release build content etag".split()
)

_PLACE_WORDS: Final = frozenset(
    b"your my the a an enter insert put paste here example sample dummy placeholder changeme change me replace replaceme "
    b"redacted removed hidden masked censored none null nil true false undefined todo tbd fixme xxx xxxx foo bar baz "
    b"qux foobar password passwd passphrase pass pwd secret token key apikey api access client value string str text user "
    b"username name test testing fake mock not real with this is of for to and or in from some any else "
    b"required optional default empty blank unset env environ environment variable var bytes byte int bool boolean "
    b"object obj list dict tuple any type id invalid valid valid2 wrong bad private public auth oauth bearer basic "
    b"authorization credentials credential redact hunter prompt ask stdin input file path field yes no on off "
    b"account service provider github gitlab openai anthropic aws azure google slack hf huggingface stripe "
    b"company org project app application random generated hash hashed encrypted secure insecure strong weak long short "
    b"new old current confirm confirmation repeat again please must should your own goes get set self cls super return "
    b"args kwargs opts options config settings params request response data body json form session "
    b"credentialsbinding supersecret mysecret mypassword secretpassword testpassword testtoken somepassword sometoken "
    b"passwort kennwort benutzer contrasena senha wachtwoord motdepasse haslo heslo parola salasana anonymous anoncvs debian ubuntu "
    b"undefinedsecret lorem ipsum abc abcd abcdef abcdefg def ghi xyz deadbeef cafebabe".split()
)
_REFERENCE_ONLY = Lazy(
    rb"(?:\$\{?[A-Za-z_][A-Za-z0-9_]{0,80}\}?|\$\{\{.{0,200}\}\}|\$\(.{0,400}\)|`.{0,400}`|\$\{[A-Za-z_][^{}]{0,200}\}|"
    rb"(?:\$[0-9@*#?!])+|%[A-Za-z_][A-Za-z0-9_]{0,60}%|%\([a-z_A-Z0-9]{1,60}\)s|%[sdrqv]|\{\{.{0,200}\}\}|\{%.{0,200}%\}|"
    rb"\{[A-Za-z_0-9.\[\]!:'\"()]{0,100}\}|\{[A-Za-z_][A-Za-z0-9_.]{0,80}|<[^<>]{1,80}>|\[[A-Za-z_ ./-]{1,60}\]|@[A-Za-z_]{1,40}@|#\{.{1,100}\}|"
    rb"AAAA[A-Z][23]Nza[A-Za-z0-9+/=]+|AAAAE2Vj[A-Za-z0-9+/=]+|\$env:[A-Za-z_]{1,60}|op://.{1,200}|(?:env|vault|file|ref|arn|ssm|secretsmanager)[:+].{1,300})\Z",
    re.DOTALL,
)
_EXPRESSION = Lazy(
    rb"(?:os|process|System|self|this|cls|config|settings|conf|app|args|opts|options|params|request|req|ctx|env|props|"
    rb"kwargs|data|ENV|Deno|import\.meta|module|parser|cfg|ns|namespace|credentials|creds|user|session|response|resp|"
    rb"client|res|event|match|m|node|tok|token|parsed|url|parts|values|obj|item|input|form|state|"
    rb"var|local|secrets|vars|steps|inputs|each|github)\??(?:\.|\[|->)[A-Za-z_\[\"'$0-9(].*|"
    rb"[A-Za-z_][A-Za-z0-9_.:>-]*\(.*|[A-Za-z_][A-Za-z0-9_.]*\[.*|(?:lambda|await|new|not|async|function|return|yield)\b.*",
    re.DOTALL,
)
_SEQUENCES = (
    b"abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz", b"01234567890123456789", b"98765432109876543210",
    b"qwertyuiopasdfghjklzxcvbnm", b"0123456789abcdef0123456789abcdef", b"1234567890abcdef1234567890abcdef", b"a1b2c3d4e5f6g7h8i9j0k1l2m3n4o5p6q7r8s9t0",
    b"1a2b3c4d5e6f7g8h9i0j", b"abc123def456ghi789jkl012mno345pqr678stu901vwx234yz",
)  # fmt: skip


@lru_cache(maxsize=1024)
def entropy(value: bytes) -> float:
    """Return the Shannon entropy of a value in bits a byte, from its own byte frequencies."""
    n = len(value)
    if n < 2:
        return 0.0
    counts = [value.count(byte) for byte in set(value)]
    return math.log2(n) - sum(map(_C_LOG_C.__getitem__ if n < 512 else _c_log_c, counts)) / n


def _c_log_c(count: int) -> float:
    return count * math.log2(count) if count else 0.0


_C_LOG_C: Final = [_c_log_c(count) for count in range(512)]


def is_reference(value: bytes) -> bool:
    """Say whether a value is the place of a secret (a variable, a lookup, a template) and not the secret."""
    return _REFERENCE_ONLY.match(value) is not None


def is_expression(value: bytes) -> bool:
    """Say whether an unquoted value is a piece of a program: `os.environ[…]`, `self.password`, `get(…)`."""
    return _EXPRESSION.match(value) is not None


_WORDS_IN = Lazy(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_MASK = Lazy(
    rb"(?:[^A-Za-z0-9]{0,3}<[A-Za-z_ -]{1,24}[0-9]{0,3}(?::[0-9]{1,4})?>[^A-Za-z0-9]{0,3}n?){1,3}\Z|[*xX.\-_#?0\xe2\x80\xa2\x97\x8f\xa6~ ]{2,}\Z|(.)\1{3,}\Z|.{0,8}\*{3,}.{0,8}\Z|.{0,6}\.{3}.{0,6}\Z",
    re.DOTALL,
)


@lru_cache(maxsize=4096)
def is_placeholder(value: bytes) -> bool:
    """Say whether every word of a value is one that stands for a secret: `YOUR_API_KEY`, `changeme`, `xxxx`, `<token>`.

    Args:
        value: unescaped and unquoted.
    """
    if len(value) < 3 or is_reference(value) or _MASK.match(value):
        return True
    if b"[REDACTED" in value or b"_REDACTED_" in value:
        return True
    words = [w.lower() for w in _WORDS_IN.findall(value)]
    if not words:
        return len(set(value)) < 3
    letters = [w for w in words if not w.isdigit()]
    digits = sum(len(w) for w in words) - sum(len(w) for w in letters)
    if not letters:
        return value.isdigit() and (len(set(value)) == 1 or value in b"01234567890123456789 98765432109876543210")
    if digits > 4:
        return False
    symbols = len(value) - sum(len(w) for w in words)
    if symbols > len(words) + 1:
        return False
    whole = b"".join(letters)
    if whole in _PLACE_WORDS and (digits == 0 or whole in (b"foo", b"bar", b"xxx", b"test", b"abc", b"example")):
        return digits < 4
    return digits == 0 and all(w in _PLACE_WORDS or (len(set(w)) == 1 and len(w) > 2) for w in letters)


_LEET = bytes.maketrans(b"0134578@$!", b"oieastbasi")


def is_spelt_out(value: bytes) -> bool:
    """Say whether a value is a placeholder in digits' clothing (`s3cr3t`, `P@ssw0rd`): redacted, and no incident."""
    return value.lower().startswith(b"hunter2") or is_placeholder(value.rstrip(b"!@#$").translate(_LEET))


@lru_cache(maxsize=1024)
def is_sequence(body: bytes) -> bool:
    """Say whether a body is a counting row or a repetition (`1234…`, `abcdef…`, `x` times 40), as examples have."""
    low = body.lower().translate(None, b"-_.")
    if len(low) < 6:
        return len(set(low)) < 3
    size = len(low)
    if low[:12] in _JOINED_SEQUENCES:
        return True
    if len(set(low[:20])) < 8 and len(set(low)) < (8 if size > 39 else 5 if size < 30 else size // 5):
        return True
    # A repetition of up to twelve characters shows its beginning again within the first 24.
    again = low.find(low[:3], 1, 15)
    if again < 0 and size > 12:
        return False
    for size in range(1, 13):
        if low[:size] * (len(low) // size) == low[: size * (len(low) // size)] and len(low) >= 2 * size + 4:
            return True
    return False


_JOINED_SEQUENCES: Final = b"\0".join(_SEQUENCES)


def counts_up(value: bytes) -> bool:
    """Say whether ten characters of a counting row stand anywhere in a value: nobody's key does that."""
    low = value[:256].lower()
    return not _ROWS.isdisjoint([low[i : i + 10] for i in range(len(low) - 9)])


def counts_apart(value: bytes) -> bool:
    """Say whether digits and letters of a short value each count up by themselves: `Abc12345`, `A1b2C3d4`."""
    low = value.lower()
    digits = bytes(byte for byte in low if 48 <= byte <= 57)
    letters = low.translate(None, digits)
    if len(value) > 24 or len(digits) < 3 or not letters.isalpha():
        return False
    return digits in b"01234567890" and (letters in b"abcdefghijklmnopqrstuvwxyz" or len(digits) >= 4)


_ROWS: Final = frozenset(row[i : i + 10] for row in _SEQUENCES for i in range(len(row) - 9))


_EXAMPLE = Lazy(
    rb"(?i)(?:^|[^a-z])(?:example|your|placeholder|changeme|dummy|redacted|fake|insert|replace|xxxxx|xxxx+)(?:[^a-z]|$)|example(?:key)?\Z"
)  # fmt: skip


def is_example(body: bytes) -> bool:
    """Say whether a key of a known format is documentation: a counting row, or EXAMPLE as a word or at the end."""
    if is_sequence(body) or b"EXAMPLE" in body:
        return True  # seven capitals in a row that chance does not spell
    return _EXAMPLE_HINT.search(body.lower()) is not None and _EXAMPLE.search(body) is not None


_EXAMPLE_HINT = Lazy(rb"[eypcdrfix](?:xam|our|lac|han|umm|eda|ake|nse|epl|xxx)")
"""The beginnings of `_EXAMPLE`'s words; asked of every key, so it is the cheaper question."""


_VOWEL_RUN = Lazy(rb"[a-z]{3,}|[A-Z]{4,}|[A-Z][a-z]{2,}")
_PRONOUNCED = Lazy(rb"(?i)[aeiouy]")
_CLUSTER = Lazy(rb"(?i)[bcdfghjklmnpqrstvwxz]{5,}|[^aeiou]q|q[^u]|[jvx][bcdfghjklmnpqrstvwxz]|[bcdfghjkpqtvwxz]{3}")


@lru_cache(maxsize=1024)
def wordiness(value: bytes) -> float:
    """Return the share of a value, 0 to 1, that reads like words of a language or identifiers."""
    if not value:
        return 1.0
    total = 0
    for match in _VOWEL_RUN.finditer(value):
        run = match.group()
        vowels = len(_PRONOUNCED.findall(run))
        if 0.2 <= vowels / len(run) <= 0.75 and not _CLUSTER.search(run):
            total += len(run)
    return total / len(value)


_SNAKE = Lazy(rb"[a-z][a-z0-9]{0,11}(?:_[a-z0-9]{1,12}){2,}\Z|[A-Z][A-Z0-9]{0,11}(?:_[A-Z0-9]{1,12}){2,}\Z")


def jumble(value: bytes) -> float:
    """Return how often neighbours differ in class (digit, upper, lower, other), 0 to 1: 0.6 for random base62, 0.3 for words.

    Names of things change case once a word; drawn characters change at every second place.
    """
    if len(value) < 2:
        return 0.0
    count = value.translate(_CLASS).count
    # Two neighbours of different classes cannot overlap with the next such pair, so counting them is exact.
    changes = (
        count(b"\1\2") + count(b"\2\1") + count(b"\1\3") + count(b"\3\1") + count(b"\2\3") + count(b"\3\2")
    )
    if not value.isalnum():
        for pair in _OTHER_PAIRS:
            changes += count(pair)
    return changes / (len(value) - 1)


_OTHER_PAIRS: Final = (b"\1\4", b"\4\1", b"\2\4", b"\4\2", b"\3\4", b"\4\3")
_DIGITS: Final = b"0123456789"


def digits_in(value: bytes) -> int:
    """Count the digits of a value."""
    return len(value) - len(value.translate(None, _DIGITS))


_CLASS = bytes(1 if 48 <= b <= 57 else 2 if 65 <= b <= 90 else 3 if 97 <= b <= 122 else 4 for b in range(256))


@lru_cache(maxsize=2048)
def looks_random(value: bytes, least: int = 16) -> bool:
    """Say whether a value looks drawn at random: long, mixed, dense, and hardly any word in it.

    Args:
        value: unescaped and unquoted.
        least: the least length in bytes.
    """
    if len(value) < least or b" " in value:
        return False
    has_digit = digits_in(value) > 0
    has_upper = value != value.lower()
    has_lower = value != value.upper()
    if not (has_digit + has_upper + has_lower >= 2):
        return False
    if not has_digit and len(value) < 20:
        return False
    if len(set(value)) < 16 and entropy(value) < (2.6 if len(value) < 24 else 3.0):
        return False
    if is_sequence(value) or _SNAKE.match(value):
        return False
    if has_lower and has_upper and jumble(value) >= 0.42 and b"_" not in value:
        return True
    if has_lower and has_upper and len(value) >= 24 and digits_in(value) > 2:
        # Long enough to be judged by how little of it reads like words, an underscore among it or not.
        plain = value.translate(None, b"_-")
        if jumble(plain) >= 0.3 and wordiness(plain) < 0.6 and value.count(b"_") < 4:
            return True
    return wordiness(value) < (0.45 if has_digit else 0.35)


def is_name(body: bytes) -> bool:
    """Say whether what follows a key's start is a name made of words: `sk-ant-some-words-here`, `npm_config_registry`."""
    digits = digits_in(body)
    return digits <= 2 and (body.islower() or body.isupper() or jumble(body) < 0.3) and wordiness(body) >= 0.5


def drawn(body: bytes, least: int) -> bool:
    """Say whether a body behind a known start was drawn at random; the start is evidence already, so less is asked.

    Args:
        body: what follows the start.
        least: the least length in bytes.
    """
    if len(body) < least or is_sequence(body):
        return False
    if len(body) >= 20 and body.isalnum() and len(set(body[:32])) > 15 and jumble(body) >= 0.42:
        return True  # what most keys are; the rest of the questions would say the same
    if looks_random(body, least):
        return True
    digits = digits_in(body)
    if digits >= 3 and jumble(body) >= 0.2 and wordiness(body) < 0.75:
        return True
    return jumble(body) >= 0.3 and not body.islower() and wordiness(body) < 0.8


def mixed(body: bytes) -> bool:
    """Say whether a body of a format's full length is no name: drawn letters may come out nearly pronounceable."""
    return not (body.islower() or body.isupper() or is_sequence(body)) and wordiness(body) < 0.6
