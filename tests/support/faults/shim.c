/* Counts the calls that change files below a folder, and lets one of them fail, or be the last that the process makes.
 *
 * Loaded before libc (LD_PRELOAD), so that it sees the writes of Python, torch, safetensors, pyarrow and SQLite alike.
 * foretoken_fault(root, at, mode, log) arms it; the environment variable FORETOKEN_FAULT ("root|at|mode|log") does so for
 * processes that are started. Every call is a line in the log, if there is one.
 *
 * kill-before, kill-after: the process group is killed before or after call number `at`
 * short: half of what call `at` writes is written, then the process group is killed
 * int, term: the process gets the signal before call `at`
 * full, readonly: call `at` and all later ones fail with ENOSPC or EROFS (writes only; what makes room works on)
 * eio: call `at` alone fails with EIO
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static char mode[32];
static long at = -1;
static int log_file = -1;
static atomic_long counted;
static atomic_int armed;
enum { GO_ON, REFUSE, SHORT, KILL_AFTER };

void foretoken_fault(const char *where, long number, const char *how, const char *log) {
  strncpy(root, where, sizeof root - 1);
  root_length = strlen(root);
  strncpy(mode, how, sizeof mode - 1);
  at = number;
  if (log && *log) log_file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  atomic_store(&counted, 0);
  atomic_store(&armed, 1);
}

__attribute__((constructor)) static void from_environment(void) {
  const char *given = getenv("FORETOKEN_FAULT");
  char copy[2 * PATH_MAX], *rest = copy;
  if (!given || strlen(given) >= sizeof copy) return;
  strcpy(copy, given);
  char *where = strsep(&rest, "|"), *number = strsep(&rest, "|"), *how = strsep(&rest, "|");
  if (where && number && how) foretoken_fault(where, atol(number), how, rest);
}

static int below(const char *path) {
  return root_length && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int full_path(int folder, const char *path, char *found) {
  char link[64], place[PATH_MAX];
  if (path[0] == '/') return snprintf(found, PATH_MAX, "%s", path) > 0;
  if (folder == AT_FDCWD) {
    if (!getcwd(place, sizeof place)) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, place, sizeof place - 1);
    if (length < 0) return 0;
    place[length] = 0;
  }
  return snprintf(found, PATH_MAX, "%s/%s", place, path) < PATH_MAX;
}

static int stop(int with) {
  if (!strcmp(mode, "int")) kill(getpid(), SIGINT);
  else if (!strcmp(mode, "term")) kill(getpid(), SIGTERM);
  else if (!strncmp(mode, "kill-before", 11)) { kill(0, SIGKILL); for (;;) pause(); }
  else if (!strcmp(mode, "kill-after")) return KILL_AFTER;
  else if (!strcmp(mode, "short")) return with ? SHORT : KILL_AFTER;
  return GO_ON;
}

/* Count a call; say what is to become of it. `writes`: it needs room on the disk. */
static int count(const char *name, const char *path, int writes, int data) {
  if (!atomic_load(&armed) || !below(path)) return GO_ON;
  long number = atomic_fetch_add(&counted, 1);
  if (log_file >= 0) {
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, name, path);
    syscall(SYS_write, log_file, line, (size_t)length);
  }
  if (number >= at && at >= 0 && writes) {
    if (!strcmp(mode, "full")) { errno = ENOSPC; return REFUSE; }
    if (!strcmp(mode, "readonly")) { errno = EROFS; return REFUSE; }
  }
  if (number == at && !strcmp(mode, "eio")) { errno = EIO; return REFUSE; }
  return number == at ? stop(data) : GO_ON;
}

static int count_file(const char *name, int file, int writes, int data) {
  char link[64], path[PATH_MAX];
  int saved = errno;
  if (!atomic_load(&armed)) return GO_ON;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  errno = saved;
  if (length < 0) return GO_ON;
  path[length] = 0;
  return count(name, path, writes, data);
}

static int count_path(const char *name, int folder, const char *path, int writes) {
  char found[PATH_MAX];
  int saved = errno;
  if (!atomic_load(&armed) || !full_path(folder, path, found)) return GO_ON;
  errno = saved;
  return count(name, found, writes, 0);
}

static void end(int what) {
  if (what == KILL_AFTER || what == SHORT) { kill(0, SIGKILL); for (;;) pause(); }
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define CALL(type, what, call) \
  do { \
    int todo = (what); \
    if (todo == REFUSE) return -1; \
    type result = (call); \
    end(todo); \
    return result; \
  } while (0)

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(int, name, const char *, int, ...); \
    va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, mode_t); va_end(rest); \
    if (!(flags & (O_CREAT | O_TRUNC))) return real(path, flags, bits); \
    CALL(int, count_path("open", AT_FDCWD, path, 1), real(path, flags, bits)); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    REAL(int, name, int, const char *, int, ...); \
    va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, mode_t); va_end(rest); \
    if (!(flags & (O_CREAT | O_TRUNC))) return real(folder, path, flags, bits); \
    CALL(int, count_path("open", folder, path, 1), real(folder, path, flags, bits)); \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *data, size_t size) {
  REAL(ssize_t, write, int, const void *, size_t);
  int todo = count_file("write", file, 1, 1);
  if (todo == REFUSE) return -1;
  ssize_t result = real(file, data, todo == SHORT ? size / 2 : size);
  end(todo);
  return result;
}

#define PWRITE(name, offset_type) \
  ssize_t name(int file, const void *data, size_t size, offset_type offset) { \
    REAL(ssize_t, name, int, const void *, size_t, offset_type); \
    int todo = count_file("write", file, 1, 1); \
    if (todo == REFUSE) return -1; \
    ssize_t result = real(file, data, todo == SHORT ? size / 2 : size, offset); \
    end(todo); \
    return result; \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int number) {
  REAL(ssize_t, writev, int, const struct iovec *, int);
  int todo = count_file("write", file, 1, 1);
  if (todo == REFUSE) return -1;
  ssize_t result = real(file, parts, todo == SHORT ? 1 : number);
  end(todo);
  return result;
}

ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
  REAL(ssize_t, sendfile, int, int, off_t *, size_t);
  CALL(ssize_t, count_file("write", out, 1, 0), real(out, in, offset, size));
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
  REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
  CALL(ssize_t, count_file("write", out, 1, 0), real(in, from, out, to, size, flags));
}

int fsync(int file) { REAL(int, fsync, int); CALL(int, count_file("fsync", file, 1, 0), real(file)); }
int fdatasync(int file) { REAL(int, fdatasync, int); CALL(int, count_file("fsync", file, 1, 0), real(file)); }
int ftruncate(int file, off_t size) {
  REAL(int, ftruncate, int, off_t);
  CALL(int, count_file("truncate", file, 1, 0), real(file, size));
}
int ftruncate64(int file, off64_t size) {
  REAL(int, ftruncate64, int, off64_t);
  CALL(int, count_file("truncate", file, 1, 0), real(file, size));
}
int rename(const char *old, const char *new) {
  REAL(int, rename, const char *, const char *);
  CALL(int, count_path("rename", AT_FDCWD, new, 0), real(old, new));
}
int renameat(int from, const char *old, int to, const char *new) {
  REAL(int, renameat, int, const char *, int, const char *);
  CALL(int, count_path("rename", to, new, 0), real(from, old, to, new));
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
  REAL(int, renameat2, int, const char *, int, const char *, unsigned);
  CALL(int, count_path("rename", to, new, 0), real(from, old, to, new, flags));
}
int unlink(const char *path) {
  REAL(int, unlink, const char *);
  CALL(int, count_path("unlink", AT_FDCWD, path, 0), real(path));
}
int unlinkat(int folder, const char *path, int flags) {
  REAL(int, unlinkat, int, const char *, int);
  CALL(int, count_path("unlink", folder, path, 0), real(folder, path, flags));
}
int rmdir(const char *path) {
  REAL(int, rmdir, const char *);
  CALL(int, count_path("rmdir", AT_FDCWD, path, 0), real(path));
}
int mkdir(const char *path, mode_t bits) {
  REAL(int, mkdir, const char *, mode_t);
  CALL(int, count_path("mkdir", AT_FDCWD, path, 1), real(path, bits));
}
int mkdirat(int folder, const char *path, mode_t bits) {
  REAL(int, mkdirat, int, const char *, mode_t);
  CALL(int, count_path("mkdir", folder, path, 1), real(folder, path, bits));
}
