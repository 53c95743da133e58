/*
 * watch DIR prints what happens to names in the file system of DIR, whoever does it: "create NAME",
 * "delete NAME", "from NAME" and "to NAME". It says "watching" first, and ends when it is killed. A name
 * must be created and deleted once only: the kernel may tell of both at once.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <unistd.h>

static const struct {
	unsigned long long mask;
	const char *word;
} words[] = {{FAN_CREATE, "create"}, {FAN_MOVED_FROM, "from"}, {FAN_MOVED_TO, "to"}, {FAN_DELETE, "delete"}};

int main(int argc, char **argv)
{
	unsigned long long all = FAN_ONDIR;
	int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_DFID_NAME | FAN_UNLIMITED_QUEUE, O_RDONLY);
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++) all |= words[i].mask;
	if (argc != 2 || fd < 0 || fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, all, AT_FDCWD, argv[1]) != 0) {
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
			for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
				if (e->mask & words[i].mask) printf("%s %s\n", words[i].word, (char *)h->f_handle + h->handle_bytes);
		}
	}
}
