# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""The table of contexts: where the prefilter stops, who confirms, what each must catch and leave.

In a sample `<pw>` is a password with all character classes that need no quoting, `<apw>` one of letters and digits, and
`<b62:36>` and its like random characters of that alphabet; what they stand for must be gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from guard.redact.rules import addresses, assignments, below, beside, blocks, commands, headers, options, statements
from guard.redact.spans import Span
from guard.redact.text import Text

Confirm = Callable[[Text, int], "list[Span]"]


class Context(NamedTuple):
    """One context; `pattern` ends where `confirm` anchors, `literals` are what it cannot match without.

    Without a pattern the matcher knows nothing of it: `decoding.long_words` says where to look.
    """

    name: str
    pattern: bytes
    literals: tuple[bytes, ...]
    confirm: Confirm
    samples: tuple[str, ...]
    leaves: tuple[str, ...] = ()


_WORD = (
    rb"(?:passw|passphrase|passcode|pass|pwd|psw|secret|token|key|cred|auth|jwt|psk|[_-]pat|(?-i:[a-z]Pat)|pw|cookie|session|sess|signature|"
    rb"cohere|mistral|cloudflare|snowflake|okta|auth0|dropbox|heroku|datadog|splunk|elastic|algolia|twitch|twitter|wandb|"
    rb"dsn|nonce|kennwort|senha|contrase|webhook|_tok|sas|sid|passe|wachtwoord|clave|parola)"
)
_KEYWORDS = (
    b"pass", b"pwd", b"psw", b"secret", b"token", b"key", b"cred", b"auth", b"jwt", b"psk", b"pat", b"pw", b"cookie", b"sess", b"signature", b"dsn",
    b"nonce", b"kennwort", b"senha", b"contrase", b"webhook", b"_tok", b"sas", b"sid", b"wachtwoord", b"clave", b"parola",
    b"cohere", b"mistral", b"cloudflare", b"snowflake", b"okta", b"auth0", b"dropbox", b"heroku", b"datadog", b"splunk", b"elastic", b"algolia",
    b"twitch", b"twitter", b"wandb",
)  # fmt: skip
_TAIL = rb"[A-Za-z0-9_.\-\x80-\xff]{0,32}"
_QUOTE = rb"\\{0,7}[\"'`]"

CONTEXTS: Final[tuple[Context, ...]] = (
    Context("assignment", _WORD + _TAIL + rb"(?:" + _QUOTE + rb"\)?|\*\*|&quot;)?[\]}]?[ \t]{0,16}(?:[+:?|!~<>=-]?=>?|:)", _KEYWORDS, assignments.assign,
            ("export GITHUB_TOKEN=<b62:40>", "AWS_SECRET_ACCESS_KEY=<b64:40> cmd", "DB_PASSWORD='<pw>'", "password: \"<pw>\"", "password = <apw>",
             "{\"client_secret\": \"<b62:32>\"}", "os.environ[\"API_KEY\"] = \"<b62:32>\"", "ENTREZ_KEY=<hex:36>", "Server=h;Uid=bob;Pwd=<apw>;",
             "db.connect(host=\"h\", password=\"<pw>\")", "api_key=\"<b62:24>\"", "secret_key: <b62:40>", "password=<apw>", "password: \u201c<pw>\u201d"),
            ("password = getpass.getpass()", "token = tokens[0]", "PASSWORD=$DB_PASSWORD", "api_key: YOUR_API_KEY", "password=None", "token: str",
             "API_KEY=${{ secrets.API_KEY }}", "PASSWORD=$(pass show db)", "password=os.environ['PW']", "PWD=/home/bob", "max_tokens=4096",
             "key=lambda x: x", "sort_key = 'created_at'", "password: changeme")),
    # By themselves: among the words above these bytes would halve the matcher's speed.
    Context("foreign", rb"(?:\xe5\xaf\x86\xe7(?:\xa0\x81|\xa2\xbc)|\xe5\x8f\xa3\xe4\xbb\xa4|\xe3\x83\xaf\xe3\x83\xbc\xe3\x83\x89|\xd0\xbe\xd0\xbb\xd1\x8c|\xeb\xb2\x88\xed\x98\xb8|has\xc5\x82o)(?:" + _QUOTE
            + rb")?[ \t]{0,4}[:=]", (b"\xe5\xaf\x86\xe7", b"\xe5\x8f\xa3", b"\xe3\x83\xaf", b"\xd0\xbe\xd0\xbb", b"\xeb\xb2\x88", b"has\xc5\x82o"), assignments.assign,
            ("\u5bc6\u7801: <apw>", "\u043f\u0430\u0440\u043e\u043b\u044c = <apw>", "has\u0142o: <apw>"), ()),
    Context("arrow", rb"[a-z0-9\"'`][ \t]{1,8}(?:->|\xe2\x86\x92)[ \t]{1,4}(?:" + _QUOTE + rb")?[a-z0-9_\-+/=.!%@^~]{8}", (b"->", b"\xe2\x86\x92"), assignments.arrow,
            ("api_key -> <b62:40>", "password \xe2\x86\x92 <apw>".encode("latin-1").decode()), ("def token(x) -> something", "a->token -> nextelement")),
    Context("element", rb"<[a-z:._\-]{0,32}(?:passw|pass|pwd|secret|token|key|cred|[a-z_\-]pat)[a-z0-9_.\-]{0,24}(?: [^<>\n]{0,80})?>", (b"pass", b"pwd", b"secret", b"token", b"key", b"cred", b"pat"),
            assignments.assign, ("<password><pw></password>",), ("<password></password>", "<token>your_token</token>")),
    Context("option", rb"-[a-z0-9_.\-]{0,48}(?:passw|passphrase|pass|pwd|secret|token|key|cred|auth|jwt|psk|pat)[a-z0-9_\-]{0,24}(?:[ \t]{1,4}|=|" + _QUOTE + rb"[ \t]{0,4},[ \t]{0,4}" + _QUOTE + rb")",
            (b"pass", b"pwd", b"secret", b"token", b"key", b"cred", b"auth", b"jwt", b"psk", b"pat"), options.flag,
            ("tool --token <b62:36> x", "tool --token=<b62:36>", "tool --password <pw>", "tool --password=<pw>", "gpg --passphrase '<pw>' f",
             "[\"tool\", \"--password\", \"<pw>\"]", "keytool -storepass <apw>", "tool --api-key=<b62:32>"),
            ("tool --token-file /etc/t", "tool --password-stdin", "tool --token $TOKEN", "tool --key-size 2048")),
    Context("setting", rb"(?:setenv|setx|setq|set-environment|env:set|secret set|set(?:[ \t]+-[a-z]{1,4}|[ \t]+--[a-z]+){1,4}|env|define|arg)[ \t]+[a-z0-9_.\-$:\"'\\]{0,48}(?:pass|pwd|secret|token|key|cred|auth|jwt|_pat)",
            (b"set", b"env", b"define", b"arg"), options.setter,
            ("setenv API_TOKEN <b62:32>", "set -gx API_TOKEN <b62:32>", "ENV DB_PASSWORD <apw>", "#define API_KEY \"<b62:32>\""), ("set -gx PATH /usr/bin",)),
    Context("argument", rb"(?:passw|passphrase|pass|pwd|secret|token|key|cred|auth|jwt|_pat)[a-z0-9_.\-]{0,32}" + _QUOTE + rb"[ \t]{0,4},[ \t]{0,4}" + _QUOTE,
            (b"pass", b"pwd", b"secret", b"token", b"key", b"cred", b"auth", b"jwt", b"_pat"), options.called,
            ("os.getenv('API_KEY', '<b62:32>')", "setenv(\"DB_PASSWORD\", \"<pw>\")"), ("('username', 'password', 'email')",)),
    Context("pair", rb"(?:passw|passphrase|pass|pwd|secret|token|key|cred|auth|jwt|[a-z_\-]pat|cookie)[a-z0-9_.\-]{0,32}(?:" + _QUOTE + rb")?[ \t]{0,4},?(?:[ \t\r\n\\+>|-]|\\n){0,40}(?:" + _QUOTE + rb")?(?:val(?:ue)?|content)(?:"
            + _QUOTE + rb")?[ \t]{0,4}[:=]", (b"val", b"content"), options.pair,
            ("{\"name\": \"DB_PASSWORD\", \"value\": \"<pw>\"}", "{\"key\": \"Authorization\", \"value\": \"Bearer <b62:40>\"}", "<add key=\"Password\" value=\"<pw>\"/>", "<meta name=\"csrf-token\" content=\"<b62:40>\">", "<input type=\"password\" value=\"<pw>\">"),
            ("{\"name\": \"DB_PASSWORD\", \"value\": \"$X\"}",)),
    Context("authorization", rb"authorization", (b"authorization",), headers.authorization,
            ("curl -H 'Authorization: Bearer <b62:40>' h", "Authorization: Basic <b64:24>", "{\"Authorization\": \"Token <hex:40>\"}", "Authorization: <b62:40>",
             "[\"Authorization\", \"Bearer <b62:40>\"]", "\"authorization\": [\"Basic <userpass>\"]"),
            ("Authorization: Bearer $TOKEN", "Authorization: Bearer <token>", "the Authorization: header")),
    Context("bearer", rb"bearer(?:[ \t+]|%20)", (b"bearer",), headers.bearer, ("send Bearer <b62:40>",), ("bearer of news", "Bearer token")),
    Context("cookie", rb"cookie", (b"cookie",), headers.cookie, ("Cookie: a=b; sessionid=<b62:32>",), ("Cookie: theme=dark",)),
    Context("userinfo", rb":\\?/\\?/[^\s/:@\"'<>`\\?#]{0,128}:[^\s\"'<>`?#]{1,255}@", (b"//", b"\\/"), addresses.userinfo,
            ("https://bob:<upw>@h.example/x", "redis://:<upw>@h:6379/0", "postgres://bob:<upw>@h/db", "mongodb+srv://bob:<upw>@c.example/db", "amqp://bob:pw1@h"),
            ("http://localhost:8080/@scope/pkg", "https://bob:$PASS@h", "https://user:password@host", "ssh://git@h:22/x")),
    Context("secure-string", rb"convertto-securestring[ \t]{1,4}(?:-string[ \t]{1,4})?[^ \t-]", (b"convertto-securestring",), beside.secured,
            ("$p = ConvertTo-SecureString \"<pw>\" -AsPlainText -Force", "ConvertTo-SecureString -String '<pw>' -AsPlainText"), ("ConvertTo-SecureString $plain -AsPlainText",)),
    Context("set-password", rb"(?:set_password|changeuserpassword|networkcredential|pscredential|\.login|\.auth|oauthhandler|access_token|twilioclient)\([^\n()]{1,200},[ \t]{0,4}" + _QUOTE, (b"password(", b"credential(", b".login(", b".auth(", b"oauthhandler(", b"access_token(", b"twilioclient("), beside.last_argument, ("New-Object System.Net.NetworkCredential(\"bob\", \"<pw>\")", "imap.login(user, \"<pw>\")", "db.auth(\"bob\", \"<apw>\")", "Client(); x.set_access_token(\"a\", \"<b62:45>\")", "keyring.set_password(\"x\", \"bob\", \"<pw>\")",),
            ("user.set_password(self.x, \"password\")",)),
    Context("default", rb"variable[ \t]{1,4}" + _QUOTE + rb"[a-z0-9_\-]{0,48}(?:passw|pass|pwd|secret|token|key|cred)[a-z0-9_\-]{0,24}" + _QUOTE + rb"[ \t]{0,4}\{[^{}]{0,240}default[ \t]{0,16}=[ \t]{0,4}" + _QUOTE,
            (b"variable",), beside.default, ("variable \"db_password\" {\n  type = string\n  default = \"<pw>\"\n}", "variable \"api_token\" { default = \"<b62:40>\" }"), ("variable \"key_name\" { default = \"deployer\" }",)),
    Context("path-token", rb"://[a-z0-9.\-:]{1,80}/t/[a-z0-9_\-]{20}", (b"/t/",), addresses.path_token, ("https://conda.example/t/<u64:43>/channel", "https://conda.example/t/ab-<uuid>/c"), ("https://h.example/t/name-of-a-long-topic-here/12",)),
    Context("relative", rb"//[a-z0-9_.\-%]{1,64}:[^\s\"'<>`/?#@\\]{6,128}@[a-z0-9\[]", (b"//",), addresses.relative,
            ("git remote add o //bob:<apw>@h.example/r.git",), ("// note:something@somewhere", "//user:password@host/x")),
    Context("user-pass", rb"(?:credentials?|creds?|auth|auth_?ident|_user|login with|user_?pass(?:word)?|user_?pwd|user:pass(?:word)?)(?:" + _QUOTE + rb")?[ \t]{0,4}(?:[:, ]|=>?)[ \t]{0,4}(?:" + _QUOTE
            + rb")?[a-z][a-z0-9_.@+\-]{0,63}:[^\s\"'`\\<>]{8}", (b"cred", b"auth", b"user", b"login with"), beside.user_pass,
            ("credentials: bob:<apw>", "npmAuthIdent: \"bob:<apw>\"", "ETCDCTL_USER=root:<apw>", "login with bob:<apw>", "auth = \"admin:<apw>\"", "curl_setopt($ch, CURLOPT_USERPWD, \"bob:<apw>\");"),
            ("auth: user:password", "auth: sha256:0123456789abcdef0123456789abcdef", "auth: bob:/home/bob/thing", "credentials: arn:aws:iam")),
    Context("url-user", rb"://[a-z0-9_\-]{20,200}@", (b"@",), addresses.url_user, ("https://<hex:40>@h.example/r.git",), ("https://firstname-and-lastname@h",)),
    Context("query", rb"[?&;](?:amp;|\\u0026)?(?:[a-z_.\-]{0,24}(?:key|sig|token|auth|secret|signature|password|passwd|pwd|pass|credential|session|sid|sas|jwt)|x-amz-signature|x-goog-signature|"
            rb"x-amz-security-token|x-amz-credential)=", (b"=",), addresses.query, ("https://h/x?key=<b62:32>", "https://h/x?a=1&sig=<b62:43>", "h/?X-Amz-Signature=<hex:64>", "http://127.0.0.1:8888/?token=<hex:48>"),
            ("https://h/?key=value&sig=x",)),
    Context("thin", rb"thin:@?[a-z0-9_]{1,64}/", (b"thin:",), addresses.jdbc_thin, ("jdbc:oracle:thin:bob/<apw>@h:1521:x",)),
    Context("identified", rb"identified(?:\s|\\n){1,4}(?:with(?:\s|\\n){1,4}[`'\"\\a-z0-9_]{1,40}(?:\s|\\n){1,4})?(?:by|as)(?:\s|\\n){1,4}(?:password(?:\s|\\n){1,4})?" + _QUOTE, (b"identified",), statements.statement,
            ("CREATE USER bob IDENTIFIED BY '<pw>';", "ALTER USER bob IDENTIFIED WITH mysql_native_password BY '<pw>';"), ("IDENTIFIED BY '?'",)),
    Context("sql-password", rb"password(?:[ \t]{1,8}|[ \t]{0,4}\([ \t]{0,4}|[ \t]{0,4}=[ \t]{0,4}n)" + _QUOTE + rb"|set[ \t]{1,4}password[ \t]{1,4}for[ \t][^=\n]{1,80}=[ \t]{0,4}(?:password\()?" + _QUOTE + rb"|(?-i:SECRET|KEY)[ \t]{1,4}" + _QUOTE
            + rb"|(?:sp_addlogin|sp_password|pgp_sym_[a-z]{2}crypt|pgp_sym_encrypt)[^\n]{0,80},[ \t]{0,4}n?" + _QUOTE, (b"password", b"secret", b"key", b"sp_addlogin", b"pgp_sym"), statements.statement,
            ("CREATE ROLE bob WITH LOGIN ENCRYPTED PASSWORD '<pw>';", "SET PASSWORD FOR 'bob'@'h' = PASSWORD('<pw>');"), ("password 'secret'", 'things identified by "names" of theirs')),
    Context("pragma", rb"pragma[ \t]+(?:re|hex)?key[ \t]*=[ \t]*" + _QUOTE, (b"pragma",), statements.statement, ("PRAGMA key = '<apw>';",), ("PRAGMA table_info('x')",)),
    Context("netrc", rb"(?:machine[ \t]+[^ \t\r\n]+|default)(?:(?:[ \t\r\n+>|-]|\\{1,4}[nt])+(?:login|user|account|port)[ \t]+[^ \t\r\n]+){0,3}(?:[ \t\r\n+>|-]|\\{1,4}[nt])+(?:password|passwd)[ \t]+", (b"passw",), statements.netrc, ("machine h.example login bob password <apw>",), ("Failed password for root",)),
    Context("pgpass", rb":(?:[0-9]{4,5}|\*):[a-z0-9_.\-*]{1,64}:[a-z0-9_.\-@*]{1,64}:[^\s:]", (b":",), statements.pgpass, ("h.example:5432:db:bob:<apw>", "*:*:*:bob:<apw>"), ("a.py:1234:x:y:z",)),
    Context("docker-auth", rb"auth(?:" + _QUOTE + rb")?[ \t]{0,4}:|_auth[ \t]{0,4}=", (b"auth",), statements.docker_auth, ("{\"auth\": \"<userpass>\"}", "_auth=<userpass>")),
    Context("pipe", rb"\|[ \t]{0,4}(?:/[a-z/]{1,20}/)?(?:sudo|kinit|[a-z]{0,8}passwd|gpg|cryptsetup|su |docker|podman|helm|crane|oras|skopeo|buildah|nerdctl|apptainer|singularity|gh |glab|wandb|"
            rb"huggingface|hf |vault|az |oc |cf |npm|snyk|ssh-add|saslpass|pdbedit|openssl|sshpass|secret-tool|pass |keyctl|systemd|nmcli|htpasswd|mkpasswd|ldap|ansible-vault|hdiutil|tee |[^|\n]{1,120}stdin)", (b"|",),
            lambda text, end: commands.piped(text, text.data.rfind(b"|", 0, end) + 1),
            ("echo <pw> | sudo -S ls", "echo '<pw>' | kinit bob", "printf '%s' \"<pw>\" | docker login -u bob --password-stdin", "echo bob:<apw> | chpasswd", "echo <pw>|sudo -S id"),
            ("echo hello | sudo tee f", "cat f | gpg -d")),
    Context("substituted", rb"(?:passw|pass|key|secret|token)[a-z_\-]{0,24}[= \t]{1,3}(?:<\(|\\{0,7}[\"'])[ \t]{0,4}(?:echo|printf)[ \t]", (b"echo", b"printf"), commands.substituted,
            ("rsync --password-file=<(echo <pw>) x y", "restic --password-command 'echo <apw>' snapshots", "wg set wg0 private-key <(echo <b64:43>=)"), ()),
    Context("listed-users", rb"chpasswd[^\n|]{0,40}<<-?\\?[\"']?[a-z_]{1,20}[\"']?(?:\\?\r?\n|\\{1,7}n)", (b"chpasswd",), commands.users, ("chpasswd <<EOF\nbob:<apw>\nann:<apw>\nEOF",)),
    Context("here-string", rb"<<<", (b"<<<",), commands.here_string, ("kinit bob <<< '<pw>'", "sudo -S ls <<< <apw>"), ("cat <<< hello",)),
    Context("told", rb"(?:password|passwd|passphrase|pwd|token|secret|(?:api|secret|access|private)[ _-]?key)[ \t]{1,4}(?:(?:for|of)[ \t](?:[^\s]{1,40}[ \t]){1,2}|(?:has been |was )?(?:set|changed|reset)[ \t])?(?:is|was|is now|to|are|-|\xe2\x80\x93)[ \t]{0,4}:?[ \t]{1,4}", (b" is", b" was", b"\tis", b" to ", b" - ", b" \xe2\x80\x93 ", b" are "), statements.told,
            ("my password is <apw>", "the token is <b62:40>", "the admin password has been set to <apw>", "here is the api key - <b62:40>"), ("the password is required", "token is expired", "password is stored in PBKDF2-form", "secret is os.environ['X1']")),
    Context("spaced", rb"[a-z0-9_.\-](?:password|passwd|secret|token|api[._-]?key|secret[._-]?key|access[._-]?key|account[._-]?key[a-z0-9_.\-]{0,60}|(?-i:[a-z]Pat|_PAT|[_-]pat))[ \t]{1,8}|(?:password|passwd|secret|token|api[._-]?key)(?:  |\t|\\t)",
            (b"password", b"passwd", b"secret", b"token", b"key", b"pat"), statements.spaced,
            ("spark.hadoop.fs.s3a.secret.key <b62:40>", "spark.ssl.keyPassword <pw>", "gh secret set ACME_TOKEN --body \"<b62:40>\"", "gh secret set ACME_TOKEN -b <hex:40>",
             "rclone config create r s3 secret_access_key <b64:40>", "dvc remote modify r acme_token <b62:32>", "conda config --set acme_pat <b62:32>", "(setq acme-token \"<b62:32>\")", "token                <b62:26>", "password    <apw>", "SECRET\t<b64:40>"),
            ("the config.token value", "see auth.password for more", "the_token 1234", "next_token is_not_a_secret_value_at_all")),
    Context("cell", rb"(?:\||\xe2\x94\x82|\xe2\x94\x83)[ \t`*]{0,4}[a-z0-9_.\- ]{0,32}(?:password|passwd|secret|token|key|_pat)[`*]{0,2}[ \t]{0,24}(?:\||\xe2\x94\x82|\xe2\x94\x83)", (b"|", b"\xe2\x94"), statements.cell,
            ("| ACME_SECRET | <hex:64> |", "| `api_key` | `<b62:32>` |", "| admin_password  | <apw>  |"), ("| token | description |", "| key | 1234 |")),
    Context("beside", rb"(?:passw|passwd|passphrase|pass|pwd|psw|secret|token|[a-z_\-]key|psk|jwt|credential|masterauth|(?-i:[a-z]Pat|_PAT)|[_-]pat|_pw|pw)[a-z0-9_.\-]{0,24}(?:" + _QUOTE + rb"\)?)?"
            rb"(?:\(|[ \t]{1,8}(?:[0-9]{1,2}[ \t]{1,4})?(?:--?[a-z][a-z\-]{0,20}[= \t]{1,2})?)(?:" + _QUOTE + rb"|\xe2\x80[\x98\x9c])?[a-z0-9_\-+/=.!%@^~#:*]{8}",
            (b"pass", b"pwd", b"psw", b"secret", b"token", b"key", b"psk", b"jwt", b"credential", b"masterauth", b"pat", b"pw"), beside.beside,
            ("tool config set api_key <b62:40>", "setApiKey(\"<b62:32>\")", "client.set_api_key('<hex:40>')", "secret \"<b64:44>\";", "requirepass <apw>", "wpa-psk \"<b62:32>\"",
             "gh secret set KAGGLE_KEY --body <hex:32>", "username bob password 7 <HEX:24>", "default password \u201c<apw>\u201d", "poetry config pypi-token.pypi <u64:40>"),
            ("the password authentication method", "token verification-failed", "secret management-system2", "password is_not_set", "getPassword(userAccount1)", "token 0123456789")),
    Context("attribute", rb"(?:name|key|id)=" + _QUOTE + rb"[a-z0-9_.\-]{0,48}(?:passw|pass|pwd|secret|token|key|cred)[a-z0-9_.\-]{0,24}" + _QUOTE + rb"[^<>\n]{0,80}>(?:[ \t]{0,4}<value>)?|"
            rb"(?:passw|pass|pwd|secret|token|key|cred)[a-z0-9_.\-]{0,24}</(?:name|key)>(?:[\s+>|-]|\\{1,7}[nrt]|\\\n){0,40}<(?:value|string)>", (b"pass", b"pwd", b"secret", b"token", b"key", b"cred"), beside.element,
            ("<entry key=\"api_key\"><b62:32></entry>", "<string name=\"client_secret\"><b62:32></string>", "<name>fs.s3a.secret.key</name><value><b64:40></value>"), ("<entry key=\"api_key\">your_key</entry>",)),
    Context("given", rb"(?:login|authenticate|configure|auth[ \t]{0,2}=[ \t]{0,2}|basicauth)\((?:" + _QUOTE + rb"[^\"'\n]{1,80}" + _QUOTE + rb"[ \t]{0,2},[ \t]{0,2})?" + _QUOTE, (b"login(", b"authenticate(", b"configure(", b"auth"), beside.given,
            ("huggingface_hub.login(\"<b62:40>\")", "requests.get(u, auth=('bob', '<apw>'))"), ("login(\"username\")",)),
    Context("user-key", rb"username" + _QUOTE + rb"[ \t]{0,4}:[ \t]{0,4}" + _QUOTE + rb"[^\"'\\\n]{1,64}" + _QUOTE + rb"[ \t]{0,4},[\s\\n]{0,16}" + _QUOTE + rb"key" + _QUOTE + rb"[ \t]{0,4}:[ \t]{0,4}" + _QUOTE, (b"username",), beside.user_key,
            ("{\"username\":\"bob\",\"key\":\"<hex:32>\"}",), ("{\"username\":\"bob\",\"key\":\"name\"}",)),
    Context("inserted", rb"values[ \t\r\n]{0,4}\([ \t]{0,4}", (b"values",), statements.inserted,
            ("INSERT INTO t (api_token) VALUES ('<b62:40>')", "insert into users (id, name, password) values (1, 'bob', '<pw>');"), ("INSERT INTO t (name) VALUES ('x')",)),
    Context("below", rb"(?:passw|passphrase|pwd|secret|token|api_?key|[_-]key|cred)[a-z0-9_.\-]{0,24}(?:" + _QUOTE + rb")?[ \t]{0,4}[:=][ \t]{0,4}(?:" + below.MARK + below.LINE_END + rb"[ \t+>|\"'-]|<<[~-]?[\"']?[a-z_]{1,12}[\"']?" + below.LINE_END + rb"[^\n])",
            (b"passw", b"passphrase", b"pwd", b"secret", b"token", b"key", b"cred"), below.below,
            ("password: |\n  <pw>", "token: >-\n  <b62:40>", "\"password\":\n    \"<apw>\"", "token = (\n    \"<b62:40>\"\n)", "db_password = <<EOT\n <pw>\nEOT", "password:\n  - <apw>"),
            ("token:\n  description: text", "password:\n    the user's password", "secret:\n  name: mysecret", "password =\n    getpass()")),
    Context("announced", below.ANNOUNCED, (b"add-mask", b"issecret", b" key ", b"auth", b"eap", b"ntlm", b"snmp-server", b"-server", b"is generated for", b"sonar.login", b"identified by", b"conn", b"oauth", b"-token"), below.announced,
            ("echo \"::add-mask::<b62:40>\"", "##vso[task.setvariable variable=x;issecret=true]<b62:40>", "Unseal Key 1: <b64:43>=", "127.0.0.1:6379> AUTH <apw>", "AUTH bob <apw>", "bob : EAP \"<apw>\"",
             "snmp-server community <apw> RO", "tacacs-server key 7 <HEX:24>", "A temporary password is generated for root@localhost: <apw>", "create user bob identified by <apw>;", "CONNECT bob/<apw>@db",
             "composer config github-oauth.github.com <hex:40>", "\"github-oauth\": {\"github.com\": \"<hex:40>\"}", "mvn -Dsonar.login=<hex:40>"),
            ("AUTH is required", "snmp-server community public RO", "identified by its name", "connect bin/something", "AUTH LOGIN PLAIN")),
    Context("key-pair", rb"(?-i:AKIA|ASIA)[a-z2-7]{16}" + _QUOTE + rb"?[ \t]{0,4}[:, \t][ \t]{0,4}" + _QUOTE + rb"?[a-z0-9/+]{40}", (b"akia", b"asia"), below.key_pair,
            ("AKIA<b32:16>:<b64:40>", "AKIA<b32:16>,<b64:40>", "AKIA<b32:16>  <b64:40>"), ()),
    Context("wide", rb"(?:pass|pwd|secret|token|key|\xe7\xa0\x81|\xe4\xbb\xa4|\xe7\xa2\xbc)[a-z0-9_ ]{0,24}(?:\xef\xbc[\x9a\x9d]|\xe6\x98\xaf)", (b"\xef\xbc\x9a", b"\xef\xbc\x9d", b"\xe6\x98\xaf"), below.wide,
            ("password\uff1a<apw>", "token\uff1d<b62:40>", "\u5bc6\u7801\u662f <apw>"), ()),
    Context("expect", rb"send(?:[ \t]+--)?[ \t]+\\{0,7}\"", (b"send",), statements.expect, ("expect \"*assword:\"; send \"<apw>\\r\"",), ("expect \"login:\"; send \"bob\\r\"",)),
    Context("prefixed", b"", (), statements.prefixed,
            ("see acme_<b62:40> here", "see acme_live_<b62:32> here", "x zzq_pat_<b62:40>", "see llx-<b62:48>"),
            ("name_of_some_very_long_identifier_here", "sha512-abc_def", "build_0123456789abcdef0123456789abcdef01234567", "TestCaseForTheVeryLongName_AndItsCamelCaseSuffix")),
    Context("private-key", rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|---- BEGIN SSH2 ENCRYPTED PRIV|PuTTY-User-Key-File-[123]", (b"private key", b"begin ssh2", b"putty"), blocks.block, ()),
    Context("encoded-key", rb"LS0tLS1CRUdJTi", (b"ls0tls1crudjti",), blocks.encoded_block, ()),
)  # fmt: skip
