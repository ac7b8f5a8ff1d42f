/* What goes through the rings. guard/monitor/wire.py reads it with struct formats: change both. Every number is
 * fixed-width and naturally aligned; strings end at their first NUL, whatever stands behind it is not read. */
#pragma once

enum kind {
    K_EXEC = 1,
    K_FORK,
    K_EXIT,
    K_MODE,
    K_BIND,
    K_LISTEN,
    K_CONNECT,
    K_RECEIVED,
    K_TAINT,
    K_TAINT_READ,
    K_CODE,
    K_WROTE_RAN,
    K_RAW,
    K_IO_URING,
    K_WALK,
    K_HOLD, /* of a process outside: ptrace and its like */
    K_LAST,
};
enum counter { /* indexes of `counters`; the kinds come first */
    C_LOST_ALERTS = 24,
    C_LOST_TELEMETRY,
    C_LOST_TREES,
    C_LOST_ARGV,
    C_LOST_SCRATCH,
    C_EXECS,
    C_SCHEDULER,
    C_MARKS,    /* made; beyond the room of the map the oldest were pushed out */
    C_LABELLED, /* labels made less labels dropped: wraps, summed over CPUs it is right */
    C_LAST = 40,
};
enum program { /* facts.Program */
    P_SHELL = 1,
    P_PYTHON = 2,
    P_INTERPRETER = 4,
    P_HARNESS = 8,
    P_TRUSTED = 16,
    P_LAUNCHER = 32,
    P_HINT = 64,
    P_SCHEDULER = 128,
    P_COPIED = 256,
    P_RESOLVER = 512,
    P_CODE = P_SHELL | P_PYTHON | P_INTERPRETER,
};
enum code_by { BY_NONE, BY_STDIN, BY_ARGUMENT, BY_FILE, BY_DESCRIPTOR };
enum how { HOW_STDIN, HOW_DESCRIPTOR, HOW_SCRIPT, HOW_SOURCED, HOW_EXECUTED, HOW_MAPPED, HOW_NONE = 99 };
enum through { T_PIPE, T_FILE, T_SOCKET, T_MAPPING, T_TERMINAL };
enum mode_by { M_CHMOD, M_ACL, M_DEFAULT_ACL, M_OPEN, M_MKDIR, M_MKNOD, M_BIND };
enum hold { HOLD_PROCESS, HOLD_TERMINAL };
enum verdict { V_OBSERVED, V_DENIED, V_REWRITTEN };

struct head {
    u64 time, start, root_start;
    u32 kind, pid, ppid, uid, root, verdict;
    u32 harness, pad;
    char comm[16];
};
#define WORDS 256
#define PATH_ROOM 512
struct exec_record {
    struct head h;
    u64 unseen;
    u32 program, by, fed, written_by, sid, tty, argv_length, pad;
    char name[32];
    char path[WORDS];
    char argv[];
};
struct fork_record {
    struct head h;
    u64 child_start;
    u32 child, pad;
};
struct exit_record {
    struct head h;
    s32 status, pad;
};
struct mode_record {
    struct head h;
    u32 mode, type, before, by, io_uring;
    u32 unsure;      /* the caller of the ring looks at the file: the bits are from the arguments */
    u32 walked;      /* bytes used of `walk` */
    u32 cut;         /* the walk ended before the root */
    char text[WORDS];     /* as the program gave it, where it did */
    char walk[PATH_ROOM]; /* names from the inside out, each ended by NUL: the object, or what `text` is relative to */
};
struct socket_record {
    struct head h;
    u32 family, type, protocol, port, private_net, pad;
    u8 address[16];
};
struct received_record {
    struct head h;
    u32 port, sample_length;
    u8 address[16];
    u8 sample[64];
};
struct flow_record { /* taint, taint read, code, wrote-then-ran */
    struct head h;
    u32 through, how, program, by;
    s32 descriptor;
    u32 writer, sample_length, pad;
    char writer_comm[16];
    char name[64];
    u8 sample[64];
};
struct number_record { /* raw system call, io_uring, walk, hold */
    struct head h;
    u32 number, a, b, pad;
};
