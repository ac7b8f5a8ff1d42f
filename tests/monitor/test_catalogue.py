"""The catalogue: command lines as they are seen on login nodes, agents' and people's."""

import pytest

from guard.errors import UsageError
from guard.monitor import catalogue
from guard.monitor.facts import Program
from guard.monitor.programs import program_table

SHIPPED = catalogue.shipped()

# harness, how sure, file given to execve, argv (split at blanks)
AGENTS = """
claude high /usr/local/bin/claude claude
claude high /home/u/.local/bin/claude claude --dangerously-skip-permissions -p fix
claude high /home/u/.local/share/claude/versions/2.0.14 /home/u/.local/bin/claude --resume
claude high /usr/bin/node node /usr/local/bin/claude --print hello
claude high /usr/bin/node node --no-warnings --enable-source-maps /home/u/.npm-global/lib/node_modules/@anthropic-ai/claude-code/cli.js
claude high /usr/bin/node /usr/bin/node --max-old-space-size=8192 /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js --output-format stream-json
claude high /usr/bin/node node /home/u/app/node_modules/@anthropic-ai/claude-agent-sdk/cli.js --verbose
claude high /home/u/.vscode-server/extensions/anthropic.claude-code-2.0.1-linux-x64/resources/native-binary/claude claude --ide
claude high /usr/bin/node node /home/u/.npm/_npx/a1b2/node_modules/.bin/claude
claude high /opt/conda/bin/node node /opt/conda/bin/claude-code-acp
codex high /usr/local/bin/codex codex exec --full-auto fix
codex high /usr/bin/node node /usr/local/bin/codex
codex high /usr/bin/node node /usr/lib/node_modules/@openai/codex/bin/codex.js resume
codex high /usr/lib/node_modules/@openai/codex/vendor/x86_64-unknown-linux-musl/codex/codex codex exec
codex high /home/u/.vscode-server/extensions/openai.chatgpt-0.4.12-linux-x64/bin/linux-x86_64/codex codex app-server
codex high /home/u/bin/codex-x86_64-unknown-linux-musl codex-x86_64-unknown-linux-musl
cursor high /home/u/.local/bin/cursor-agent cursor-agent --force
cursor high /home/u/.local/share/cursor-agent/versions/2025.10.28-0a91dc2/node /home/u/.local/bin/cursor-agent --use-system-ca /home/u/.local/share/cursor-agent/versions/2025.10.28-0a91dc2/index.js -p
cursor medium /home/u/.cursor-server/bin/9d17/node /home/u/.cursor-server/bin/9d17/node --dns-result-order=ipv4first /home/u/.cursor-server/bin/9d17/out/bootstrap-fork --type=extensionHost --transformURIs
copilot medium /usr/local/bin/copilot copilot -p do
copilot medium /usr/bin/node node /usr/local/bin/copilot --allow-all-tools
copilot high /usr/bin/node node --disable-warning=ExperimentalWarning /usr/lib/node_modules/@github/copilot/index.js
copilot high /home/u/.local/share/gh/extensions/gh-copilot/gh-copilot gh-copilot suggest
vscode low /home/u/.vscode-server/cli/servers/Stable-1/server/node /home/u/.vscode-server/cli/servers/Stable-1/server/node /home/u/.vscode-server/cli/servers/Stable-1/server/out/bootstrap-fork --type=extensionHost
windsurf medium /home/u/.windsurf-server/bin/1/extensions/windsurf/bin/language_server_linux_x64 language_server_linux_x64 --api_server_url
gemini high /usr/bin/node node /usr/local/bin/gemini --yolo
gemini high /usr/bin/node node --no-warnings=DEP0040 /usr/lib/node_modules/@google/gemini-cli/dist/index.js
gemini high /usr/bin/node /usr/bin/node --max-old-space-size=7800 /usr/lib/node_modules/@google/gemini-cli/bundle/gemini.js
aider high /home/u/.local/bin/aider aider --model sonnet
aider high /home/u/.local/share/pipx/venvs/aider-chat/bin/python /home/u/.local/share/pipx/venvs/aider-chat/bin/python /home/u/.local/bin/aider
aider high /usr/bin/python3 python3 -m aider --yes
aider high /usr/bin/python3.12 python3.12 -X utf8 -m aider
opencode high /home/u/.opencode/bin/opencode opencode run
opencode high /usr/lib/node_modules/opencode-ai/node_modules/opencode-linux-x64/bin/opencode opencode
opencode high /usr/bin/bun bun /home/u/.bun/bin/opencode
goose medium /home/u/.local/bin/goose goose session
goose medium /home/u/.local/bin/goose goose run -t fix
goose medium /home/u/.local/bin/goose goose
amp high /usr/bin/node node /usr/lib/node_modules/@sourcegraph/amp/dist/main.js -x
amp medium /usr/bin/node node /usr/local/bin/amp
crush medium /usr/local/bin/crush crush -y
droid medium /home/u/.local/bin/droid droid exec --auto high
qwen high /usr/bin/node node /usr/local/bin/qwen
qwen high /usr/bin/node node /usr/lib/node_modules/@qwen-code/qwen-code/dist/index.js
kimi medium /home/u/.local/bin/kimi kimi --yolo
qchat high /home/u/.local/bin/qchat qchat chat
cline medium /usr/bin/node node /usr/local/bin/cline task
continue medium /usr/bin/node node /usr/local/bin/cn -p
auggie high /usr/bin/node node /usr/local/bin/auggie
kilocode high /usr/bin/node node /usr/lib/node_modules/@kilocode/cli/index.js
openhands high /usr/bin/python3 python3 -m openhands.core.main -t x
openhands high /home/u/.local/bin/openhands openhands
swe-agent high /usr/bin/python3 python3 /home/u/.local/bin/sweagent run
swe-agent high /home/u/.local/bin/mini-swe-agent mini-swe-agent
plandex medium /usr/local/bin/plandex plandex tell
interpreter medium /usr/bin/python3 python3 /home/u/.local/bin/interpreter -y
gptme high /usr/bin/python3 python3 /home/u/.local/bin/gptme
devin medium /usr/local/bin/devin devin
claude high /usr/bin/deno deno run -A npm:@anthropic-ai/claude-code
claude high /home/u/.bun/bin/bun bun /home/u/.bun/install/global/node_modules/@anthropic-ai/claude-code/cli.js
claude high /home/u/.volta/tools/image/node/22.1.0/bin/node node /home/u/.volta/tools/image/packages/@anthropic-ai/claude-code/bin/claude
claude high /home/u/.local/share/mise/installs/node/22/bin/node node -r /x/hook.js /home/u/.local/share/mise/installs/node/22/bin/claude
claude high /nix/store/abc-claude-code-2.0/bin/.claude-wrapped claude
claude high /usr/bin/node node /home/u/.cache/pnpm/dlx/1/node_modules/.pnpm/@anthropic-ai+claude-code@2/node_modules/@anthropic-ai/claude-code/cli.js
aider high /home/u/.cache/uv/archive-v0/abc/bin/python /home/u/.cache/uv/archive-v0/abc/bin/python /home/u/.cache/uv/archive-v0/abc/bin/aider
aider high /usr/bin/python3 python3 -m aider.main
junie medium /home/u/.local/bin/junie junie
grok medium /usr/bin/node node /usr/local/bin/grok
rovodev high /home/u/.local/share/acli/atlassian_cli_rovodev atlassian_cli_rovodev run
"""

# What people run, some of it about agents or under a name like one: none is a harness.
PEOPLE = """
/bin/bash -bash
/bin/bash bash -l
/bin/bash claude
/usr/bin/zsh zsh -i
/usr/bin/fish fish
/bin/bash bash -c claude --version
/bin/sh sh -c exec node /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js
/usr/bin/vim vim /home/u/claude.py
/nix/store/abc-vim/bin/.vim-wrapped vim claude
/home/u/.bun/bin/bun bun add @anthropic-ai/claude-code
/usr/bin/deno deno test claude
/usr/bin/less less /home/u/.claude/settings.json
/usr/bin/man man claude
/usr/bin/which which claude codex gemini
/usr/bin/grep grep -r claude /home/u
/usr/bin/tail tail -f /home/u/.codex/log/codex-tui.log
/usr/bin/cat cat /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js
/usr/bin/cp cp /usr/local/bin/claude /tmp/
/usr/bin/pkill pkill claude
/usr/bin/pgrep pgrep -f claude
/usr/bin/strace strace -f claude
/usr/bin/env env FOO=1 claude
/usr/bin/nohup nohup claude
/usr/bin/tmux tmux new -s claude
/usr/bin/ssh ssh node1 claude
/usr/bin/node node /usr/bin/npm install -g @anthropic-ai/claude-code
/usr/bin/node node /usr/bin/npx @openai/codex
/usr/bin/node node /home/u/app/server.js claude
/usr/bin/node node /home/u/app/index.js
/usr/bin/node node /home/u/app/cli.js
/usr/bin/node node /home/u/app/dist/main.js
/usr/bin/node node -e require("codex")
/usr/bin/node node
/usr/bin/node node --test claude
/usr/bin/node node /home/u/claude/test.js
/usr/bin/node node /home/u/.vscode-server/bin/1/out/server-main.js --port 0
/home/u/.vscode-server/bin/1/node /home/u/.vscode-server/bin/1/node /home/u/.vscode-server/bin/1/out/bootstrap-fork --type=ptyHost --logsLevel 2
/home/u/.cursor-server/bin/1/node /home/u/.cursor-server/bin/1/node /home/u/.cursor-server/bin/1/out/bootstrap-fork --type=ptyHost
/home/u/.cursor-server/bin/1/node /home/u/.cursor-server/bin/1/node /home/u/.cursor-server/bin/1/out/bootstrap-fork --type=fileWatcher
/usr/bin/python3 python3 -m pip install aider-chat
/usr/bin/python3 python3 -m pytest tests/test_claude.py
/usr/bin/python3 python3 claude_client.py
/usr/bin/python3 python3 -c import aider
/usr/bin/python3 python3 /opt/conda/bin/gemini load -v x.vcf db
/opt/conda/bin/gemini /opt/conda/bin/gemini query -q select
/usr/bin/python3 python3 /opt/conda/bin/codex-africanus
/usr/bin/python3 python3 manage.py runserver codex
/usr/local/bin/goose goose -dir migrations postgres dsn up
/usr/local/bin/goose goose status
/usr/local/bin/goose goose up
/usr/local/bin/copilot copilot init --app x
/usr/local/bin/copilot copilot svc deploy
/usr/local/bin/crush crush --reduce test.c
/usr/bin/perl perl /usr/local/bin/cn
/usr/bin/ruby ruby /usr/local/bin/amp
/usr/bin/python3 python3 /usr/local/bin/cline
/usr/bin/docker docker run -it claude
/usr/bin/git git clone https://github.com/openai/codex
/usr/bin/make make codex
/usr/bin/srun srun -n 4 ./codex_sim
/usr/bin/sbatch sbatch --job-name=claude job.sh
/usr/bin/gcc gcc -o codex codex.c
/usr/bin/emacs emacs --daemon=opencode
/usr/bin/rsync rsync -a .claude/ host:
/home/u/project/codex.py codex.py
/home/u/.local/share/claude/versions /home/u/.local/share/claude/versions
/opt/interpreter/bin/interpreter interpreter model.tflite
/usr/bin/forge forge build
/usr/bin/vibe vibe
/usr/bin/q q -H select
/usr/bin/julia julia -e claude
/usr/bin/jupyter jupyter lab
/opt/matlab/bin/matlab matlab -nodisplay
"""


def agents() -> list[tuple[str, str, str, list[str]]]:
    rows = [line.split(" ") for line in AGENTS.strip().splitlines()]
    return [(harness, sure, file, argv) for harness, sure, file, *argv in rows]


@pytest.mark.parametrize(
    ("harness", "sure", "file", "argv"), agents(), ids=lambda v: v[-1] if isinstance(v, list) else None
)
def test_an_agent_is_recognised(harness: str, sure: str, file: str, argv: list[str]) -> None:
    match = SHIPPED.recognise(file, "", argv)
    assert match is not None
    assert (match.harness, match.confidence) == (harness, sure)


@pytest.mark.parametrize("line", PEOPLE.strip().splitlines())
def test_what_people_run_is_no_agent(line: str) -> None:
    file, *argv = line.split(" ")
    assert SHIPPED.recognise(file, "", argv) is None


def test_precision_and_recall_over_the_whole_set() -> None:
    caught = sum(SHIPPED.recognise(file, "", argv) is not None for _, _, file, argv in agents())
    false = sum(
        SHIPPED.recognise(line.split(" ")[0], "", line.split(" ")[1:]) is not None
        for line in PEOPLE.strip().splitlines()
    )
    assert caught / len(agents()) >= 0.98, "recall"
    assert caught / (caught + false) >= 0.98, "precision"


def test_the_file_that_really_runs_counts() -> None:
    match = SHIPPED.recognise("/home/u/bin/c", "/home/u/.local/share/claude/versions/2.1.0", ["c"])
    assert match is not None
    assert match.harness == "claude"


def test_argv0_alone_makes_no_agent_and_hides_none() -> None:
    assert SHIPPED.recognise("/usr/bin/sleep", "/usr/bin/sleep", ["claude", "60"]) is None
    assert SHIPPED.recognise("/usr/local/bin/claude", "", ["bash"]) is not None


def test_every_row_has_a_title_and_a_sign() -> None:
    for row in SHIPPED.rows.values():
        assert row.title
        assert row.programs or row.scripts or row.modules or row.paths or row.extension_hosts
        assert row.confidence in catalogue.CONFIDENCES
        assert not (row.scripts or row.modules) or row.runtimes, row.name
        assert set(row.runtimes) <= set(catalogue.RUNTIMES), row.name


def test_an_added_program_is_recognised_as_a_program_and_as_a_script() -> None:
    more = SHIPPED.with_rows([catalogue.from_option("mine=my-agent")])
    for file, argv in (("/opt/my-agent", ["my-agent"]), ("/usr/bin/python3", ["python3", "/opt/my-agent", "go"])):
        match = more.recognise(file, "", argv)
        assert match is not None
        assert match.harness == "mine"


@pytest.mark.parametrize(
    "text", ["mine", "=x", "mine=", "mine=/opt/x", "a b=x", "mine=bash", "mine=zsh", "mine=" + "x" * 32]
)
def test_an_option_that_names_no_program_or_a_shell_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        catalogue.from_option(text)


def test_the_kernel_labels_by_sure_names_and_asks_about_the_others() -> None:
    table = program_table(SHIPPED)
    assert table["claude"] & Program.HARNESS
    assert table["cursor-agent"] & Program.HARNESS
    for name in ("goose", "gemini", "cli.js", "--type=extensionHost", "guard"):
        assert table[name] & Program.HINT, name
        assert not table[name] & Program.HARNESS, name
    for shell in ("bash", "sh", "zsh", "fish"):
        assert table[shell] == Program.SHELL
    assert table["python3.12"] & Program.PYTHON
    assert table["git"] & Program.TRUSTED
    assert all(len(name.encode()) <= 31 for name in table)
