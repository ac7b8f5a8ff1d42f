/* What the files of guard-exec share: the steps of a written start, and the session that they make. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SITE "/etc/guard"
#define MAGIC "guard-start 1\n"
#define MOST_BYTES (1 << 20)
#define MOST_STEPS 8192
#define MOST_FIELDS 32768
#define MOST_WORDS 4096
#define MOST_KEY 16384
#ifndef GUARD_LAUNCHER
#error "GUARD_LAUNCHER names the Python launcher, as packaging/setup.sh has it"
#endif

struct field {
	char *text;
	uint32_t length;
};

struct step {
	char letter;
	uint8_t fields;
	struct field *field;
};

struct session {
	char **command, program[PATH_MAX], cwd[PATH_MAX], tmp[PATH_MAX], id[40];
	const char *exe;
	pid_t root, pid, parent; /* the process that the shell knows; who tells of events, and its parent */
	int lock, spool, ruleset, start;
	bool *committed; /* the start is on record: the launcher must not make it again */
	bool is_beside;  /* not the process that the shell knows: that one becomes the launcher */
};

extern struct session session;
extern bool portable;

_Noreturn void fall(const char *why);
const struct step *step_after(const struct step *step);
const struct step *next_step(const struct step *after, char letter);
const struct step *only(char letter, int fields);
const char *text(const struct step *step, int i);
uint64_t number(const struct step *step, int i);

bool is_answer(const char *kind, const char *about, const struct field *answer);
int start(void);
void enter(void);
void prepare(void);
int confine(void);
void history(char **argv);
bool tell(char letter);
int execute(void);

uint64_t sum_of(const unsigned char *bytes, size_t size);
long count_words(void);
size_t offset_of(const struct field *field);
void sweep(void);
int supervise(const struct step *supervisor);
