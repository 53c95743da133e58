/*
 * watch DIR prints what happens in the file system of DIR, whoever does it: "create NAME", "delete NAME",
 * "from NAME", "to NAME", "modify NAME" (its data or size) and "attrib NAME" (other attributes). It says
 * "watching" first, and ends when it is killed. A name must be created and deleted once only: the kernel
 * may tell of both at once, and of several changes of a file as of one.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fanotify.h>
#include <unistd.h>

static const struct {
	unsigned long long mask;
	const char *word;
} words[] = {{FAN_CREATE, "create"}, {FAN_MODIFY, "modify"}, {FAN_ATTRIB, "attrib"},
	{FAN_MOVED_FROM, "from"}, {FAN_MOVED_TO, "to"}, {FAN_DELETE, "delete"}};

/* name_of returns the name of a directory in the file system that at is in, or "?" if it is gone. */
static const char *name_of(int at, struct file_handle *h)
{
	static char path[4096];
	char link[32];
	int fd = open_by_handle_at(at, h, O_PATH);
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = fd < 0 ? -1 : readlink(link, path, sizeof path - 1);
	if (fd >= 0) close(fd);
	if (n < 0) return "?";
	path[n] = 0;
	return strrchr(path, '/') + 1;
}

int main(int argc, char **argv)
{
	unsigned long long all = FAN_ONDIR;
	int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_DFID_NAME | FAN_UNLIMITED_QUEUE, O_RDONLY);
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++) all |= words[i].mask;
	int at = argc == 2 ? open(argv[1], O_RDONLY) : -1;
	if (at < 0 || fd < 0 || fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, all, AT_FDCWD, argv[1]) != 0) {
		perror("watch");
		return 1;
	}
	setlinebuf(stdout);
	puts("watching");
	for (;;) {
		static char buf[1 << 16] __attribute__((aligned(8)));
		ssize_t n = read(fd, buf, sizeof buf);
		if (n <= 0) {
			perror("watch");
			return 1;
		}
		for (struct fanotify_event_metadata *e = (void *)buf; FAN_EVENT_OK(e, n); e = FAN_EVENT_NEXT(e, n)) {
			struct fanotify_event_info_fid *fid = (void *)(e + 1);
			struct file_handle *h = (void *)fid->handle;
			const char *name = (char *)h->f_handle + h->handle_bytes;
			if (strcmp(name, ".") == 0) name = name_of(at, h); /* what happens to a directory itself */
			for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
				if (e->mask & words[i].mask) printf("%s %s\n", words[i].word, name);
		}
	}
}
