/* `guard history line`, `tcsh` and `fish` without an interpreter: what a shell asks at its prompt (guard/history).
 *
 * The resident redactor is asked, as guard/history/line.py does. Where it does not answer, and where anything else does
 * not go as it should, this returns, and the launcher gets the same words and the same input. */
#include "guard-exec.h"
#include <stddef.h>
#include <sys/time.h>
#include <sys/un.h>

#define MARK "__REDACTED__"
#define START "[REDACTED:"
#define CLEAN 10                /* the exit code that says so (guard/history/line.py) */
#define LONGEST (1 << 20)       /* of a line, in bytes */
#define MOST_HISTORY (4 << 20)  /* of tcsh's history */
#define WAIT 250000             /* microseconds that the service may take: a person waits for the prompt */

struct bytes {
	char *start;
	size_t length;
};

static bool read_all(int fd, struct bytes *all, size_t most)
{
	all->start = malloc(most + 1);
	for (all->length = 0; all->start;) {
		ssize_t got = read(fd, all->start + all->length, most + 1 - all->length);
		if (got <= 0)
			return !got;
		if ((all->length += (size_t)got) > most)
			return false;
	}
	return false;
}

static bool write_all(int fd, struct bytes what)
{
	while (what.length) {
		ssize_t done = write(fd, what.start, what.length);
		if (done <= 0)
			return false;
		what.start += done, what.length -= (size_t)done;
	}
	return true;
}

/* Connect to the service at a path; it must be root's or our own. */
static int service(const char *path)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct timeval wait = {.tv_usec = WAIT};
	struct ucred peer;
	socklen_t size = sizeof peer;
	if (snprintf(name.sun_path, sizeof name.sun_path, "%s", path) >= (int)sizeof name.sun_path)
		return -1;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) &&
	    !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) && !connect(fd, (void *)&name, sizeof name) &&
	    !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && (!peer.uid || peer.uid == geteuid()))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static bool converse(int fd, struct bytes line, struct bytes *out)
{
	char head[64];
	unsigned long size;
	size_t got = 0;
	int used = 0;
	struct bytes request = {malloc(line.length + sizeof head), 0};
	if (!request.start)
		return false;
	char *to = request.start + sprintf(request.start, "redact text %zu\n", line.length + 1);
	to = mempcpy(to, line.start, line.length);
	*to++ = '\n'; /* a rule may want to see the line's end */
	request.length = (size_t)(to - request.start);
	if (!write_all(fd, request))
		return false;
	for (char *c = head;; c++) { /* a byte at a time: what follows the head is the text's */
		if (c == head + sizeof head - 1 || read(fd, c, 1) != 1)
			return false;
		c[1] = 0;
		if (*c == '\n')
			break;
	}
	if (sscanf(head, "ok %lu%n", &size, &used) != 1 || head[used] != '\n' || !size || size > 8 * LONGEST)
		return false;
	if (!(out->start = malloc(size)))
		return false;
	for (ssize_t more; got < size; got += (size_t)more)
		if ((more = read(fd, out->start + got, size - got)) <= 0)
			return false;
	out->length = size - (out->start[size - 1] == '\n');
	return true;
}

static bool ask(struct bytes line, struct bytes *out)
{
	char path[PATH_MAX];
	const char *given = getenv("GUARD_REDACT_SOCKET"), *state = getenv("GUARD_STATE_DIR"), *own = getenv("XDG_RUNTIME_DIR");
	int fd = -1;
	if (given && *given) {
		fd = service(given);
	} else if (state && *state) {
		snprintf(path, sizeof path, "%s/redact.sock", state);
		fd = service(path);
	} else if ((fd = service("/run/guard/redact.sock")) < 0 && own && *own) {
		snprintf(path, sizeof path, "%s/guard/redact.sock", own);
		fd = service(path);
	}
	if (fd < 0)
		return false;
	bool answered = converse(fd, line, out);
	close(fd);
	return answered;
}

/* Put MARK, which no shell reads anything into, where the redactor's markers stand. */
static void mark_plainly(struct bytes *text)
{
	char *to = text->start, *end = text->start + text->length;
	for (char *from = text->start; from < end;) {
		size_t left = (size_t)(end - from), kind = 0;
		if (left > strlen(START) && !memcmp(from, START, strlen(START))) {
			const char *c = from + strlen(START);
			while (c + kind < end && kind < 60 && c[kind] && strchr("abcdefghijklmnopqrstuvwxyz0123456789:-", c[kind]))
				kind++;
			if (kind && kind < 60 && c + kind < end && c[kind] == ']') { /* so it is no shorter than MARK */
				from += strlen(START) + kind + 1;
				to = mempcpy(to, MARK, strlen(MARK));
				continue;
			}
		}
		*to++ = *from++;
	}
	text->length = (size_t)(to - text->start);
}

static bool clean(struct bytes line, struct bytes *out)
{
	if (!ask(line, out))
		return false;
	mark_plainly(out);
	return true;
}

static bool same(struct bytes a, struct bytes b)
{
	return a.length == b.length && !memcmp(a.start, b.start, a.length);
}

static void look_at_line(struct bytes line)
{
	struct bytes out;
	if (!clean(line, &out))
		return;
	if (same(out, line))
		_exit(CLEAN);
	_exit(write_all(1, out) ? 0 : 3);
}

/* tcsh ------------------------------------------------------------------------------------------------------------ */

/* The length of the line `#+SECONDS` that begins here, with its newline; 0 where none does. */
static size_t stamp_at(struct bytes all, size_t at)
{
	size_t end = at + 2;
	if ((at && all.start[at - 1] != '\n') || all.length - at < 4 || memcmp(all.start + at, "#+", 2))
		return 0;
	while (end < all.length && isdigit((unsigned char)all.start[end]))
		end++;
	return end > at + 2 && end < all.length && all.start[end] == '\n' ? end + 1 - at : 0;
}

/* Append to the history file, unless it ends in this already. */
static void append(const char *file, struct bytes what)
{
	int fd = open(file, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	char *there = malloc(what.length);
	struct stat about;
	if (fd < 0 || !there || fstat(fd, &about))
		return;
	ssize_t got = about.st_size < (off_t)what.length ? 0 : pread(fd, there, what.length, about.st_size - (off_t)what.length);
	if (!same((struct bytes){there, got < 0 ? 0 : (size_t)got}, what))
		write_all(fd, what);
	close(fd);
}

/* Clean the newest line of a history, append it to the file, and, where it had secrets, leave the whole history in a
 * file that tcsh reads back. */
static void look_at_history(struct bytes all, const char *file)
{
	char path[] = "/tmp/guard-history.XXXXXXXX";
	struct bytes line, new, last;
	size_t at = all.length, stamp = 0;
	while (at && !(stamp = stamp_at(all, --at)))
		;
	if (!stamp || at + stamp == all.length || all.start[all.length - 1] != '\n')
		return;
	line = (struct bytes){all.start + at + stamp, all.length - at - stamp - 1};
	if (!clean(line, &new))
		return;
	while (new.length && new.start[new.length - 1] == '\n')
		new.length--;
	last.length = stamp + new.length + 1;
	if (!(last.start = malloc(last.length)))
		return;
	*(char *)mempcpy(mempcpy(last.start, all.start + at, stamp), new.start, new.length) = '\n';
	if (*file)
		append(file, last); /* a full disk, a closed home: memory is cleaned all the same */
	if (same(new, line))
		_exit(write_all(1, (struct bytes){"1\n", 2}) ? 0 : 4);
	int fd = mkstemp(path);
	FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out)
		return;
	for (size_t i = 0; i < at;) {
		if (!(stamp = stamp_at(all, i))) {
			putc(all.start[i++], out);
			continue;
		}
		fwrite(all.start + i, 1, stamp, out);
		i += stamp;
		if (i < at && all.start[i] == '#' && !stamp_at(all, i)) /* `history -L` would take it for a comment, and drop it */
			putc('\\', out);
	}
	stamp = stamp_at(last, 0);
	fwrite(last.start, 1, stamp, out);
	if (last.start[stamp] == '#')
		putc('\\', out);
	fwrite(last.start + stamp, 1, last.length - stamp, out);
	if (fclose(out)) {
		unlink(path);
		return;
	}
	_exit(dprintf(1, "0 %s\n", path) > 0 ? 0 : 4);
}

/* fish 3 ----------------------------------------------------------------------------------------------------------- */

/* Append a line to fish's history as fish does (guard/history/fish.py). */
static void append_to_fish(struct bytes line, const char *session)
{
	char path[PATH_MAX];
	const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	for (const char *c = session; *c; c++)
		if (!isalnum((unsigned char)*c) && *c != '_')
			_exit(3);
	int size = data && *data ? snprintf(path, sizeof path, "%s/fish/%s_history", data, session)
	                         : snprintf(path, sizeof path, "%s/.local/share/fish/%s_history", home ? home : "", session);
	struct bytes record = {malloc(2 * line.length + 64), 0};
	if (size >= (int)sizeof path || !record.start)
		return;
	char *to = stpcpy(record.start, "- cmd: ");
	for (size_t i = 0; i < line.length; i++) {
		if (line.start[i] == '\\' || line.start[i] == '\n')
			*to++ = '\\';
		*to++ = line.start[i] == '\n' ? 'n' : line.start[i];
	}
	to += sprintf(to, "\n  when: %lld\n", (long long)time(NULL));
	record.length = (size_t)(to - record.start);
	for (int i = 0; i < 16; i++) {
		struct stat now, there;
		int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0)
			return;
		for (int busy = 0; flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; usleep(10000))
			if (++busy == 20)
				_exit(3);
		if (!stat(path, &there) && !fstat(fd, &now) && there.st_dev == now.st_dev && there.st_ino == now.st_ino)
			_exit(write_all(fd, record) ? 0 : 3);
		close(fd);
	}
	_exit(3);
}

/* Do what the words behind `guard history` ask for; returns where that is the launcher's. */
void history(char **argv)
{
	struct bytes text;
	int again = memfd_create("guard-line", MFD_CLOEXEC);
	bool line = !strcmp(argv[0], "line"), fish = !strcmp(argv[0], "fish");
	bool tcsh = !strcmp(argv[0], "tcsh") && argv[1] && argv[2] && argv[3] && strcmp(argv[2], "1"); /* a loop's lines are the launcher's */
	if (!line && !fish && !tcsh)
		return;
	signal(SIGPIPE, SIG_IGN); /* the service may be ended while we speak */
	if (again < 0 || !read_all(0, &text, tcsh ? MOST_HISTORY : LONGEST))
		_exit(tcsh ? 4 : 3);
	if (line)
		look_at_line(text);
	else if (tcsh)
		look_at_history(text, argv[3]);
	else if (argv[1])
		append_to_fish(text, argv[1]);
	signal(SIGPIPE, SIG_DFL);
	/* The launcher reads it again, and does not wait for the service again: nobody listens at this name. */
	setenv("GUARD_REDACT_SOCKET", "/dev/null", 1);
	if (!write_all(again, text) || lseek(again, 0, SEEK_SET) || dup2(again, 0))
		_exit(tcsh ? 4 : 3);
}
