# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Secrets that a program takes on its command line, or from a pipe: `mysql -pX`, `curl -u user:X`, `echo X | sudo -S`.

One row a family: the programs, the expression that leads from the program's name to the value, and what part of the
value is the secret. The same rows serve a shell line and a list of arguments (`["mysql", "-pX"]`).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.judge import make
from guard.redact.spans import Span
from guard.redact.text import Text

_MOST_VALUES: Final = 4
"""So many values one command line may hold (`ssh-keygen -P old -N new`)."""

REACH: Final = 512
"""How far behind a program's name its options are looked for, in bytes."""

CONTINUED: Final = rb"(?:\\{1,2}\r?\n|\\{3,15}(?:r\\{1,7})?n)(?:[+>|-](?=[ \t]))?[ \t]{0,16}"
"""Where a command goes on in the next line: a backslash and a newline, escaped or not, and what a diff puts before the line."""

# Between two arguments: blanks, blanks over a continued line, or quote, comma, quote of a list.
_SEP = rb"(?:\\{0,7}[\"']?[ \t]{0,4},[ \t]{0,4}|[ \t]{1,8}(?:" + CONTINUED + rb")?)"
# The same, into the next argument's opening quote.
_NEXT = _SEP + rb"\\{0,7}[\"']?"
_ANY = rb"(?:[^\n|;]|\\\r?\n){0,400}?"
_IN = rb"(?<=[\s\"'])"
# A value glued to its option: bare, or in quotes that are its own and not the end of a text around it.
_GLUED = rb"(?=[^\s\"',\\]|\\[^\"'nrt\\]|\\{0,7}[\"'][^,\s\"'\])}])"


class Command(NamedTuple):
    """One family of programs.

    `mark` is what the prefilter waits for behind a program's name (in either case), `lead` what the confirmer then reads
    from the name to the value. `part` is the byte behind which the secret begins (`:` in `user:X`), or nothing.
    `between` is what the prefilter lets stand between program and mark: the more it asks of programs named on every
    line (git, npm), the less it costs.
    """

    kind: str
    mark: bytes
    programs: tuple[bytes, ...]
    lead: bytes
    part: bytes
    samples: tuple[str, ...]
    leaves: tuple[str, ...] = ()
    between: bytes = rb"(?:(?:[^\n]|\\\r?\n)*[\s\"'=])?"


WHOLE: Final = b""

COMMANDS: Final[tuple[Command, ...]] = (
    Command("password", rb"(?:-[a-z]{0,6}u|--user|--proxy-user)", (b"curl", b"xh", b"curlie", b"etcdctl"), _ANY + _IN + rb"(?:-[a-zA-Z]{0,6}[uU]|--user|--proxy-user)(?:" + _SEP + rb"|=)?(?=[^\s-])",
            b":", ("curl -u bob:<pw> https://h.example/x", "curl -s --user 'bob:<pw>' https://h.example", "curl --proxy-user=bob:<pw> x",
                   "curl -sSu bob:<pw> https://h.example"),
            ("curl -u bob https://h.example", "curl -u $USER:$PASS https://h.example")),
    Command("password", rb"(?:-a|--auth)", (b"http", b"https"), _ANY + _IN + rb"(?:-a|--auth)(?:" + _SEP + rb"|=)", b":", ("http -a bob:<pw> https://h.example",)),
    Command("password", rb"-p[^ ]", (b"mysql", b"mysqldump", b"mariadb", b"mysqladmin", b"mysqlimport", b"mysqlshow", b"mariadb-dump", b"mysqlcheck"),
            _ANY + _IN + rb"-p" + _GLUED, WHOLE, ("mysql -u root -p<pw> db", "mysqldump -p'<pw>' db", "mariadb -u bob -p<pw>"),
            ("mysql -u root -p db", "mysql -u root -p")),
    Command("password", rb"-p", (b"sshpass",), _ANY + _IN + rb"-p" + _SEP + rb"?", WHOLE, ("sshpass -p <pw> ssh host", "sshpass -p'<pw>' ssh h"),
            ("sshpass -f file ssh host", "sshpass -e ssh host")),
    Command("password", rb"pass:", (b"openssl", b"easyrsa", b"signtool", b"keytool"), rb"[^\n|;]{0,400}?\bpass:", WHOLE, ("openssl rsa -in k.pem -passin pass:<pw>",),
            ("openssl rsa -passin env:PW", "openssl rsa -passin file:/etc/pw")),
    Command("password", rb"-k", (b"openssl",), rb"[^\n|;]{0,200}?\benc\b" + _ANY + _IN + rb"(?:-k|-K)" + _SEP, WHOLE, ("openssl enc -aes-256-cbc -k <pw> -in f",)),
    Command("password", rb"-h?p[^ ]", (b"7z", b"7za", b"7zr", b"7zz", b"rar", b"unrar", b"unar"), _ANY + _IN + rb"-h?p(?!-)" + _GLUED, WHOLE,
            ("7z a -p<pw> out.7z dir", "rar a -hp<pw> out.rar dir"), ("7z a out.7z dir",)),
    Command("password", rb"-[a-z]{0,4}p", (b"zip", b"unzip", b"zipcloak"), _ANY + _IN + rb"-[a-zA-Z]{0,4}P" + _SEP + rb"?", WHOLE, ("unzip -P <pw> a.zip", "zip -r -P <pw> a.zip d")),
    Command("password", rb"-[a-z]{0,4}w", (b"ldapsearch", b"ldapmodify", b"ldapadd", b"ldapwhoami", b"ldappasswd", b"ldapdelete", b"ldapmodrdn", b"ldapcompare"),
            _ANY + _IN + rb"-[a-zA-Z]{0,4}w" + _SEP + rb"?", WHOLE, ("ldapsearch -x -D cn=admin -w <pw> -b dc=x",), ("ldapsearch -x -W -b dc=x",)),
    Command("password", rb"obscure", (b"rclone",), rb"[^\n|;]{0,100}?\bobscure" + _SEP, WHOLE, ("rclone obscure <pw>",)),
    Command("password", rb"pass", (b"rclone",), rb"[^\n|;]{0,200}?\bconfig" + _ANY + _IN + rb"pass" + _SEP, WHOLE, ("rclone config create r sftp host h user bob pass <apw>",)),
    Command("password", rb"-pw", (b"plink", b"pscp", b"psftp", b"putty", b"PuTTY", b"kitty", b"klink"), _ANY + _IN + rb"-pw" + _SEP, WHOLE, ("plink -pw <apw> bob@h ls", "pscp.exe -pw '<pw>' f bob@h:")),
    Command("password", rb"-c", (b"snmpget", b"snmpwalk", b"snmpset", b"snmpbulkwalk", b"snmptable"), _ANY + _IN + rb"-c" + _SEP, WHOLE, ("snmpwalk -v2c -c <apw> h",), ("snmpwalk -v2c -c public h",)),
    Command("password", rb"(?:create|add|setpassword|encrypt_string)", (b"samba-tool", b"ansible-vault"),
            rb"[^\n|;]{0,40}?\b(?:user" + _NEXT + rb"(?:create|add)" + _NEXT + rb"[^\s\"'-]{1,64}|encrypt_string)" + _SEP + rb"(?=[^\s-])", WHOLE,
            ("samba-tool user create bob <apw>", "ansible-vault encrypt_string '<pw>' --name x"), ("ansible-vault encrypt_string --stdin-name x",)),
    Command("password", rb"target", (b"rman",), _NEXT + rb"target" + _NEXT + rb"[A-Za-z0-9_$#]{1,64}/(?=[^\s/@\"']{3,128})", WHOLE, ("rman target sys/<apw>@db",), ("rman target /",)),
    Command("password", rb"(?:-u|--user)", (b"smbclient", b"rpcclient", b"smbmap", b"smbget", b"smbcacls", b"net", b"winexe", b"wmic", b"smbtree"),
            _ANY + _IN + rb"(?:-U|--user)(?:" + _SEP + rb"|=)?(?=[^\s-])", b"%", ("smbclient -U bob%<pw> //h/share", "smbclient //h/s --user=bob%<pw>"),
            ("smbclient -U bob //h/share",)),
    Command("password", rb"-p", (b"docker", b"podman", b"buildah", b"skopeo", b"nerdctl", b"helm", b"az", b"oc", b"apptainer", b"singularity", b"crane", b"oras",
                         b"wandb", b"snyk", b"argocd", b"cf", b"ibmcloud", b"rancher", b"twine", b"jf", b"tower-cli", b"gcrane"),
            rb"[^\n|;]{0,200}?\b(?:login|upload|signin)\b" + _ANY + _IN + rb"-p(?:" + _SEP + rb"|=)?(?=[^\s-])", WHOLE,
            ("docker login -u bob -p <pw> reg.example", "podman login -p <pw> -u bob reg.example", "az login -u bob -p <pw>"),
            ("docker login reg.example",), rb"[^\n]{0,200}(?:login|upload|signin)[^\n]*[\s\"'=]"),
    Command("password", rb"-p", (b"ipmitool", b"ipmipower", b"bmc-info", b"sqlcmd", b"bcp", b"tsql", b"isql", b"osql", b"mosquitto_pub", b"mosquitto_sub",
                         b"ipmi-power", b"ncat", b"crowbar", b"fastboot"), _ANY + _IN + rb"-P" + _SEP + rb"?(?=[^\s\"',-]|\\{0,7}[\"'][^,\s\"'\]])", WHOLE,
            ("ipmitool -H h -U root -P <pw> power status", "sqlcmd -S h -U sa -P <pw>")),
    Command("password", rb"-[a-z]{0,6}b", (b"htpasswd",), _NEXT + rb"(?:-[a-zA-Z]{1,8}" + _NEXT + rb"){0,4}?-(?=[a-zA-Z]{0,6}b)[a-mo-zA-Z]{1,7}" + _NEXT + rb"(?:-[a-zA-Z]{1,4}" + _NEXT
            + rb"){0,3}[^\s\"']{1,200}" + _NEXT + rb"[^\s\"']{1,200}" + _SEP + rb"(?=[^\s])", WHOLE, ("htpasswd -b /etc/htpasswd bob <pw>", "htpasswd -cbB f bob <pw>")),
    Command("password", rb"-[a-z]{0,6}b", (b"htpasswd",), _NEXT + rb"(?:-[a-zA-Z]{1,8}" + _NEXT + rb"){0,4}?-(?=[a-zA-Z]{0,6}n)(?=[a-zA-Z]{0,6}b)[a-zA-Z]{1,7}" + _NEXT + rb"(?:-[a-zA-Z]{1,4}" + _NEXT
            + rb"){0,3}[^\s\"']{1,200}" + _SEP + rb"(?=[^\s])", WHOLE, ("htpasswd -nb bob <pw>", "htpasswd -nbB bob <pw>")),
    Command("password", rb"-a", (b"redis-cli", b"valkey-cli", b"keydb-cli"), _ANY + _IN + rb"-a" + _SEP, WHOLE, ("redis-cli -h h -a <pw> ping",)),
    Command("password", rb"-p", (b"mongo", b"mongosh", b"mongodump", b"mongorestore", b"mongoimport", b"mongoexport", b"mongostat", b"clickhouse-client", b"influx",
                         b"cqlsh", b"rdesktop", b"lftp", b"ncftpput", b"ncftpget", b"snmpget", b"impacket", b"nxc", b"crackmapexec", b"evil-winrm", b"usermod",
                         b"useradd", b"rabbitmqadmin", b"poetry", b"racadm", b"psexec", b"beeline", b"hydra", b"impala-shell", b"vncdo"), _ANY + _IN + rb"-p(?:" + _SEP + rb"|=)?(?=[^\s\"',-]|\\{0,7}[\"'][^,\s\"'\]])", WHOLE,
            ("mongosh -u bob -p <pw> host/db", "mongodump -u bob -p<pw> -d x", "cqlsh -u bob -p <pw>"),
            ("mongosh -p", "snmpget -p 161 host")),
    Command("password", rb"-[ax]", (b"snmpget", b"snmpwalk", b"snmpset", b"snmpbulkwalk"), _ANY + _IN + rb"-[AX]" + _SEP, WHOLE, ("snmpwalk -v3 -u bob -A <pw> host",)),
    Command("password", rb"[a-z0-9_$#]{1,64}/", (b"sqlplus", b"expdp", b"impdp", b"rman", b"exp", b"imp", b"sqlldr"),
            _NEXT + rb"(?:-[A-Z]{1,3}" + _NEXT + rb"){0,2}\\{0,3}[\"']?[A-Za-z0-9_$#]{1,64}/(?=[^\s/@\"']{3,128}(?:@|\s|\Z))", WHOLE, ("sqlplus bob/<apw>@db",)),
    Command("token", rb"login", (b"wandb", b"vault", b"weave", b"modal", b"replicate", b"runpodctl", b"comet", b"neptune", b"clearml-init", b"kaggle"),
            rb"[^\n|;]{0,60}?\blogin" + _SEP + rb"(?:\\{0,7}[\"']?--[a-z\-]{2,20}(?:=[^\s\"']{1,60})?" + _SEP + rb"){0,3}(?=\\{0,7}[\"']?[A-Za-z0-9_.+/=\-]{16,})", WHOLE,
            ("wandb login <hex:40>", "wandb login --relogin <hex:40>", "vault login hvs.<u64:24>"), ("wandb login", "vault login -method=ldap username=bob")),
    Command("token", rb"(?:-t|login|auth-token|--with-token)", (b"doctl", b"flyctl", b"fly", b"hcloud", b"linode-cli", b"huggingface-cli", b"hf", b"heroku", b"netlify", b"gh", b"glab", b"tea", b"cargo",
                      b"gem", b"npm", b"render", b"railway"),
            _ANY + _IN + rb"(?:-t|login|auth-token|--with-token)(?:" + _SEP + rb"|=)(?=\\{0,7}[\"']?[A-Za-z0-9_.\-]{20,})", WHOLE, ("doctl auth init -t <hex:64>", "cargo login <b62:36>")),
    Command("key", rb"(?:token|secret|password|passwd|_key|apikey|api-key|_auth|openai|anthropic)", (b"aws", b"npm", b"git", b"gh", b"gcloud", b"pip", b"poetry", b"yarn", b"pnpm", b"conda", b"snowsql", b"hub", b"openai", b"hg", b"dvc", b"mc", b"heroku",
                    b"firebase", b"pulumi", b"composer", b"bundle", b"nuget", b"fly", b"flyctl", b"wrangler", b"kubectl", b"crudini", b"llm"),
            rb"[^\n|;]{0,120}?\b(?:config(?:ure)?|secrets?|keys|env)" + _NEXT + rb"(?:(?:set|add|put|--add|--global|--local|--plaintext|-g|--location[= ][a-z]+)" + _NEXT
            + rb"){0,3}[^\s\"']{0,120}(?i:token|secret|password|passwd|_key|apikey|api-key|_auth|openai|anthropic)[a-zA-Z_\-]{0,30}(?:" + _SEP + rb"|=)(?=[^\s-])", WHOLE,
            ("aws configure set aws_secret_access_key <b64:40>", "npm config set //registry.example/:_authToken <b62:36>", "git config --global gitlab.token <b62:20>"),
            (), rb"[^\n]{0,60}(?:config|secret|keys|env)[^\n]*"),
    Command("secret", rb"--(?:value|secret-string|secret-data)", (b"aws", b"gcloud", b"az"), rb"[^\n|;]{0,200}?\b(?:put-parameter|create-secret|put-secret-value|secret[ \t]+set)\b" + _ANY
            + _IN + rb"--(?:value|secret-string|secret-data)(?:" + _SEP + rb"|=)", WHOLE, ("aws ssm put-parameter --name x --value <b62:40> --type SecureString",),
            ("aws ssm get-parameter --name x",)),
    Command("password", rb"http-basic\.", (b"poetry", b"composer"), rb"[^\n|;]{0,60}?\bhttp-basic\.[A-Za-z0-9_.\-]{1,60}" + _NEXT + rb"[^\s\"']{1,80}" + _SEP, WHOLE, ("poetry config http-basic.foo bob <pw>",)),
    Command("password", rb"(?:alias|config)", (b"mc",), rb"[^\n|;]{0,40}?\b(?:alias" + _NEXT + rb"set|config" + _NEXT + rb"host" + _NEXT + rb"add)" + _NEXT + rb"(?:[^\s\"']{1,200}" + _NEXT + rb"){2}[^\s\"']{1,200}" + _SEP, WHOLE,
            ("mc alias set m https://h.example AKEY <pw>",)),
    Command("password", rb"(?:password|psk|key|[^ ]{1,64}[ \t\"'])", (b"nmcli", b"iwconfig", b"wpa_passphrase", b"netsh"), rb"(?:[^\n|;]{0,300}?\b(?:password|psk|key|wifi-sec\.psk)|" + _NEXT + rb"[^\s\"'-]{1,64})" + _SEP, WHOLE,
            ("nmcli dev wifi connect home password <pw>", "wpa_passphrase home <pw>")),
    Command("password", rb"use", (b"net",), _NEXT + rb"(?i:use)" + _NEXT + rb"(?:(?:[A-Za-z]:|\*)" + _NEXT + rb")?" + rb"\\{2,16}[^\s\"']{1,200}" + _SEP + rb"(?=[^\s/])", WHOLE,
            ("net use Z: \\\\h\\s <pw> /user:bob",), ("net use Z: \\\\h\\s /user:bob",)),
    Command("password", rb"user", (b"net",), _NEXT + rb"(?i:user)" + _NEXT + rb"[^\s\"'/]{1,64}" + _SEP + rb"(?=[^\s/])", WHOLE, ("net user bob <pw> /add",)),
    Command("password", rb"-p?w", (b"kadmin", b"kadmin.local"), _ANY + _IN + rb"-p?w" + _SEP, WHOLE, ("kadmin -p admin -w <pw> -q x", "kadmin.local -q 'addprinc -pw <apw> bob'")),
    Command("password", rb"(?:add_user|change_password|authenticate_user)", (b"rabbitmqctl",), rb"[^\n|;]{0,60}?\b(?:add_user|change_password|authenticate_user)" + _NEXT + rb"[^\s\"']{1,80}" + _SEP, WHOLE,
            ("rabbitmqctl add_user bob <pw>",)),
    Command("password", rb"-p", (b"couchbase-cli", b"cypher-shell", b"neo4j-shell", b"arangosh", b"cbq"), _ANY + _IN + rb"-p" + _SEP, WHOLE, ("cypher-shell -u neo4j -p <pw>",)),
    Command("password", rb"-s", (b"ldappasswd",), _ANY + _IN + rb"-s" + _SEP, WHOLE, ("ldappasswd -x -s <pw> cn=bob",)),
    Command("password", rb"--encrypt", (b"qpdf",), _ANY + _IN + rb"--encrypt" + _SEP, WHOLE, ("qpdf --encrypt <pw> 256 -- a b",)),
    Command("password", rb"-[uo]pw", (b"pdftotext", b"pdfinfo", b"pdftoppm", b"pdfimages", b"pdftohtml", b"pdfgrep"), _ANY + _IN + rb"-[uo]pw" + _SEP, WHOLE, ("pdftotext -upw <pw> f.pdf",)),
    Command("password", rb"[^ :]{1,80}:[^@ ]{3,80}@", (b"psexec.py", b"smbexec.py", b"wmiexec.py", b"secretsdump.py", b"GetUserSPNs.py", b"smbclient.py", b"mssqlclient.py", b"sftp", b"mysqlsh"),
            _ANY + _IN + rb"[^\s\"':]{1,80}:(?=[^\s\"'@]{3,128}@)", WHOLE, ("psexec.py corp/bob:<apw>@host",)),
    Command("token", rb"(?:auth|-t|-setup)", (b"snyk", b"codecov", b"globusconnectpersonal", b"globus-connect-personal"),
            _ANY + _IN + rb"(?:auth|-t|-setup)(?:" + _SEP + rb"|=)(?=\\{0,7}[\"']?[A-Za-z0-9_.\-+/=]{20,})", WHOLE, ("snyk auth <uuid>", "codecov -t <hex:40>")),
    Command("secret", rb"--base64", (b"virsh",), rb"[^\n|;]{0,60}?\bsecret-set-value\b" + _ANY + _IN + rb"--base64(?:" + _SEP + rb"|=)", WHOLE, ("virsh secret-set-value --base64 <b64:24> x",)),
    Command("password", rb"/p(?:ass)?:", (b"xfreerdp", b"wlfreerdp", b"mstsc", b"cmdkey", b"xfreerdp3"), rb"[^\n|;]{0,400}?/p(?:ass)?:", WHOLE, ("xfreerdp /u:bob /p:<pw> /v:h",)),
    Command("password", rb"-[np]", (b"ssh-keygen",), _ANY + _IN + rb"-[NP]" + _SEP, WHOLE, ("ssh-keygen -t ed25519 -N <pw> -f k",), ("ssh-keygen -t ed25519 -N '' -f k",)),
    Command("password", rb"//[^ ]{1,200}[ \t]", (b"smbclient",), _NEXT + rb"//[^\s\"']{1,200}" + _SEP + rb"(?=[^\s-])", WHOLE, ("smbclient //h/share <pw> -U bob",), ("smbclient //h/share -U bob",)),
    Command("password", rb"/user:", (b"net",), _NEXT + rb"(?i:use)" + _ANY + rb"/(?i:user):[^\s\"']{1,80}" + _SEP + rb"(?=[^\s/])", WHOLE, ("net use Z: \\\\h\\s /user:bob <pw>",)),
    Command("password", rb"-w", (b"security",), rb"[^\n|;]{0,60}?\badd-(?:generic|internet)-password\b" + _ANY + _IN + rb"-w" + _SEP, WHOLE,
            ("security add-generic-password -a bob -s x -w <pw>",), ("security find-generic-password -a bob -w",), rb"[^\n]{0,60}add-[^\n]*[\s\"']"),
    Command("password", rb"config", (b"bundle",), rb"[^\n|;]{0,40}?\bconfig" + _NEXT + rb"(?:(?:set|--global|--local)" + _NEXT + rb"){0,2}[^\s\"']{1,120}" + _SEP + rb"(?=[^\s:/]{1,80}:[^\s/])", b":",
            ("bundle config gems.example bob:<apw>",), ("bundle config path vendor",)),
    Command("secret", rb"(?:--body|-b|--value|-v)", (b"gh", b"glab"), rb"[^\n|;]{0,40}?\b(?:secret|variable)[ \t]+set\b" + _ANY + _IN + rb"(?:--body|-b|--value|-v)(?:" + _SEP + rb"|=)", WHOLE,
            ("gh secret set NAME --body <b62:32>",), ("gh pr create --body text",), rb"[^\n]{0,40}(?:secret|variable)[ \t]+set[^\n]*[\s\"']"),
    Command("password", rb"-u", (b"lftp", b"wput", b"ncftp"), _ANY + _IN + rb"-u" + _SEP + rb"?(?=[^\s-])", b",", ("lftp -u bob,<apw> ftp.example",)),
    Command("password", rb"-ap", (b"swaks",), _ANY + _IN + rb"-ap" + _SEP, WHOLE, ("swaks --to a@b.example -ap <pw>",)),
    Command("password", rb"(?:-s|-p|--plaintext)", (b"mkpasswd", b"doveadm", b"slappasswd", b"caddy", b"grub-mkpasswd-pbkdf2"), _ANY + _IN + rb"(?:-s|-p|--plaintext)" + _SEP, WHOLE, ("slappasswd -s <pw>",)),
    Command("password", rb"[^ ]{0,200}pass(?:word)?=", (b"mount", b"mount.cifs"), rb"[^\n|;]{0,400}?\b(?:password|pass)=", b"", ("mount -t cifs //h/s /m -o username=bob,password=<apw>,vers=3",)),
    Command("password", rb"[^ ]{0,60}\.(?:token|password)=", (b"jupyter", b"jupyter-lab", b"jupyter-notebook"), rb"[^\n|;]{0,300}?\.(?:token|password)=", WHOLE, ("jupyter lab --NotebookApp.token=<hex:48>",)),
)  # fmt: skip

_LISTED = Lazy(rb"\\{0,7}[\"'](?:[ \t]{0,4},[ \t]{0,4}(?:\\?\n[ \t]{0,16})?\\{0,7}[\"']|[ \t])")
"""What follows a program in a list of arguments, or a quoted one in a shell's line."""
_BEFORE_PROGRAM = Lazy(rb"[A-Za-z0-9_.\-]")


def pattern(row: Command) -> bytes:
    """Return the prefilter's pattern for a row: a program, anything on its line, the mark of an option."""
    names = b"|".join(re.escape(name) for name in sorted(row.programs, key=len, reverse=True))
    return rb"(?:" + names + rb")(?:\.exe)?(?:[ \t]|\\{0,7}[\"'],)" + row.between + row.mark


def _other_line(data: bytes, begin: int, end: int) -> bool:
    """Say whether a line that is not continued ends between two offsets."""
    at = data.find(b"\n", begin, end)
    while at >= 0:
        if data[at - 1 : at] != b"\\" and data[at - 2 : at] != b"\\\r":
            return True
        at = data.find(b"\n", at + 1, end)
    return False


class Confirmer:
    """Confirms one row.

    Args:
        row: the family.
    """

    def __init__(self, row: Command) -> None:
        self._row = row
        self._lead = Lazy(row.lead)

    def __call__(self, text: Text, end: int) -> list[Span]:
        """Confirm the secret on the command line of the nearest program before `end`, the mark's end."""
        data = text.data
        low = max(0, end - REACH)
        begin = -1
        for name in self._row.programs:
            at = data.rfind(name, low, end)
            while at > begin:
                if self._is_program(data, at, len(name)):
                    begin = at
                    length = len(name)
                    break
                at = data.rfind(name, low, at)
        if begin < 0 or _other_line(data, begin, end):
            return []
        last, seen = text.vain.get(self._row.lead.decode("latin-1"), (-1, -1))
        if last == begin and seen == 0:
            return []
        text.vain[self._row.lead.decode("latin-1")] = (begin, 0)
        begin += length
        limit = min(begin + REACH, text.command_end(begin))
        spans: list[Span] = []
        for _ in range(_MOST_VALUES):
            found = self._lead.match(data, begin, limit)
            if found is None or (data[begin : begin + 1] in b" \t" and found.group()[-3:].rstrip(b" \t")[-1:] == b","):
                break  # the program stood in a shell's line, and a list's comma ends that
            spans += _value(text, found.end(), self._row, found.group())
            if not spans or spans[-1].end <= begin:
                break
            begin = spans[-1].end
            begin += data[begin : begin + 1] in (b'"', b"'")
        return spans

    @staticmethod
    def _is_program(data: bytes, at: int, length: int) -> bool:
        length += 4 * (data[at + length : at + length + 4].lower() == b".exe")
        follow = data[at + length : at + length + 1]
        if follow not in b" \t\"'\\" or not follow:
            return False
        if follow not in b" \t" and not _LISTED.match(data, at + length, at + length + 24):
            return False
        return (
            not at
            or not _BEFORE_PROGRAM.match(data, at - 1)
            or (data[at - 2 : at - 1] == b"\\" and data[at - 1 : at] in b"nt")
            # a diff's mark
            or (data[at - 1 : at] == b"-" and (data[at - 2 : at - 1] in (b"", b"\n") or data[at - 3 : at - 1] == b"\\n"))
        )


def _value(text: Text, pos: int, row: Command, lead: bytes) -> list[Span]:
    data = text.data
    limit = text.command_end(pos)
    glued = lead[-1:] not in b" \t,=\n"
    # A list's opening quote stands before a glued option (`"-pX"`): its value is bare up to the closing quote.
    value = values.read(data, pos, limit, "shell")
    if value is None or value.end == value.start:
        return []
    start, end = value.start, value.end
    raw = data[start:end]
    if raw[:1] == b"-" and not glued:
        return []
    if row.programs[0] == b"mount":
        comma = raw.find(b",")
        end = start + comma if comma > 0 else end
    if row.part:
        at = raw.find(row.part)
        if at < 0:
            return []
        start += at + 1
        if start >= end:
            return []
    if row.kind == "password":
        if row.part == b"" and raw.isdigit() and row.programs[0] in (b"mongo",) and len(raw) < 6:
            return []
        return make(text, start, end, words.PASSWORD, "cli", value.quoted)
    return make(text, start, end, words.TOKEN, "cli", value.quoted, row.kind)


# --- pipes and here-strings -----------------------------------------------------------------------------------------

_CONSUMERS = (
    rb"(?:/[a-z/]{0,20}/)?(?:sudo[ \t][^|\n]{0,60}?-[A-Za-z]{0,4}S\b|sudo[ \t]+(?:-S|--stdin)|kinit\b|[a-z]{0,8}passwd\b|chpasswd\b|smbpasswd\b|gpg2?\b|cryptsetup\b|su\b|"
    rb"(?:docker|podman|helm|crane|oras|skopeo|buildah|nerdctl|apptainer|singularity|gh|glab|wandb|huggingface-cli|hf|vault|az|oc|cf|npm|snyk)[ \t][^|\n]{0,80}?"
    rb"(?:login|--password-stdin|--with-token|--stdin)\b|ssh-add\b|saslpasswd2\b|pdbedit\b|openssl[ \t][^|\n]{0,200}?stdin|sshpass\b|mysql_config_editor\b|"
    rb"secret-tool\b|pass[ \t]+insert|keyctl\b|systemd-creds\b|systemd-ask-password|nmcli\b|htpasswd\b|mkpasswd\b|ldapsearch\b|hdiutil\b|[a-z0-9_\-]{2,32}[ \t][^|\n]{0,120}?--?[a-z\-]{0,20}stdin|ansible-vault\b|age\b|zip\b|"
    rb"(?:sudo[ \t]+)?(?:tee[ \t]+(?:/run|/dev/shm|/etc)/[^\s]{0,80}(?:secret|token|passw)))"
)
_CONSUMER = Lazy(rb"[ \t]{0,4}(?:sudo[ \t]+(?:-[nEH][ \t]+)?)?(?:" + _CONSUMERS + rb")")
_ECHO = Lazy(
    rb"(?:\b|(?<=\\n)|(?<=\\t))(?:echo|printf|print|yes)(?:[ \t]+-[neE]{1,3})?(?:[ \t]+(?:\\{0,3}[\"'])?%s(?:\\{1,4}n)?(?:\\{0,3}[\"'])?)?[ \t]+(?=\S)"
)


def piped(text: Text, end: int) -> list[Span]:
    """Confirm `echo X | sudo -S …` and its like; `end` is behind the pipe."""
    data = text.data
    limit = text.command_end(end)
    if not _CONSUMER.match(data, end, min(end + 240, limit)):
        return []
    begin = max(text.line(end)[0], end - 300)
    echoes = list(_ECHO.finditer(data, begin, end))
    found = echoes[-1] if echoes else None
    if found is None:
        return []
    start = found.end()
    value = values.read(data, start, end - 1, "shell")
    if value is None or value.end == value.start:
        return []
    stop = value.end
    begin_at = value.start
    raw = data[begin_at:stop]
    between = data[stop : end - 1]
    grouped = between.rstrip()[-1:] == b")" and len(echoes) < 8
    if b"|" in between or (b";" in between and not grouped) or b'",' in between:
        return []  # another command feeds this pipe
    if not value.quoted and raw[-1:] == b"|":
        stop -= 1
    if b"chpasswd" in data[end : end + 60] and b":" in raw:
        begin_at += raw.index(b":") + 1
    while data[begin_at:stop].endswith((b"\\n", b"\\\\n")):
        stop -= 2
        while stop > begin_at and data[stop - 1] == 0x5C:
            stop -= 1
    spans = make(text, begin_at, stop, words.PASSWORD, "cli", value.quoted)
    for other in echoes[:-1] if grouped else ():
        # `(echo X; echo X) | passwd`
        again = values.read(data, other.end(), end - 1, "shell")
        if again is not None and again.end > again.start:
            spans += make(text, again.start, again.end, words.PASSWORD, "cli", again.quoted)
    return spans


_FED = Lazy(rb"(?:<\(|\\{0,7}[\"'])[ \t]{0,4}(?:echo|printf)(?:[ \t]+-[neE]{1,3})?(?:[ \t]+[\"']?%s(?:\\{1,2}n)?[\"']?)?[ \t]+(?=\S)")


def substituted(text: Text, end: int) -> list[Span]:
    """Confirm `--password-file=<(echo X)` and `--password-command 'echo X'`; `end` is behind `echo `."""
    data = text.data
    start = max(data.rfind(b"echo", max(0, end - 16), end), data.rfind(b"printf", max(0, end - 16), end))
    found = _FED.search(data, max(0, start - 12), min(end + 24, text.line(end)[1]))
    if found is None:
        return []
    value = values.read(data, found.end(), text.line(end)[1], "shell")
    if value is None:
        return []
    return make(text, value.start, value.end, words.PASSWORD, "cli", value.quoted)


_LISTED_USER = Lazy(rb"(?:[ \t\r]|\\{1,7}[nt]|\\?\n)*[+>|]?([A-Za-z0-9_.\-]{1,32}):([^\s\"'\\:]{3,128})(?=\s|\\[nr]|\Z)")


_LIST = re.compile(rb"chpasswd[^\n|]{0,40}<<-?\\?[\"']?([a-z_]{1,20})[^\n]*\n", re.IGNORECASE)
LISTED: Final = 4096
"""Bytes of a here-document for `chpasswd` that are read, from that word on."""


def users(text: Text, end: int) -> list[Span]:
    """Confirm the lines `user:X` of a here-document for `chpasswd`; `end` is behind the first line's start."""
    spans: list[Span] = []
    pos = end
    low = max(0, end - 100)
    limit = min(len(text.data), low + text.data[low:end].lower().rfind(b"chpasswd") + LISTED)
    while found := _LISTED_USER.match(text.data, pos, limit):
        spans += make(text, found.start(2), found.end(2), words.PASSWORD, "cli", False)
        pos = found.end()
    return spans


def held(pending: bytearray, end: int) -> int:
    """Move a block's end before a here-document for `chpasswd` that goes on behind it: its lines are read as one.

    Args:
        pending: what has not been given out.
        end: where a line of it ends.
    """
    for opened in _LIST.finditer(pending, max(0, end - LISTED), end):
        if not re.search(rb"^[+>| \t]*" + opened[1] + rb"\r?$", pending[opened.end() : end], re.MULTILINE):
            return pending.rfind(b"\n", 0, opened.start()) + 1
    return end


def here_string(text: Text, end: int) -> list[Span]:
    """Confirm `kinit bob <<< X` and `sudo -S cmd <<< X`; `end` is behind `<<<`."""
    data = text.data
    begin = max(text.line(end)[0], end - 200)
    begin += max(data[begin : end - 3].rfind(mark) for mark in (b";", b"|", b"&", b"(", b'",', b"',")) + 1
    if not re.search(rb"(?:^|[\s;|&\"'`>(+\-\0]|\\[nt])" + _CONSUMERS, data[begin : end - 3]):
        return []
    pos = end
    limit = text.command_end(end)
    while pos < limit and data[pos] in b" \t":
        pos += 1
    value = values.read(data, pos, limit, "shell")
    if value is None:
        return []
    start = value.start
    raw = data[start : value.end]
    if b"chpasswd" in data[begin:end] and b":" in raw:
        start += raw.index(b":") + 1
    return make(text, start, value.end, words.PASSWORD, "cli", value.quoted)
