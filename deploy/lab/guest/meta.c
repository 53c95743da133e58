/*
 * meta DIR NAME LOG STOP creates, links, renames and removes files and directories in DIR, which
 * is on NFS and which no other process uses, until the file STOP exists. It checks every result,
 * and then the directory. The client must cache nothing: mount with actimeo=0,lookupcache=none.
 *
 * Half of the names are new each time. The others are used again at once, so that an operation
 * that a server executes late meets a later file of the same name.
 *
 * meta writes a line to LOG for each operation that has ended: uptime in milliseconds at its start
 * and at its end, its name, the number of the pass, and
 *
 *   ok      the operation did what it should
 *   again   the operation reported that it had been executed before (EEXIST, ENOENT), and the
 *           directory is right. This may happen only if the server lost its memory meanwhile.
 *   FAIL    and what was wrong; this is the last line
 *
 * A look at the directory is logged as "look" if it took a second or more.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int out;
static long pass;
static const char *op = "start";
static long begun;

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return t.tv_sec * 1000L + t.tv_nsec / 1000000;
}

static void say(const char *outcome)
{
	char line[512];
	int n = snprintf(line, sizeof line, "%ld %ld %s %ld %s\n", begun, now(), op, pass, outcome);

	if (n >= (int)sizeof line)
		n = sizeof line - 1;
	if (write(out, line, n) != n) {
		perror("meta: log");
		exit(2);
	}
}

static void fail(const char *format, ...)
{
	char what[400] = "FAIL ";
	va_list a;

	va_start(a, format);
	vsnprintf(what + 5, sizeof what - 5, format, a);
	va_end(a);
	say(what);
	exit(1);
}

static void begin(const char *name)
{
	op = name;
	begun = now();
}

/* ended logs the result of the operation that began. done_errno means that it had been done before. */
static void ended(int rc, int done_errno, const char *name)
{
	int e = errno;

	if (rc >= 0)
		say("ok");
	else if (e == done_errno)
		say("again");
	else
		fail("%s: %s", name, strerror(e));
}

/* look calls lstat, past the cache, and returns 0 if there is no such file. */
static int look(const char *name, struct stat *st)
{
	const char *before = op;
	long when = begun;
	int rc, e;

	begin("look");
	rc = lstat(name, st);
	e = errno;
	if (now() - begun >= 1000)
		say("ok");
	if (rc < 0 && e != ENOENT)
		fail("stat %s after %s: %s", name, before, strerror(e));
	op = before;
	begun = when;
	return rc == 0;
}

static struct stat want(const char *name, mode_t type, nlink_t links, ino_t ino)
{
	struct stat st;

	if (!look(name, &st))
		fail("%s is not there", name);
	if ((st.st_mode & S_IFMT) != type)
		fail("%s has mode %o", name, st.st_mode);
	if (links && st.st_nlink != links)
		fail("%s has %lu links, not %lu", name, (unsigned long)st.st_nlink, (unsigned long)links);
	if (ino && st.st_ino != ino)
		fail("%s is another file: inode %lu, not %lu", name, (unsigned long)st.st_ino, (unsigned long)ino);
	return st;
}

static void gone(const char *name)
{
	struct stat st;

	if (look(name, &st))
		fail("%s is there", name);
}

static void want_empty(const char *name)
{
	struct dirent *e;
	DIR *d = opendir(name);

	if (!d)
		fail("opendir %s: %s", name, strerror(errno));
	while ((errno = 0, e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			fail("%s holds %s", name, e->d_name);
	if (errno)
		fail("readdir %s: %s", name, strerror(errno));
	closedir(d);
}

static void want_text(const char *name, const char *text)
{
	char got[256] = "";
	int n, fd = open(name, O_RDONLY);

	if (fd < 0)
		fail("open %s: %s", name, strerror(errno));
	n = read(fd, got, sizeof got);
	if (n < 0)
		fail("read %s: %s", name, strerror(errno));
	if (n != (int)strlen(text) || memcmp(got, text, n))
		fail("%s holds \"%.*s\", not \"%s\"", name, n, got, text);
	close(fd);
}

static void once(const char *who)
{
	char f[64], d[80], e[80], l[80], s[80], dr[96], er[96], text[128];
	struct stat st;
	ino_t ino;
	int fd, n;

	if (pass % 2)
		snprintf(f, sizeof f, "%s.%ld", who, pass);
	else
		snprintf(f, sizeof f, "%s", who);
	snprintf(d, sizeof d, "d.%s", f);
	snprintf(e, sizeof e, "e.%s", f);
	snprintf(l, sizeof l, "l.%s", f);
	snprintf(s, sizeof s, "s.%s", f);
	snprintf(dr, sizeof dr, "%s/r", d);
	snprintf(er, sizeof er, "%s/r", e);
	snprintf(text, sizeof text, "%s wrote this in pass %ld\n", who, pass);

	begin("mkdir");
	ended(mkdir(d, 0755), EEXIST, d);
	want(d, S_IFDIR, 0, 0);
	want_empty(d);

	begin("create");
	fd = open(f, O_CREAT | O_EXCL | O_WRONLY, 0644);
	ended(fd, EEXIST, f);
	if (fd < 0 && (fd = open(f, O_WRONLY)) < 0)
		fail("open %s: %s", f, strerror(errno));
	st = want(f, S_IFREG, 1, 0);
	if (st.st_size != 0)
		fail("%s is new and has %ld octets", f, (long)st.st_size);
	ino = st.st_ino;
	begin("write");
	n = write(fd, text, strlen(text));
	if (n != (int)strlen(text))
		fail("write %s: %d, %s", f, n, strerror(errno));
	if (close(fd) < 0)
		fail("close %s: %s", f, strerror(errno));
	say("ok");

	begin("link");
	ended(link(f, l), EEXIST, l);
	want(f, S_IFREG, 2, ino);
	want(l, S_IFREG, 2, ino);

	begin("rename");
	ended(rename(f, dr), ENOENT, f);
	gone(f);
	want(dr, S_IFREG, 2, ino);

	begin("remove");
	ended(unlink(l), ENOENT, l);
	gone(l);
	want(dr, S_IFREG, 1, ino);
	want_text(dr, text);

	begin("rename");
	ended(rename(d, e), ENOENT, d);
	gone(d);
	want(er, S_IFREG, 1, ino);

	begin("symlink");
	ended(symlink(er, s), EEXIST, s);
	n = readlink(s, text, sizeof text);
	if (n != (int)strlen(er) || memcmp(text, er, n))
		fail("%s leads to %.*s", s, n, text);

	begin("remove");
	ended(unlink(er), ENOENT, er);
	gone(er);
	want_empty(e);
	begin("remove");
	ended(unlink(s), ENOENT, s);
	gone(s);
	begin("rmdir");
	ended(rmdir(e), ENOENT, e);
	gone(e);
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: meta DIR NAME LOG STOP\n");
		return 2;
	}
	out = open(argv[3], O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0644);
	if (out < 0) {
		perror(argv[3]);
		return 2;
	}
	if (chdir(argv[1]) < 0)
		fail("chdir %s: %s", argv[1], strerror(errno));
	for (pass = 1; access(argv[4], F_OK) != 0; pass++)
		once(argv[2]);
	want_empty(".");
	begin("end");
	say("ok");
	return 0;
}
