/* A written start: its questions asked again, and its steps taken. Every step is one that the launcher took, in the
 * same order; what a step cannot do ends in `fall`. */
#include "guard-exec.h"

/* Questions -------------------------------------------------------------------------------------------------- */

static const char *real_path(int fd, char *path)
{
	char link[40];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, PATH_MAX - 1);
	path[length < 0 ? 0 : length] = 0;
	return path;
}

static long long nanoseconds(struct timespec at)
{
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* Ask one question; the answer's text is what guard/confine/written.py makes of the same. */
bool is_answer(const char *kind, const char *about, const struct field *answer)
{
	char got[PATH_MAX + 64] = "", path[PATH_MAX];
	struct stat status;
	struct utsname host;
	ssize_t length = -1;
	uint64_t sum = 0;
	DIR *names;
	int fd;
	switch (kind[0]) {
	case 'l': /* what has this name, a link for itself: mode and owner */
	case 'L':
	case 's': /* what the name leads to; in capitals of no owner */
	case 'S':
		if ((tolower(kind[0]) == 'l' ? lstat : stat)(about, &status))
			snprintf(got, sizeof got, "-%d", errno);
		else if (isupper((unsigned char)kind[0]))
			snprintf(got, sizeof got, "%o", status.st_mode);
		else
			snprintf(got, sizeof got, "%o %u", status.st_mode, status.st_uid);
		break;
	case 'n': /* whether a file is still the one that was read */
		if (stat(about, &status))
			snprintf(got, sizeof got, "0 0 0");
		else
			snprintf(got, sizeof got, "%lld %lld %llu", nanoseconds(status.st_mtim), (long long)status.st_size,
			         (unsigned long long)status.st_ino);
		break;
	case 'z': /* its size */
		snprintf(got, sizeof got, "%lld", stat(about, &status) ? 0LL : (long long)status.st_size);
		break;
	case 'P':
	case 'p': /* where a name leads in the end, and what is there */
		if ((fd = open(about, O_PATH | O_CLOEXEC)) < 0 || fstat(fd, &status))
			snprintf(got, sizeof got, "-%d", errno);
		else if (kind[0] == 'P')
			snprintf(got, sizeof got, "%o %s", status.st_mode, real_path(fd, path));
		else
			snprintf(got, sizeof got, "%o %u %s", status.st_mode, status.st_uid, real_path(fd, path));
		if (fd >= 0)
			close(fd);
		break;
	case 'f': /* the beginning of a small file */
		if ((fd = open(about, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) < 0)
			snprintf(got, sizeof got, "-%d", errno);
		else if (fstat(fd, &status) || !S_ISREG(status.st_mode))
			snprintf(got, sizeof got, "no file");
		else
			length = read(fd, got, 4096);
		if (fd >= 0)
			close(fd);
		break;
	case 'd': /* the names in a directory, in any order */
		if (!(names = opendir(about)))
			snprintf(got, sizeof got, "-%d", errno);
		for (struct dirent *entry; names && (entry = readdir(names));)
			if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
				sum += sum_of((unsigned char *)entry->d_name, strlen(entry->d_name));
		if (names) {
			snprintf(got, sizeof got, "%llu", (unsigned long long)sum);
			closedir(names);
		}
		break;
	case 'y': /* the terminal that a standard stream is */
		if (ttyname_r(atoi(about), got, sizeof got))
			got[0] = 0;
		break;
	case 'h': /* this host */
		snprintf(got, sizeof got, "%s", uname(&host) ? "" : host.nodename);
		break;
	case 'a': /* Landlock's ABI */
		snprintf(got, sizeof got, "%ld", syscall(SYS_landlock_create_ruleset, NULL, 0, 1));
		break;
	case 'i': /* whether /proc speaks of our PID namespace */
		length = readlink("/proc/self", path, sizeof path - 1);
		path[length < 0 ? 0 : length] = 0;
		snprintf(got, sizeof got, "%d", atoi(path) == getpid());
		length = -1;
		break;
	case 't': /* whether the day has not come */
		snprintf(got, sizeof got, "%s", (long long)time(NULL) < atoll(about) ? "before" : "after");
		break;
	default:
		return false;
	}
	if (length < 0)
		length = (ssize_t)strlen(got);
	return (size_t)length == answer->length && !memcmp(got, answer->text, answer->length);
}

/* Texts with holes ------------------------------------------------------------------------------------------- */

static void new_id(char *id)
{
	unsigned char b[16];
	struct timespec now;
	if (syscall(SYS_getrandom, b + 6, 10, 0) != 10 || clock_gettime(CLOCK_REALTIME, &now))
		fall("getrandom");
	uint64_t ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	for (int i = 0; i < 6; i++)
		b[i] = (unsigned char)(ms >> (40 - 8 * i));
	b[6] = (b[6] & 0x0f) | 0x70; /* a UUIDv7 (RFC 9562) */
	b[8] = (b[8] & 0x3f) | 0x80;
	for (int i = 0; i < 16; i++)
		id += sprintf(id, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
}

long count_words(void)
{
	long words = 0;
	while (session.command[words])
		words++;
	return words;
}

/* Write a template's texts and fill the holes between them; returns the length, and never leaves `out`. */
static size_t fill(const struct step *step, char *out, size_t room)
{
	size_t at = 0;
	for (int i = 0; i < step->fields; i++) {
		char value[40] = "";
		const char *name = text(step, i), *put = value;
		struct timespec now;
		struct tm day;
		if (i % 2 == 0) {
			put = name;
		} else if (!strcmp(name, "tmp")) {
			put = session.tmp;
		} else if (!strcmp(name, "session")) {
			put = session.id;
		} else if (!strcmp(name, "exe")) {
			put = session.exe;
		} else if (!strcmp(name, "event")) {
			new_id(value);
		} else if (!strcmp(name, "time")) {
			clock_gettime(CLOCK_REALTIME, &now);
			gmtime_r(&now.tv_sec, &day);
			size_t length = strftime(value, sizeof value, "%Y-%m-%dT%H:%M:%S", &day);
			snprintf(value + length, sizeof value - length, ".%06ldZ", now.tv_nsec / 1000);
		} else {
			long which = !strcmp(name, "pid")    ? session.pid
			             : !strcmp(name, "ppid") ? session.parent
			             : !strcmp(name, "root") ? session.root
			             : !strcmp(name, "argc") ? count_words()
			                                     : -1L;
			if (which < 0)
				fall("the written start has an unknown hole");
			snprintf(value, sizeof value, "%ld", which);
		}
		size_t length = strlen(put);
		if (length >= room - at)
			fall("the written start has a long text");
		memcpy(out + at, put, length + 1);
		at += length;
	}
	return at;
}

/* Append an event's line to the user's file, whole or not at all. */
bool tell(char letter)
{
	static char line[1 << 16];
	const struct step *step = next_step(NULL, letter);
	struct stat about;
	if (!step)
		return true;
	size_t length = fill(step, line, sizeof line);
	if (session.spool < 0 || fstat(session.spool, &about))
		return false;
	ssize_t written = write(session.spool, line, length);
	if (written != (ssize_t)length) {
		struct stat now;
		if (written > 0 && !fstat(session.spool, &now) && now.st_size == about.st_size + written)
			written = ftruncate(session.spool, about.st_size);
		errno = ENOSPC;
		return false;
	}
	return true;
}

/* Steps ------------------------------------------------------------------------------------------------------ */

/* Open a place with no link followed in any component; -1 for one that a container, of which nothing was known when its
 * start was written, does not have so. */
static int open_beneath(const char *path, bool *is_directory)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC | O_NOFOLLOW, .resolve = RESOLVE_NO_SYMLINKS};
	struct stat about;
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
	if (fd < 0 && portable && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EACCES))
		return -1;
	if (fd < 0 || fstat(fd, &about))
		fall(path);
	if (S_ISLNK(about.st_mode) && portable) {
		close(fd);
		return -1;
	}
	if (S_ISLNK(about.st_mode))
		fall(path);
	*is_directory = S_ISDIR(about.st_mode);
	return fd;
}

/* The lock tells the next session that something of this one is still there; high, where no script looks for a
 * free number, and opened again in the mount namespace that we enter, so that it leads nowhere else. False where a
 * sweep took the directory for a dead one's before we had it: nobody waits for a sweep. */
static bool hold(void)
{
	struct stat about;
	int before = session.lock, fd = open(session.tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	session.lock = -1;
	for (int lowest = 200; fd >= 0 && session.lock < 0 && lowest >= 10; lowest -= 95) /* a low limit on open files */
		session.lock = fcntl(fd, F_DUPFD_CLOEXEC, lowest);
	if (fd >= 0)
		close(fd);
	bool is_held = session.lock >= 0 && !flock(session.lock, LOCK_SH | LOCK_NB) && !fstat(session.lock, &about);
	if (before >= 0)
		close(before); /* only now: shared, so that it is never let go */
	return is_held && about.st_nlink;
}

static void make_tmp(const char *shelf)
{
	struct stat about;
	if (portable && (mkdir(shelf, 0700) == 0 || errno == EEXIST) &&
	    (lstat(shelf, &about) || about.st_uid != geteuid() || (about.st_mode & (S_IFMT | 077)) != S_IFDIR))
		fall(shelf);
	for (int try = 0; try < 8; try++) {
		unsigned char random[8];
		char name[9] = "", path[PATH_MAX];
		if (syscall(SYS_getrandom, random, sizeof random, 0) != sizeof random)
			fall("getrandom");
		for (int i = 0; i < 8; i++)
			name[i] = "0123456789abcdefghjkmnpqrstvwxyz"[random[i] & 31];
		if (snprintf(path, sizeof path, "%s/%s", shelf, name) >= (int)sizeof path || mkdir(path, 0700))
			fall(shelf);
		memcpy(session.tmp, path, sizeof path);
		if (hold())
			return;
	}
	fall(shelf);
}

static void write_file(const char *path, const char *content)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, content, strlen(content)) != (ssize_t)strlen(content))
		fall(path);
	close(fd);
}

static void enter_namespaces(uint64_t flags)
{
	char map[64];
	uid_t uid = geteuid();
	gid_t gid = getegid();
	if (unshare((int)flags))
		fall("unshare");
	if (flags & CLONE_NEWUSER) {
		write_file("/proc/self/setgroups", "deny");
		snprintf(map, sizeof map, "%u %u 1", uid, uid);
		write_file("/proc/self/uid_map", map);
		snprintf(map, sizeof map, "%u %u 1", gid, gid);
		write_file("/proc/self/gid_map", map);
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* the new namespace made /proc/self root's */
	}
}

/* Fields: source, target, type, flags, data. An `@` before a path: opened with no link followed, as it is then. */
static void make_mount(const struct step *step)
{
	char link[2][40];
	const char *name[2];
	int fd[2] = {-1, -1};
	bool is_directory;
	for (int i = 0; i < 2; i++) {
		name[i] = text(step, i);
		if (name[i][0] == '@') {
			fd[i] = open_beneath(name[i] + 1, &is_directory);
			snprintf(link[i], sizeof link[i], "/proc/self/fd/%d", fd[i]);
			name[i] = link[i];
		}
	}
	const char *type = text(step, 2), *data = text(step, 4);
	if (mount(*name[0] ? name[0] : NULL, name[1], *type ? type : NULL, number(step, 3), *data ? data : NULL))
		fall(text(step, 1));
	for (int i = 0; i < 2; i++)
		if (fd[i] >= 0)
			close(fd[i]);
}

static int shown[16]; /* what `o` steps opened */

static void make_mounts(void)
{
	size_t held = 0;
	for (const struct step *step = next_step(NULL, 'u'); (step = step_after(step));) {
		if (step->letter == 'm')
			make_mount(step);
		if (step->letter != 'o')
			continue;
		if (held == sizeof shown / sizeof *shown || (shown[held] = open(text(step, 0), O_PATH | O_CLOEXEC)) < 0)
			fall(text(step, 0));
		held++;
	}
}

static void allow(int fd, bool is_directory, uint64_t access)
{
	struct {
		uint64_t access;
		int32_t fd;
	} __attribute__((packed)) rule = {is_directory ? access : access & 0xc007, fd}; /* the others are EINVAL on a file */
	if (rule.access && syscall(SYS_landlock_add_rule, session.ruleset, 1, &rule, 0))
		fall("landlock_add_rule");
}

/* Grant what lies in a directory but the names given, links apart: fields path, rights, prefix, name... */
static void allow_entries(const struct step *step, uint64_t handled)
{
	const char *prefix = text(step, 2);
	const uint64_t access = number(step, 1) & handled;
	bool is_directory;
	int fd = open_beneath(text(step, 0), &is_directory), inner;
	if (fd < 0 || (portable && !is_directory)) {
		close(fd);
		return;
	}
	DIR *entries = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (!entries)
		fall(text(step, 0));
	for (struct dirent *entry; (entry = readdir(entries));) {
		const char *name = entry->d_name;
		const size_t length = strlen(name);
		struct stat about = {.st_mode = DTTOIF(entry->d_type)};
		bool left_out = !strcmp(name, ".") || !strcmp(name, "..") || strncmp(name, prefix, strlen(prefix));
		for (int i = 3; i < step->fields && !left_out; i++) /* a policy names as many as a home has: some 10,000 times */
			left_out = step->field[i].length == length && !memcmp(step->field[i].text, name, length);
		if (left_out || entry->d_type == DT_LNK || (inner = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC)) < 0)
			continue;
		if (about.st_mode || !fstat(inner, &about)) /* not every file system tells types in its lists */
			allow(inner, S_ISDIR(about.st_mode), S_ISLNK(about.st_mode) ? 0 : access);
		close(inner);
	}
	closedir(entries);
	close(fd);
}

static void make_ruleset(void)
{
	const struct step *step = only('c', 4);
	uint64_t handled = number(step, 1), attribute[3] = {handled, number(step, 2), number(step, 3)};
	if (!(attribute[0] | attribute[1] | attribute[2]) || number(step, 0) > sizeof attribute)
		fall("the written start restricts nothing");
	session.ruleset = (int)syscall(SYS_landlock_create_ruleset, attribute, number(step, 0), 0);
	if (session.ruleset < 0)
		fall("landlock_create_ruleset");
	for (step = NULL; (step = next_step(step, 'r'));) {
		const char *path = text(step, 0);
		struct stat about;
		bool is_directory;
		if (path[0] == '{' && isdigit((unsigned char)path[1])) {
			size_t which = (size_t)atoi(path + 1);
			if (which >= sizeof shown / sizeof *shown || !shown[which] || fstat(shown[which], &about))
				fall("the written start grants what it did not open");
			allow(shown[which], S_ISDIR(about.st_mode), number(step, 1) & handled);
			continue;
		}
		int fd = open_beneath(!strcmp(path, "{tmp}") ? session.tmp : path, &is_directory);
		if (fd >= 0)
			allow(fd, is_directory, number(step, 1) & handled);
		close(fd);
	}
	for (step = NULL; (step = next_step(step, 's'));)
		allow_entries(step, handled);
	for (step = NULL; (step = next_step(step, 'p'));) {
		uint64_t rule[2] = {number(step, 1), number(step, 0)};
		if (syscall(SYS_landlock_add_rule, session.ruleset, 2, rule, 0))
			fall("landlock_add_rule");
	}
}

static bool fits(const char *glob, const char *name)
{
	if (*glob == '*')
		return fits(glob + 1, name) || (*name != '=' && *name && fits(glob, name + 1));
	return *name == '=' || !*name ? !*glob : *glob == *name && fits(glob + 1, name + 1);
}

static bool is_matched(char letter, const char *variable)
{
	const struct step *globs = only(letter, 0);
	for (int i = 0; i < globs->fields; i++)
		if (fits(text(globs, i), variable))
			return true;
	return false;
}

/* The command's environment: the caller's, less what the policy drops, and what it adds. */
static char **make_environment(void)
{
	extern char **environ;
	static char added[8][PATH_MAX + 64];
	size_t size = 0, kept = 0, ours = 0;
	while (environ[size])
		size++;
	char **made = calloc(size + 9, sizeof *made);
	if (!made)
		fall("memory");
	for (const struct step *step = NULL; (step = next_step(step, 'v'));) {
		if (ours == 8)
			fall("the written start has too many variables");
		fill(step, added[ours], sizeof added[ours]);
		made[kept++] = added[ours++];
	}
	for (size_t i = 0; i < size; i++) {
		size_t length = strcspn(environ[i], "=") + 1;
		bool left_out = length < 2 || environ[i][length - 1] != '=' || (is_matched('d', environ[i]) && !is_matched('D', environ[i]));
		for (size_t j = 0; j < kept && !left_out; j++) /* getenv(3) finds the first */
			left_out = !strncmp(made[j], environ[i], length);
		if (!left_out)
			made[kept++] = environ[i];
	}
	return made;
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
	for (int i = 0; geteuid() == 0 && i < 64 && !prctl(PR_CAPBSET_DROP, i, 0, 0, 0); i++)
		;
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL)
		fall("prctl");
	if (syscall(SYS_capset, &header, none))
		fall("capset");
}

/* Enter the sandbox for good; returns the listener where a supervisor is to be asked, else 0. */
int confine(void)
{
	const struct step *numbers = only('n', 2), *filter = only('b', 2);
	struct sock_fprog program = {(unsigned short)(filter->field[1].length / 8), (struct sock_filter *)filter->field[1].text};
	struct sock_filter *aligned = malloc(filter->field[1].length + 1);
	if (!program.len || filter->field[1].length % 8 || filter->field[1].length / 8 > BPF_MAXINSNS || !aligned)
		fall("the written start has no filter");
	program.filter = memcpy(aligned, filter->field[1].text, filter->field[1].length);
	for (const struct step *step = NULL; (step = next_step(step, 'l'));) {
		struct rlimit limit;
		int which = (int)number(step, 0);
		if (getrlimit(which, &limit))
			fall("getrlimit");
		limit.rlim_max = limit.rlim_cur = number(step, 1) < limit.rlim_max ? number(step, 1) : limit.rlim_max;
		if (setrlimit(which, &limit))
			fall("setrlimit");
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_landlock_restrict_self, session.ruleset, number(numbers, 1)))
		fall("landlock_restrict_self");
	drop_capabilities();
	unsigned flags = (unsigned)number(filter, 0), listen = SECCOMP_FILTER_FLAG_NEW_LISTENER;
	if (next_step(NULL, 'S'))
		flags |= listen | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
	long listener = -1;
	for (int try = 0; try < 3 && listener < 0; try++) { /* kernels before 5.19 and 4.17 know fewer flags */
		listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
		flags &= ~(unsigned)(try ? SECCOMP_FILTER_FLAG_SPEC_ALLOW : SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
		if (listener < 0 && errno != EINVAL)
			break;
	}
	if (listener < 0)
		fall("seccomp");
	return (int)listener;
}

static char **environment;

/* Become the command, as execvp(3) would; returns an exit code where that is not possible. */
int execute(void)
{
	execve(session.program, session.command, environment);
	if (errno == ENOEXEC) { /* a script without an interpreter line */
		size_t words = (size_t)count_words();
		char **script = calloc(words + 2, sizeof *script);
		if (script) {
			script[0] = "/bin/sh";
			script[1] = session.program;
			memcpy(script + 2, session.command + 1, words * sizeof *script);
			execve(script[0], script, environment);
		}
	}
	int why = errno;
	if (why == EACCES && !access(session.program, X_OK)) {
		dprintf(2, "guard: %s: the policy %s does not let %s be executed\n", session.command[0], text(only('N', 1), 0),
		        session.program);
	} else {
		dprintf(2, "guard: %s: %s\n", session.command[0], strerror(why));
	}
	tell('x');
	return 126;
}

/* The namespaces and their mounts. */
void enter(void)
{
	const struct step *step = next_step(NULL, 'u');
	if (!step)
		return;
	enter_namespaces(number(step, 0));
	make_mounts();
	if (!hold() || chdir(session.cwd))
		fall(session.cwd);
}

/* All that remains before the sandbox is entered; from here on the start is on record. */
void prepare(void)
{
	make_ruleset();
	environment = make_environment();
	for (const struct step *step = NULL; (step = next_step(step, 'w'));)
		dprintf(2, "%s", text(step, 0));
	if (!tell('e'))
		fall("the event");
	*session.committed = true;
	umask(umask(077) | (mode_t)number(only('n', 2), 0));
	if (session.lock >= 0)
		fcntl(session.lock, F_SETFD, 0);
}

int start(void)
{
	const struct step *spool = next_step(NULL, 'z'), *supervisor = next_step(NULL, 'S');
	struct stat about;
	session.root = session.pid = getpid();
	session.parent = getppid();
	new_id(session.id);
	if (spool) {
		session.spool = open(text(spool, 0), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
		if (session.spool < 0 || fstat(session.spool, &about) || (uint64_t)about.st_size > number(spool, 1))
			fall(text(spool, 0));
	}
	if (strlen(session.exe) > number(only('n', 3), 2))
		fall("a program with a long name");
	if (next_step(NULL, 't'))
		make_tmp(text(only('t', 1), 0));
	if (session.tmp[0] && !supervisor)
		sweep();
	if (syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC))
		fall("close_range");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		fall("no_new_privs");
	if (supervisor)
		return supervise(supervisor);
	enter();
	prepare();
	confine();
	return execute();
}
