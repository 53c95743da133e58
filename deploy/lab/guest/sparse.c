/*
 * sparse map FILE prints where SEEK_DATA and SEEK_HOLE find data and holes.
 * sparse punch FILE OFFSET LENGTH makes a hole.
 * sparse allocate FILE OFFSET LENGTH allocates space.
 * sparse copy FROM TO copies by copy_file_range only.
 * sparse clone FROM TO shares the blocks of FROM.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void map(int fd)
{
	off_t end = lseek(fd, 0, SEEK_END);

	for (off_t at = 0; at < end;) {
		off_t data = lseek(fd, at, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			break;
		if (data < 0)
			err(1, "SEEK_DATA at %jd", (intmax_t)at);
		at = lseek(fd, data, SEEK_HOLE);
		if (at < 0)
			err(1, "SEEK_HOLE at %jd", (intmax_t)data);
		printf("data %jd %jd\n", (intmax_t)data, (intmax_t)at);
	}
	printf("end %jd\n", (intmax_t)end);
}

static void copy(int from, int to)
{
	struct stat st;
	ssize_t n;

	if (fstat(from, &st))
		err(1, "fstat");
	for (off_t left = st.st_size; left > 0; left -= n) {
		n = copy_file_range(from, NULL, to, NULL, left, 0);
		if (n < 0)
			err(1, "copy_file_range");
		if (n == 0)
			errx(1, "copy_file_range ended %jd octets early", (intmax_t)left);
	}
}

static int opened(const char *path, int flags)
{
	int fd = open(path, flags, 0666);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (strcmp(what, "map") == 0 && argc == 3) {
		map(opened(argv[2], O_RDONLY));
	} else if (strcmp(what, "punch") == 0 && argc == 5) {
		if (fallocate(opened(argv[2], O_RDWR), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, atoll(argv[3]), atoll(argv[4])))
			err(1, "punch");
	} else if (strcmp(what, "allocate") == 0 && argc == 5) {
		if (fallocate(opened(argv[2], O_RDWR), 0, atoll(argv[3]), atoll(argv[4])))
			err(1, "allocate");
	} else if (strcmp(what, "copy") == 0 && argc == 4) {
		int to = opened(argv[3], O_RDWR | O_CREAT | O_TRUNC);
		copy(opened(argv[2], O_RDONLY), to);
		if (close(to))
			err(1, "close");
	} else if (strcmp(what, "clone") == 0 && argc == 4) {
		int from = opened(argv[2], O_RDONLY);
		if (ioctl(opened(argv[3], O_RDWR | O_CREAT | O_TRUNC), FICLONE, from))
			err(1, "clone");
	} else {
		errx(2, "usage: sparse map FILE | punch|allocate FILE OFFSET LENGTH | copy|clone FROM TO");
	}
	return 0;
}
