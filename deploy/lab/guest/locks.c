/*
 * locks FILE OTHERFILE tests fcntl record locks between an NFS mount and the server.
 * locks -2 FILE OTHERFILE tests them between the NFS mounts of two clients.
 * locks -3 FILE OTHERFILE tests either in mounts of NFSv3. A process that waits is told when it has the lock.
 * locks -d FILE OTHERFILE tests either, where FILE is in a mount of NFSv3 whose client does not
 * receive the server's notices. A process that waits in that mount, even for a lock of another
 * process of the same client, may wait until the client asks again after 30 s.
 * locks -h FILE [N] holds a lock, or N of them, until standard input ends, and writes each line of it to FILE.
 * locks -w FILE [N] does the same, but waits for the locks.
 * locks -n FILE N prints how many of those N locks other processes have.
 * locks -t FILE tests whether that lock is free: the status is 0, or 3 if another process holds it.
 * locks -c UNTIL FILE... has a process for each FILE, all of them the same file, add to the number in it
 * under a lock until the file UNTIL exists. It prints the position of FILE among the arguments at each
 * addition, and in the end compares the number with the additions.
 *
 * FILE is a file in the mount, and OTHERFILE is the same file as another party sees it: the
 * server's own processes, or another client. The client's kernel resolves conflicts between
 * processes of one client, so the server takes part only in conflicts with the other party. The
 * tests have conflicts of both kinds.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int try(int fd, int cmd, short type, off_t start, off_t len)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};

	return fcntl(fd, cmd, &l) == 0 ? 0 : errno;
}

/* Returns the type of the lock that prevents an exclusive one on [start, start+len), or F_UNLCK. */
static short holder(int fd, off_t start, off_t len)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = len};

	if (fcntl(fd, F_GETLK, &l) != 0)
		err(1, "F_GETLK");
	return l.l_type;
}

static void want(const char *what, int got, int expected)
{
	if (got != expected)
		errx(1, "%s: got %d (%s), want %d (%s)", what, got, strerror(got), expected, strerror(expected));
	printf("ok: %s\n", what);
	fflush(stdout);
}

static int opened(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0666);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The times in ms at which the last holder began to unlock, and at which it was done. */
static struct { long asked, done; } *freed;

/*
 * A child process holds a lock. It writes to one pipe when it has the lock, and unlocks when the
 * other pipe closes. fcntl locks belong to a process, so each holder is a process of its own.
 */
struct child { pid_t pid; int hold; };

static struct child hold(const char *path, short type, off_t start, off_t len)
{
	int up[2], down[2];
	char c;

	if (pipe(up) || pipe(down))
		err(1, "pipe");
	struct child k = {.pid = fork(), .hold = down[1]};
	if (k.pid < 0)
		err(1, "fork");
	if (k.pid == 0) {
		close(up[0]);
		close(down[1]);
		int fd = opened(path);
		int e = try(fd, F_SETLK, type, start, len);
		if (e)
			errx(1, "holding %s: %s", path, strerror(e));
		if (write(up[1], "", 1) != 1 || read(down[0], &c, 1) != 0)
			_exit(1);
		freed->asked = now_ms();
		e = try(fd, F_SETLK, F_UNLCK, start, len);
		freed->done = now_ms();
		_exit(e ? 1 : 0);
	}
	close(up[1]);
	close(down[0]);
	if (read(up[0], &c, 1) != 1)
		errx(1, "the holder of %s ended before it had the lock", path);
	close(up[0]);
	return k;
}

static void release(struct child k)
{
	int status;

	close(k.hold);
	if (waitpid(k.pid, &status, 0) != k.pid || status != 0)
		errx(1, "holder ended with status %d", status);
}

/* The kernel unlocks the locks of a holder that exits or is killed. */
static void die_holding(const char *path, const char *other, int how)
{
	struct child k = hold(path, F_WRLCK, 3000, 8);
	int fd = opened(other), status, e, tries = 0;

	want("held by one that will die: refused", try(fd, F_SETLK, F_WRLCK, 3000, 8), EAGAIN);
	if (kill(k.pid, how) || waitpid(k.pid, &status, 0) != k.pid || !WIFSIGNALED(status) || WTERMSIG(status) != how)
		errx(1, "the holder did not die of signal %d", how);
	close(k.hold);
	/* A killed process does not wait for the server's answer to its last UNLOCK. */
	while ((e = try(fd, F_SETLK, F_WRLCK, 3000, 8)) == EAGAIN && tries++ < 500)
		usleep(20000);
	want("held by one that has died: granted", e, 0);
	close(fd); /* unlocks */
	fd = opened(path);
	want("after close: granted", try(fd, F_SETLK, F_WRLCK, 3000, 8), 0);
	close(fd);
}

/* A process has two locks: it unlocks one, and keeps the other. */
static void two_ranges(const char *path, const char *other)
{
	int m = opened(path), s = opened(other);

	want("one range: granted", try(m, F_SETLK, F_WRLCK, 4000, 10), 0);
	want("another range: granted", try(m, F_SETLK, F_WRLCK, 4020, 10), 0);
	want("between them: granted to the other", try(s, F_SETLK, F_WRLCK, 4010, 10), 0);
	want("the other unlocks", try(s, F_SETLK, F_UNLCK, 4010, 10), 0);
	want("client unlocks one range", try(m, F_SETLK, F_UNLCK, 4000, 10), 0);
	want("that range: granted to the other", try(s, F_SETLK, F_WRLCK, 4000, 10), 0);
	want("the range that stayed locked: refused", try(s, F_SETLK, F_WRLCK, 4029, 1), EAGAIN);
	close(s);
	close(m);
}

/* Waits for a lock as F_SETLKW does, but by polling: a client that misses a notice sleeps long. */
static int poll_lock(int fd)
{
	int e;

	while ((e = try(fd, F_SETLK, F_WRLCK, 0, 8)) == EAGAIN || e == EACCES)
		usleep(20000);
	return e;
}

static int wait_lock(int fd)
{
	return try(fd, F_SETLKW, F_WRLCK, 0, 8);
}

/* Two processes, one on each path, add to one number under the lock. No addition may be lost. */
static void contend(const char *const path[2], int (*lock)(int), int rounds)
{
	int fd = opened(path[0]), status;
	char text[16] = "0000000";

	if (pwrite(fd, text, 8, 0) != 8 || fsync(fd))
		err(1, "%s", path[0]);
	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();
		if (pid < 0)
			err(1, "fork");
		if (pid)
			continue;
		int own = opened(path[i]);
		for (int n = 0; n < rounds; n++) {
			int e = lock(own);
			if (e)
				errx(1, "locking: %s", strerror(e));
			if (pread(own, text, 8, 0) != 8)
				err(1, "read");
			snprintf(text, sizeof text, "%07d", atoi(text) + 1);
			if (pwrite(own, text, 8, 0) != 8)
				err(1, "write");
			e = try(own, F_SETLK, F_UNLCK, 0, 8);
			if (e)
				errx(1, "F_UNLCK: %s", strerror(e));
		}
		_exit(0);
	}
	for (int i = 0; i < 2; i++)
		if (wait(&status) < 0 || status != 0)
			errx(1, "contender ended with status %d", status);
	if (try(fd, F_SETLKW, F_RDLCK, 0, 8) || pread(fd, text, 8, 0) != 8)
		err(1, "read");
	want("additions under the lock", atoi(text), 2 * rounds);
	close(fd);
}

/*
 * Adds to the number in path under a lock until the file until exists, and counts the additions.
 * A lock that the server has lost, or has given to two, makes an addition fail or disappear.
 */
static void add_until(const char *until, const char *path, int which, long *added)
{
	int fd = opened(path), e;
	char text[32];

	for (; access(until, F_OK); usleep(200000)) {
		alarm(240); /* a lock that is never granted must be a failure, and not a hang */
		while ((e = try(fd, F_SETLK, F_WRLCK, 0, 8)) == EAGAIN || e == EACCES)
			usleep(100000);
		if (e)
			errx(1, "locking %s: %s", path, strerror(e));
		if (pread(fd, text, 8, 0) != 8)
			err(1, "reading %s", path);
		text[8] = 0;
		snprintf(text, sizeof text, "%07ld", atol(text) + 1);
		if (pwrite(fd, text, 8, 0) != 8)
			err(1, "writing %s", path);
		if ((e = try(fd, F_SETLK, F_UNLCK, 0, 8)))
			errx(1, "unlocking %s: %s", path, strerror(e));
		++*added;
		dprintf(1, "%d\n", which);
	}
	if (close(fd))
		err(1, "closing %s", path);
}

static int contend_until(const char *until, char *const path[], int n)
{
	int fd = opened(path[0]), status, bad = 0;
	char text[16] = "0000000";
	long sum = 0;
	long *added = mmap(NULL, n * sizeof *added, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (added == MAP_FAILED)
		err(1, "mmap");
	if (pwrite(fd, text, 8, 0) != 8 || fsync(fd))
		err(1, "%s", path[0]);
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();
		if (pid < 0)
			err(1, "fork");
		if (pid == 0) {
			add_until(until, path[i], i + 1, &added[i]);
			_exit(0);
		}
	}
	for (int i = 0; i < n; i++)
		if (wait(&status) < 0 || status != 0)
			bad = 1;
	if (bad)
		errx(1, "a contender failed");
	for (int i = 0; i < n; i++)
		sum += added[i];
	if (try(fd, F_SETLKW, F_RDLCK, 0, 8) || pread(fd, text, 8, 0) != 8)
		err(1, "%s", path[0]);
	want("additions under the lock", atoi(text), sum);
	return close(fd) ? 1 : 0;
}

/*
 * A process that waits for a lock gets it soon after it became free. With NFSv4.0 the client asks
 * again after 1 s, 2 s and so on; with later versions the server's notice wakes it, and without
 * the notice it would ask after 30 s. limit is in ms.
 */
static void wake(const char *holder, const char *waiter, long limit)
{
	int fd = opened(waiter), status;
	struct child k = hold(holder, F_WRLCK, 2000, 8);
	pid_t timer = fork();

	if (timer < 0)
		err(1, "fork");
	if (timer == 0) {
		usleep(500000);
		_exit(0); /* closes the last copy of k.hold */
	}
	close(k.hold);
	int e = try(fd, F_SETLKW, F_WRLCK, 2000, 8);
	if (e)
		errx(1, "F_SETLKW: %s", strerror(e));
	long granted = now_ms();
	if (waitpid(timer, &status, 0) != timer || waitpid(k.pid, &status, 0) != k.pid || status != 0)
		errx(1, "holder ended with status %d", status);
	if (granted < freed->asked)
		errx(1, "granted %ld ms before the lock was free", freed->asked - granted);
	printf("granted %ld ms after the lock was free\n", granted - freed->done);
	if (granted - freed->done > limit)
		errx(1, "that is too late");
	want("client unlocks", try(fd, F_SETLK, F_UNLCK, 0, 0), 0);
	close(fd);
}

/* Locks of one process, which do not touch, so that they stay as many. */
enum { LOCK_LEN = 100, LOCK_STEP = 2 * LOCK_LEN };

/* keep holds n locks and writes to the file. Other processes check that all last. */
static int keep(const char *path, int cmd, int n)
{
	char line[64];
	int fd = opened(path), e;

	for (int i = 0; i < n; i++)
		if ((e = try(fd, cmd, F_WRLCK, i * LOCK_STEP, LOCK_LEN)))
			errx(1, "%s: %s", path, strerror(e));
	puts("held");
	fflush(stdout);
	for (off_t at = 0; fgets(line, sizeof line, stdin); at += strlen(line)) {
		if (pwrite(fd, line, strlen(line), at) != (ssize_t)strlen(line) || fsync(fd))
			err(1, "write to %s", path);
		puts("written");
		fflush(stdout);
	}
	puts("free");
	fflush(stdout);
	for (int i = 0; i < n; i++)
		if ((e = try(fd, F_SETLK, F_UNLCK, i * LOCK_STEP, LOCK_LEN)))
			errx(1, "F_UNLCK: %s", strerror(e));
	puts("freed");
	return close(fd) ? 1 : 0;
}

static int count_held(const char *path, int n)
{
	int fd = opened(path), held = 0;

	for (int i = 0; i < n; i++)
		held += holder(fd, i * LOCK_STEP, LOCK_LEN) != F_UNLCK;
	printf("%d\n", held);
	return close(fd) ? 1 : 0;
}

static int can_have(const char *path)
{
	int fd = opened(path), e = try(fd, F_SETLK, F_WRLCK, 0, 100);

	if (e != 0 && e != EAGAIN && e != EACCES)
		errx(1, "%s: %s", path, strerror(e));
	return e ? 3 : 0;
}

int main(int argc, char **argv)
{
	if ((argc == 3 || argc == 4) && strcmp(argv[1], "-h") == 0)
		return keep(argv[2], F_SETLK, argc == 4 ? atoi(argv[3]) : 1);
	if ((argc == 3 || argc == 4) && strcmp(argv[1], "-w") == 0)
		return keep(argv[2], F_SETLKW, argc == 4 ? atoi(argv[3]) : 1);
	if (argc == 4 && strcmp(argv[1], "-n") == 0)
		return count_held(argv[2], atoi(argv[3]));
	if (argc == 3 && strcmp(argv[1], "-t") == 0)
		return can_have(argv[2]);
	if (argc > 3 && strcmp(argv[1], "-c") == 0)
		return contend_until(argv[2], argv + 3, argc - 3);

	int deaf = argc == 4 && strcmp(argv[1], "-d") == 0;
	int told = argc == 4 && strcmp(argv[1], "-3") == 0;
	int two = deaf || told || (argc == 4 && strcmp(argv[1], "-2") == 0);

	if (!two && argc != 3)
		errx(2, "usage: locks [-2 | -3 | -d] FILE OTHERFILE");
	const char *mount = argv[argc - 2], *other = argv[argc - 1];
	int m = opened(mount), s = opened(other);
	struct child k;

	/*
	 * A lock that is never granted must be a failure, and not a hang. A client of NFSv4.1 or
	 * later that misses the notice of a lock asks again after 30 s.
	 */
	alarm(240);
	freed = mmap(NULL, sizeof *freed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (freed == MAP_FAILED)
		err(1, "mmap");

	k = hold(mount, F_WRLCK, 0, 100);
	want("client against client: refused", try(m, F_SETLK, F_WRLCK, 50, 100), EAGAIN);
	want("client against client: the holder is seen", holder(m, 0, 10), F_WRLCK);
	want("client against client: another range is free", try(m, F_SETLK, F_WRLCK, 100, 100), 0);
	want("the other against client: refused", try(s, F_SETLK, F_RDLCK, 0, 1), EAGAIN);
	want("the other against client: the holder is seen", holder(s, 99, 1), F_WRLCK);
	release(k);
	want("client after client: granted", try(m, F_SETLK, F_WRLCK, 0, 200), 0);
	want("client unlocks", try(m, F_SETLK, F_UNLCK, 0, 0), 0);
	want("the other after client: granted", try(s, F_SETLK, F_WRLCK, 0, 200), 0);
	want("the other unlocks", try(s, F_SETLK, F_UNLCK, 0, 0), 0);

	k = hold(other, F_WRLCK, 1000, 24);
	want("client against the other: refused", try(m, F_SETLK, F_WRLCK, 1010, 1), EAGAIN);
	want("client against the other: the holder is seen", holder(m, 1010, 1), F_WRLCK);
	want("client against the other: another range is free", try(m, F_SETLK, F_WRLCK, 1024, 8), 0);
	release(k);
	want("client after the other: granted", try(m, F_SETLK, F_WRLCK, 1000, 24), 0);
	want("client unlocks", try(m, F_SETLK, F_UNLCK, 0, 0), 0);

	k = hold(other, F_RDLCK, 0, 8);
	want("shared beside shared: granted", try(m, F_SETLK, F_RDLCK, 0, 8), 0);
	want("exclusive beside shared: refused", try(m, F_SETLK, F_WRLCK, 0, 8), EAGAIN);
	release(k);
	want("upgrade when alone: granted", try(m, F_SETLK, F_WRLCK, 0, 8), 0);
	want("client unlocks", try(m, F_SETLK, F_UNLCK, 0, 0), 0);
	close(m);
	close(s);

	two_ranges(mount, other);
	die_holding(mount, other, SIGKILL);
	die_holding(mount, other, SIGTERM);
	if (deaf) {
		wake(mount, other, 35000);
		contend((const char *const[]){mount, other}, poll_lock, 20);
	} else if (two) {
		wake(mount, other, 10000);
		wake(other, mount, 10000);
		contend((const char *const[]){mount, other}, told ? wait_lock : poll_lock, 20);
	} else {
		contend((const char *const[]){mount, mount}, wait_lock, 20);
	}
	return 0;
}
