/*
 * locks FILE SERVERFILE: fcntl record locks, through an NFS mount and against the server.
 *
 * FILE is a file in the mount, SERVERFILE the same file as the server's own processes see
 * it. Processes of one client settle their conflicts in the client's kernel, so the server
 * is heard only where one side of the conflict is a process of the server: both are tried.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int try(int fd, int cmd, short type, off_t start, off_t len)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};

	return fcntl(fd, cmd, &l) == 0 ? 0 : errno;
}

/* Who keeps [start, start+len) from an exclusive lock: F_UNLCK when nobody does. */
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

/*
 * A child that holds a lock: it says so on one pipe and lets go when the other closes.
 * fcntl locks belong to a process, so every second party is one.
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
		e = try(fd, F_SETLK, F_UNLCK, start, len);
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

/* Two processes add to one number under the lock; no addition may be lost. */
static void contend(const char *path, int rounds)
{
	int fd = opened(path), status;
	char text[16] = "0000000";

	if (pwrite(fd, text, 8, 0) != 8 || fsync(fd))
		err(1, "%s", path);
	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();
		if (pid < 0)
			err(1, "fork");
		if (pid)
			continue;
		int own = opened(path);
		for (int n = 0; n < rounds; n++) {
			int e = try(own, F_SETLKW, F_WRLCK, 0, 8);
			if (e)
				errx(1, "F_SETLKW: %s", strerror(e));
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

int main(int argc, char **argv)
{
	if (argc != 3)
		errx(2, "usage: locks FILE SERVERFILE");
	const char *mount = argv[1], *server = argv[2];
	int m = opened(mount), s = opened(server);
	struct child k;

	/*
	 * A lock that never comes is a failure, not a hang. A client of NFSv4.1 and later that
	 * misses the notice of a lock asks again after 30 s.
	 */
	alarm(240);

	k = hold(mount, F_WRLCK, 0, 100);
	want("client against client: refused", try(m, F_SETLK, F_WRLCK, 50, 100), EAGAIN);
	want("client against client: the holder is seen", holder(m, 0, 10), F_WRLCK);
	want("client against client: another range is free", try(m, F_SETLK, F_WRLCK, 100, 100), 0);
	want("server against client: refused", try(s, F_SETLK, F_RDLCK, 0, 1), EAGAIN);
	want("server against client: the holder is seen", holder(s, 99, 1), F_WRLCK);
	release(k);
	want("client after client: granted", try(m, F_SETLK, F_WRLCK, 0, 200), 0);
	want("client unlocks", try(m, F_SETLK, F_UNLCK, 0, 0), 0);
	want("server after client: granted", try(s, F_SETLK, F_WRLCK, 0, 200), 0);
	want("server unlocks", try(s, F_SETLK, F_UNLCK, 0, 0), 0);

	k = hold(server, F_WRLCK, 1000, 24);
	want("client against server: refused", try(m, F_SETLK, F_WRLCK, 1010, 1), EAGAIN);
	want("client against server: the holder is seen", holder(m, 1010, 1), F_WRLCK);
	want("client against server: another range is free", try(m, F_SETLK, F_WRLCK, 1024, 8), 0);
	release(k);
	want("client after server: granted", try(m, F_SETLK, F_WRLCK, 1000, 24), 0);
	want("client unlocks", try(m, F_SETLK, F_UNLCK, 0, 0), 0);

	k = hold(server, F_RDLCK, 0, 8);
	want("shared beside shared: granted", try(m, F_SETLK, F_RDLCK, 0, 8), 0);
	want("exclusive beside shared: refused", try(m, F_SETLK, F_WRLCK, 0, 8), EAGAIN);
	release(k);
	want("upgrade when alone: granted", try(m, F_SETLK, F_WRLCK, 0, 8), 0);
	want("client unlocks", try(m, F_SETLK, F_UNLCK, 0, 0), 0);
	close(m);
	close(s);

	contend(mount, 20);
	return 0;
}
