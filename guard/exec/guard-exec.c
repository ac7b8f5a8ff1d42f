/* guard-exec: `guard run` without an interpreter, for a start that the Python launcher has made before.
 *
 * The launcher (guard/confine/written.py) writes a start down: the questions that it asked of this host with the
 * answers it got, and then the steps it took, in order. Here the questions are asked again. Where every answer is the
 * same, the steps are taken again; where one is not, or anything at all is not understood, the launcher is executed in
 * our place with the same words and decides anew. So nothing is decided here, and nothing runs unconfined: up to the
 * event that tells of the start everything ends in the launcher, after it in exit code 125.
 *
 *     guard ARGUMENT...                     `run` as above, everything else is the launcher's
 *     guard history line|tcsh|fish ...      what a shell asks at its prompt (history.c)
 *     guard-exec --start FILE -- CMD...     in a container without Python: a start written by `guard policy compile
 *                                           --container`; nobody else is there to ask, so every failure is 125
 */
#include "guard-exec.h"

static char *own_argv[MOST_WORDS + 1];
static bool on_record;
struct session session = {.lock = -1, .spool = -1, .ruleset = -1, .start = -1, .committed = &on_record};
bool portable;         /* no launcher to fall back to */
static char name[17], key[MOST_KEY]; /* the start's, once they are known */
static size_t key_size;

/* The launcher is asked to write down what it does: its words get a descriptor that holds the start's name and key. */
static void ask_to_write(void)
{
	static char option[32];
	int fd = memfd_create("guard-start", 0);
	if (fd < 0 || write(fd, name, 16) != 16 || write(fd, key, key_size) != (ssize_t)key_size)
		return;
	snprintf(option, sizeof option, "--write-start=%d", fd);
	memmove(own_argv + 3, own_argv + 2, sizeof *own_argv * (MOST_WORDS - 2));
	own_argv[2] = option;
}

static _Noreturn void become_launcher(char **argv)
{
	execv(GUARD_LAUNCHER, argv);
	dprintf(2, "guard: not started: %s: %s; install guard again\n", GUARD_LAUNCHER, strerror(errno));
	_exit(125);
}

void fall(const char *why)
{
	static bool again;
	if (again)
		_exit(125); /* what tells of the failure failed itself */
	again = true;
	bool is_final = *session.committed || portable;
	if (session.tmp[0])
		rmdir(session.tmp);
	if (is_final || getenv("GUARD_DEBUG"))
		dprintf(2, "guard: %s: %s: %s\n", is_final ? "not started" : "guard-exec", why, strerror(errno));
	if (*session.committed)
		tell('f');
	if (is_final || session.is_beside)
		_exit(125);
	if (name[0])
		ask_to_write();
	become_launcher(own_argv);
}

/* The file --------------------------------------------------------------------------------------------------- */

static unsigned char bytes[MOST_BYTES];
static struct step steps[MOST_STEPS];
static struct field fields[MOST_FIELDS];
static size_t count;

uint64_t sum_of(const unsigned char *bytes, size_t size)
{
	uint64_t sum = 0xcbf29ce484222325; /* FNV-1a: tells a disk's error, and names files */
	for (size_t i = 0; i < size; i++)
		sum = (sum ^ bytes[i]) * 0x100000001b3;
	return sum;
}

/* Find the steps in a file: a letter, a number of fields, and the fields, each with its length before and a NUL after
 * it. Nothing is copied, nothing believed that does not lie wholly inside. */
static bool parse(size_t size)
{
	const size_t head = sizeof MAGIC - 1 + 8;
	size_t used = 0;
	uint64_t sum;
	if (size < head || memcmp(bytes, MAGIC, sizeof MAGIC - 1))
		return false;
	memcpy(&sum, bytes + head - 8, 8);
	if (sum != sum_of(bytes + head, size - head))
		return false;
	count = 0;
	for (size_t at = head; at < size;) {
		if (size - at < 2 || count == MOST_STEPS || used + bytes[at + 1] > MOST_FIELDS)
			return false;
		struct step *step = &steps[count++];
		step->letter = (char)bytes[at];
		step->fields = bytes[at + 1];
		step->field = fields + used;
		at += 2;
		for (int i = 0; i < step->fields; i++) {
			uint32_t length;
			if (size - at < 5)
				return false;
			memcpy(&length, bytes + at, 4);
			at += 4;
			if (length >= size - at || bytes[at + length])
				return false;
			fields[used++] = (struct field){(char *)bytes + at, length};
			at += length + 1;
		}
	}
	return count && steps[count - 1].letter == '.';
}

size_t offset_of(const struct field *field)
{
	return (size_t)((unsigned char *)field->text - bytes);
}

const struct step *step_after(const struct step *step)
{
	return step + 1 < steps + count ? step + 1 : NULL;
}

const struct step *next_step(const struct step *after, char letter)
{
	for (const struct step *step = after ? after + 1 : steps; step < steps + count; step++)
		if (step->letter == letter)
			return step;
	return NULL;
}

const struct step *only(char letter, int fields)
{
	const struct step *step = next_step(NULL, letter);
	if (!step || step->fields < fields || next_step(step, letter))
		fall("the written start lacks a step");
	return step;
}

const char *text(const struct step *step, int i)
{
	if (i >= step->fields || strlen(step->field[i].text) != step->field[i].length)
		fall("the written start is damaged");
	return step->field[i].text;
}

uint64_t number(const struct step *step, int i)
{
	const char *digits = text(step, i);
	char *end;
	errno = 0;
	uint64_t value = strtoull(digits, &end, 10);
	if (errno || *end || digits[0] < '0' || digits[0] > '9')
		fall("the written start is damaged");
	return value;
}

/* What may be trusted: nobody but root and we can have written it, or put another in its place. */
static bool trusted(const char *directory)
{
	char path[PATH_MAX], link[64];
	int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = fd < 0 ? -1 : readlink(link, path, sizeof path - 1);
	if (fd >= 0)
		close(fd);
	if (length < 1 || length > PATH_MAX - 2 || path[0] != '/')
		return false;
	for (path[length] = 0;;) {
		struct stat about;
		if (stat(*path ? path : "/", &about) || (about.st_uid && about.st_uid != geteuid()))
			return false;
		if (about.st_mode & 022 && !(about.st_mode & S_ISVTX))
			return false;
		if (!*path)
			return true;
		*strrchr(path, '/') = 0;
	}
}

static void load(const char *path)
{
	char directory[PATH_MAX];
	struct stat about;
	snprintf(directory, sizeof directory, "%s", path);
	*(strrchr(directory, '/') ? strrchr(directory, '/') + 1 : directory) = 0;
	session.start = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (session.start < 0 || fstat(session.start, &about))
		fall("no written start");
	if (!S_ISREG(about.st_mode) || about.st_mode & 022 || (about.st_uid && about.st_uid != geteuid()) ||
	    !trusted(directory[0] ? directory : "."))
		fall("the written start cannot be trusted");
	ssize_t size = read(session.start, bytes, sizeof bytes);
	if (size < 0 || size != about.st_size || !parse((size_t)size))
		fall("the written start is damaged");
}

/* The command line -------------------------------------------------------------------------------------------- */

/* A start is told from others by who asks, where, and with which words; everything else is among the questions. */
static void add(const char *word)
{
	size_t length = strlen(word) + 1;
	if (key_size + length > MOST_KEY)
		fall("too many words");
	memcpy(key + key_size, word, length);
	key_size += length;
}

static void add_variable(const char *variable)
{
	add(getenv(variable) ? "=" : "");
	add(getenv(variable) ? getenv(variable) : "");
}

static const char *base_of(const char *path)
{
	return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

static bool is_among(const char *word, const char *const *words)
{
	for (; *words; words++)
		if (!strcmp(word, *words))
			return true;
	return false;
}

/* Names that decide which harness's overlay is added (guard.confine.launch, HARNESSES), and interpreters of such. */
static const char *const harnesses[] = {"claude", "codex", "cursor", "cursor-agent", "copilot", "gemini", NULL};
static const char *const interpreters[] = {"node", "bun", "deno", "npx", "uvx", NULL};
static const char *const with_value[] = {"--policy", "--project", "--require", "--session", "--config", NULL};
static const char *const without_value[] = {"--tell", "--no-project-policy", NULL};

static char **read_words(char **words)
{
	while (*words && (*words)[0] == '-' && (*words)[1]) {
		char option[32];
		const char *word = *words++;
		if (!strcmp(word, "--"))
			break;
		snprintf(option, sizeof option, "%.*s", (int)strcspn(word, "="), word);
		add(word);
		if (is_among(option, with_value)) {
			if (!strchr(word, '=')) {
				if (!*words)
					fall("an option without its value");
				add(*words++);
			}
		} else if (!is_among(word, without_value)) {
			fall("an option that only the launcher knows");
		}
	}
	if (!*words || !**words)
		fall("no command");
	add("--");
	for (int i = 0; i < 2 && words[i]; i++) {
		if (is_among(base_of(words[i]), harnesses))
			add(base_of(words[i]));
		if (!is_among(base_of(words[0]), interpreters))
			break;
	}
	return words;
}

static void make_key(void)
{
	gid_t groups[NGROUPS_MAX];
	int most = getgroups(NGROUPS_MAX, groups);
	char word[32];
	snprintf(word, sizeof word, "%u %u", geteuid(), getegid());
	add(word);
	for (int i = 0; i < most; i++) {
		snprintf(word, sizeof word, "%u", groups[i]);
		add(word);
	}
	if (!getcwd(session.cwd, sizeof session.cwd) || session.cwd[0] != '/')
		fall("the working directory");
	add(session.cwd);
	for (const char *const *variable = (const char *const[]){"HOME", "GUARD_CONFIG_DIR", "SLURM_JOB_ID", NULL}; *variable; variable++)
		add_variable(*variable);
}

static void find_program(const char *name)
{
	const char *path = strchr(name, '/') ? "" : getenv("PATH") ? getenv("PATH") : "/bin:/usr/bin";
	for (bool more = true; more; path++) {
		size_t length = strcspn(path, ":");
		struct stat about;
		if (strchr(name, '/'))
			snprintf(session.program, sizeof session.program, "%s", name);
		else
			snprintf(session.program, sizeof session.program, "%.*s/%s", length ? (int)length : 1, length ? path : ".", name);
		more = path[length];
		path += length;
		if (stat(session.program, &about) || !S_ISREG(about.st_mode) || access(session.program, X_OK))
			continue;
		if (about.st_mode & S_ISUID)
			fall("a program that gains rights");
		return;
	}
	fall("no such program");
}

/* What cannot be told counts as there. */
static bool is_there(const char *path)
{
	struct stat about;
	return !lstat(path, &about) || (errno != ENOENT && errno != ENOTDIR);
}

int main(int argc, char **argv)
{
	static char path[PATH_MAX];
	char default_state[64];
	bool is_run = argc > 2 && !strcmp(argv[1], "run");
	if (argc > MOST_WORDS - 2)
		become_launcher(argv);
	memcpy(own_argv, argv, sizeof *argv * ((size_t)argc + 1));
	for (int fd = 0; fd < 3; fd++) /* no file of ours must get the number of a standard stream */
		if (fcntl(fd, F_GETFD) < 0)
			open("/dev/null", O_RDWR | O_CLOEXEC); /* the command is to find it as closed as it was */
	if (argc > 2 && !strcmp(argv[1], "history"))
		history(argv + 2);
	if (argc > 3 && !strcmp(argv[1], "--start")) {
		portable = true;
		session.command = argv + (strcmp(argv[3], "--") ? 3 : 4);
		if (!*session.command || !getcwd(session.cwd, sizeof session.cwd))
			fall("no command");
		load(argv[2]);
		only('P', 0);
	} else {
		if (!is_run)
			fall("not `run`");
		snprintf(default_state, sizeof default_state, geteuid() ? "/var/tmp/guard-%u" : "/var/lib/guard", geteuid());
		const char *state = getenv("GUARD_STATE_DIR");
		state = state && *state ? state : default_state;
		if (state[0] != '/' || prctl(PR_GET_SECCOMP) != 0 || getuid() != geteuid() || getgid() != getegid())
			fall("a start inside another");
		if (strcmp(state, default_state) && (is_there(SITE "/site.toml") || is_there(SITE "/assign.toml")))
			fall("a place that is not asked where root's files decide");
		for (char **word = argv; *word; word++)
			if (!strncmp(*word, "/dev/fd/", 8) || !strncmp(*word, "/proc/self/fd/", 14))
				fall("a descriptor handed over by name");
		if (getenv("MAKEFLAGS") && strstr(getenv("MAKEFLAGS"), "--jobserver"))
			fall("a job server");
		make_key();
		session.command = read_words(argv + 2);
		snprintf(name, sizeof name, "%016llx", (unsigned long long)sum_of((unsigned char *)key, key_size));
		if (snprintf(path, sizeof path, "%s/starts/%s", state, name) >= (int)sizeof path)
			fall("a long name");
		load(path);
		const struct step *whose = only('k', 1);
		if (whose->field[0].length != key_size || memcmp(whose->field[0].text, key, key_size))
			fall("the start of another caller");
	}
	session.exe = base_of(session.command[0]);
	for (const char *c = session.exe; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("._+-@", *c))
			fall("a program with an odd name");
	find_program(session.command[0]);
	for (const struct step *step = NULL; !portable && (step = next_step(step, 'q'));)
		if (step->fields != 3 || !is_answer(text(step, 0), text(step, 1), &step->field[2]))
			fall(text(step, 1));
	return start();
}
