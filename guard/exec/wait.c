/* What stands beside a session: the supervisor S (Python, guard/confine/beside.py) as parent of the command A, and W,
 * which the shell knows and which ends as the command does. Who does what, and why, is in guard/confine/supervise.py.
 * And the sweep: what dead sessions left is removed by a process of its own. */
#include "guard-exec.h"

static sigset_t every, former;
static bool ignored; /* SIGCHLD, by who started us */
static const char no_process[] = "no process for the supervisor (is a limit on processes reached?)";

/* The command: confined while the interpreter of S starts, and executed once S says that it listens. */
static _Noreturn void become(int channel)
{
	char numbers[32];
	prepare();
	session.pid = getpid();
	session.parent = getppid();
	int listener = confine();
	/* S takes both (pidfd_getfd): sendmsg, which could hand them over, would wait for S's own answer. */
	if (send(channel, numbers, (size_t)snprintf(numbers, sizeof numbers, "%d %d", listener, session.ruleset), 0) < 1)
		_exit(125);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (recv(channel, numbers, 1, 0) != 1)
		_exit(125);
	close(listener); /* a copy kept here would make a call hang for ever once S is gone */
	close(channel);
	if (ignored)
		signal(SIGCHLD, SIG_IGN);
	sigprocmask(SIG_SETMASK, &former, NULL);
	_exit(execute());
}

/* Give a process another's place: nothing of the command's own stays open here. */
static void let_go(int standard)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int fd = 0; fd < standard; fd++)
		dup2(null, fd);
	close(null);
}

/* In the mask's user namespace S may read who made himself undumpable (supervise.py, `serve`): over its own exec too. */
static void keep_ptrace(void)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	const unsigned bit = 1u << CAP_SYS_PTRACE;
	struct __user_cap_data_struct sets[2] = {{bit, bit, bit}, {0, 0, 0}};
	if (geteuid() != 0 && !syscall(SYS_capset, &header, sets)) /* else there was none to keep */
		prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_PTRACE, 0, 0);
}

static _Noreturn void keep(const struct step *supervisor, int waiter)
{
	int channel[2], at = 0;
	static char numbers[9][24];
	static char *argv[64], *nothing[] = {NULL};
	enter();
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel))
		fall("socketpair");
	pid_t command = fork();
	if (command < 0)
		fall(no_process);
	if (command == 0) {
		close(waiter);
		close(channel[0]);
		become(channel[1]);
	}
	close(channel[1]);
	setpgid(0, 0);
	umask(umask(077) | (mode_t)number(only('n', 2), 0));
	const int kept[] = {session.start, waiter, channel[0], session.lock}, errors = dup(2);
	for (int i = 0; i < 4; i++)
		fcntl(kept[i], F_SETFD, 0);
	for (; at < supervisor->fields && at < 50; at++)
		argv[at] = (char *)text(supervisor, at);
	const struct step *blob = only('V', 1);
	const long told[] = {session.start, (long)offset_of(&blob->field[0]), blob->field[0].length, waiter, channel[0],
	                     errors, command, session.root, count_words()};
	for (int i = 0; i < 9; i++) {
		snprintf(numbers[i], sizeof numbers[i], "%ld", told[i]);
		argv[at++] = numbers[i];
	}
	argv[at++] = session.id;
	argv[at++] = session.tmp;
	argv[at++] = (char *)session.exe;
	let_go(2);
	keep_ptrace();
	if (chdir("/") == 0) /* or no file system that the command left could be unmounted */
		execve(argv[0], argv, nothing);
	dprintf(2, "guard: not started: the supervisor: %s: %s\n", argv[0], strerror(errno));
	_exit(125); /* A sees its channel end, and does not start */
}

static bool is_stopped(pid_t pid)
{
	char path[40], line[256] = "";
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
	if (fd >= 0)
		close(fd);
	const char *name_end = length < 0 ? NULL : strrchr(line, ')');
	return name_end && name_end[1] && name_end[2] == 'T';
}

/* The supervisor is gone: what it leaves is left to us, and then theirs. */
static void end_children(void)
{
	char path[64], pids[4096];
	snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
	do {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t length = fd < 0 ? 0 : read(fd, pids, sizeof pids - 1);
		close(fd);
		pids[length < 0 ? 0 : length] = 0;
		for (char *next = pids, *end; strtol(next, &end, 10) > 0 && *end == ' '; next = end)
			kill((pid_t)strtol(next, NULL, 10), SIGKILL); /* one cut short has no blank after it */
	} while (waitpid(-1, NULL, 0) > 0);
}

static int end_all(void)
{
	static const char lost[] = "guard: the supervisor is gone: this session could start nothing more and was ended\n";
	if (write(2, lost, sizeof lost - 1) < 0)
		errno = 0; /* whether or not anybody reads it */
	end_children();
	return 125;
}

static int end_as(int status)
{
	if (!WIFSIGNALED(status))
		return WEXITSTATUS(status);
	struct rlimit none = {0, 0};
	sigset_t one;
	int number = WTERMSIG(status);
	getrlimit(RLIMIT_CORE, &none);
	none.rlim_cur = 0;
	setrlimit(RLIMIT_CORE, &none);
	signal(number, SIG_DFL);
	sigemptyset(&one);
	sigaddset(&one, number);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	kill(getpid(), number);
	return 128 + number;
}

/* The word that S has said, its number, and the descriptor that came with it; false where that was all. */
static bool hear(int channel, char *word, int *value, int *handle)
{
	char room[CMSG_SPACE(sizeof(int))] = {0}, said[64];
	struct iovec part = {said, sizeof said - 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	ssize_t length = recvmsg(channel, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (length <= 0)
		return false;
	said[length] = 0;
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	if (rights && rights->cmsg_type == SCM_RIGHTS)
		memcpy(handle, CMSG_DATA(rights), sizeof *handle);
	return sscanf(said, "%15s %d", word, value) == 2;
}

/* The command starts, and nothing of its own stays open here. */
static void let_all_go(int channel, int handle)
{
	const int ours[] = {channel, handle, session.lock};
	let_go(2); /* stderr is for the one thing we may have to say */
	for (unsigned first = 3, next = 0; next != ~0U; first = next + 1) {
		next = ~0U;
		for (int i = 0; i < 3; i++)
			if (ours[i] >= (int)first && (unsigned)ours[i] < next)
				next = (unsigned)ours[i];
		if (next > first)
			syscall(SYS_close_range, first, next - 1, 0);
	}
}

/* Wait for the command's end; -1 where there was no start, and none is on record. */
static int wait_for(pid_t keeper, int channel)
{
	const struct timespec settled = {0, 100000000}; /* in which S has long told a stop of the command's */
	bool held[65] = {false}, to_resume = false;
	pid_t command = 0;
	int handle = -1;
	for (;;) {
		siginfo_t told;
		int signal_number = to_resume ? sigtimedwait(&every, &told, &settled) : sigwaitinfo(&every, &told);
		if (signal_number < 0) {
			if (to_resume && errno == EAGAIN) {
				to_resume = false;
				if (is_stopped(command))
					syscall(SYS_pidfd_send_signal, handle, SIGCONT, NULL, 0);
			}
			continue;
		}
		/* Sent by the kernel these come from the terminal, and the command gets its own; by a process, for us. */
		static const int typed[] = {SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGHUP, SIGWINCH};
		bool from_terminal = told.si_code != SI_USER && told.si_code != SI_QUEUE && told.si_code != SI_TKILL;
		bool is_typed = false;
		for (size_t i = 0; i < sizeof typed / sizeof *typed; i++)
			is_typed |= typed[i] == signal_number;
		if (signal_number == SIGCHLD) {
			char word[16];
			int value, status = 0;
			pid_t gone = waitpid(keeper, &status, WNOHANG);
			while (hear(channel, word, &value, &handle)) {
				if (!strcmp(word, "ended"))
					return end_as(value);
				if (!strcmp(word, "stopped")) {
					to_resume = false;
				} else {
					command = value;
					let_all_go(channel, handle);
				}
			}
			if (gone == keeper && !command) {
				end_children(); /* only then is it certain what is on record */
				for (int number = 1; !*session.committed && number < 65; number++)
					if (held[number])
						kill(getpid(), number); /* for the launcher */
				if (!*session.committed)
					return -1;
				if (WIFEXITED(status) && WEXITSTATUS(status))
					return WEXITSTATUS(status); /* it has said why */
			}
			if (gone)
				return end_all();
		} else if (told.si_pid == keeper) {
			to_resume = false; /* SIGCONT: the command goes on */
		} else if (signal_number == SIGCONT) {
			/* One for the whole group (`fg`) has reached the command too, and it may have stopped again since, of
			 * which we shall be told. One for us alone leaves it stopped, and nothing is told. */
			to_resume = command && is_stopped(command);
		} else if (!(is_typed && from_terminal)) {
			held[signal_number] = true;
		}
		for (int number = 1; command && number < 65; number++) {
			if (held[number])
				syscall(SYS_pidfd_send_signal, handle, number, NULL, 0);
			held[number] = false;
		}
	}
}

/* Start the command with a supervisor beside it, and end as it ends. S starts its interpreter as soon as there is a mask
 * for it to be in; the command's process makes the rest ready meanwhile. */
int supervise(const struct step *supervisor)
{
	struct sigaction plain = {.sa_handler = SIG_DFL}, before;
	int channel[2];
	void *shared = mmap(NULL, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fall("mmap");
	session.committed = shared;
	sigaction(SIGCHLD, &plain, &before); /* ignored, it would take the ends of children away */
	ignored = before.sa_handler == SIG_IGN;
	sigfillset(&every);
	sigprocmask(SIG_BLOCK, &every, &former);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel))
		fall("socketpair");
	pid_t keeper = fork();
	if (keeper < 0)
		fall(no_process);
	if (keeper == 0) {
		session.is_beside = true;
		close(channel[0]);
		keep(supervisor, channel[1]);
	}
	close(channel[1]);
	sweep(); /* we stay outside of the mask, and have time */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* long before S lets anything start; a sweep is nobody's child */
	int code = wait_for(keeper, channel[0]);
	if (code >= 0)
		return code;
	prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
	sigaction(SIGCHLD, &before, NULL);
	sigprocmask(SIG_SETMASK, &former, NULL);
	fall("no supervisor could be made ready");
}

/* The sweep -------------------------------------------------------------------------------------------------- */

static void remove_all(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);
	for (struct dirent *entry; entries && (entry = readdir(entries));)
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && unlinkat(fd, entry->d_name, 0))
			remove_all(fd, entry->d_name);
	if (entries)
		closedir(entries);
	unlinkat(parent, name, AT_REMOVEDIR);
}

/* A directory of the shelf, opened, whose lock was free; -1 for any other. */
static int take_free(const char *shelf, const char *name, char *path)
{
	if (name[0] == '.' || snprintf(path, PATH_MAX, "%s/%s", shelf, name) >= PATH_MAX || !strcmp(path, session.tmp))
		return -1;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static struct {
	char path[PATH_MAX];
	bool is_named;
} dead[64]; /* the next start sweeps the rest */

/* Find those that a process of ours names in its environment: it may have closed the lock. */
static bool find_named(int count)
{
	static char block[1 << 21];
	DIR *processes = opendir("/proc");
	for (struct dirent *entry; processes && (entry = readdir(processes));) {
		char path[300];
		struct stat about;
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || fstatat(dirfd(processes), entry->d_name, &about, 0) ||
		    about.st_uid != geteuid())
			continue; /* of others nothing could be read, and the refusal costs thrice as much */
		snprintf(path, sizeof path, "%s/environ", entry->d_name);
		int fd = openat(dirfd(processes), path, O_RDONLY | O_CLOEXEC);
		ssize_t size = 0, more;
		while (fd >= 0 && size < (ssize_t)sizeof block && (more = read(fd, block + size, sizeof block - (size_t)size)) > 0)
			size += more;
		if (fd >= 0)
			close(fd);
		for (int i = 0; size && i < count; i++)
			dead[i].is_named |= memmem(block, (size_t)size, dead[i].path, strlen(dead[i].path)) != NULL;
	}
	return processes != NULL;
}

/* A sweep looks at every process of the host and costs as much as a start: worth it for eight directories, or for one
 * that was last written to a minute ago. */
static bool is_worth_it(const char *shelf)
{
	const int enough = 8;
	const time_t now = time(NULL);
	char path[PATH_MAX];
	int count = 0;
	DIR *sessions = opendir(shelf);
	for (struct dirent *entry; count < enough && sessions && (entry = readdir(sessions));) {
		struct stat about;
		int fd = take_free(shelf, entry->d_name, path);
		if (fd >= 0) {
			bool is_new = !fstat(fd, &about) && about.st_mtime > now - 60 && about.st_mtime <= now;
			count += is_new ? 1 : enough;
			close(fd);
		}
	}
	if (sessions)
		closedir(sessions);
	return count >= enough;
}

/* Remove the directories of sessions of which nothing is left: their lock is free, and nobody names them. Done by a
 * process that nobody waits for and that holds nothing, outside of the mask's user namespace: in there the environments
 * of those outside cannot be read. */
void sweep(void)
{
	const char *shelf = text(only('t', 1), 0);
	int count = 0;
	if (!is_worth_it(shelf))
		return;
	pid_t child = fork();
	if (child) { /* where there can be none, the next start sweeps */
		if (child > 0)
			waitpid(child, NULL, 0);
		return;
	}
	if (fork())
		_exit(0);
	setsid();
	let_go(3);
	setpriority(PRIO_PROCESS, 0, 19);
	syscall(SYS_close_range, 3, ~0U, 0);
	DIR *sessions = opendir(shelf);
	for (struct dirent *entry; count < 64 && sessions && (entry = readdir(sessions));)
		if (take_free(shelf, entry->d_name, dead[count].path) >= 0) /* held until we end */
			count++;
	if (!find_named(count))
		_exit(0);
	for (int i = 0; i < count; i++)
		if (!dead[i].is_named)
			remove_all(AT_FDCWD, dead[i].path);
	_exit(0);
}
