/*
 * xids FLAVOR HOST PORT MOUNTPORT DIR ROUNDS CLIENTS runs that many NFSv3 clients, each a process
 * with a TCP connection of its own, whose Calls have the same XIDs at the same time. FLAVOR is sys,
 * krb5, krb5i or krb5p; for the latter three HOST is a name for which the server has a key, and the
 * user who runs xids has a ticket.
 *
 * DIR is a directory of the server that this process sees too, with files f0, f1 and so on. Client I
 * looks up file fI, and in each round all clients send the same procedure: GETATTR, READ or WRITE.
 * The results must be those of the client's own file: attributes, data, verifiers. The last round
 * is a WRITE to a frozen file system: all Calls are under way until it thaws, a second later.
 *
 * The lengths of WRITEs differ from client to client. Under RPCSEC_GSS the bridge cannot change the
 * XID, and the server's duplicate request cache identifies a Call by its XID, its length and a sum of
 * 16 bits over its arguments: with one length, the cache would take one WRITE in some thousands for
 * another client's.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <netdb.h>
#include <pthread.h>
#include <rpc/rpc.h>
#include <rpc/auth_gss.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, FHSIZE = 64, FILESIZE = 256 << 10, DATA = 64 << 10 };
enum { GETATTR = 1, LOOKUP = 3, READ = 6, WRITE = 7 };

static struct shared {
	pthread_barrier_t barrier, freeze; /* the freezer waits at freeze too */
	struct { long sent, answered; } call[MOST]; /* the times of this round, in microseconds */
	long together;                              /* pairs of Calls that were under way at once */
	long slowest;
	int frozen;  /* Calls of the last round that have been sent, or are about to be */
	long thawed; /* when the file system thawed, in microseconds */
} *shared;

static int clients, me = -1;

static long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* The messages of RFC 1813, with only the fields that xids checks. */

struct fh { u_int len; char data[FHSIZE]; };
struct attr { u_int type, mode, nlink, uid, gid; uint64_t size, used, rdev, fsid, fileid; };
struct op {
	struct fh fh;
	char *name;             /* LOOKUP */
	uint64_t offset;        /* READ, WRITE */
	u_int count;
	char *data;             /* DATA octets */
};
struct answer {
	u_int status;
	struct fh fh;
	bool_t has_attr;
	struct attr attr;
	u_int count, eof;
	char *data;             /* DATA octets */
};

static bool_t xdr_fh(XDR *x, struct fh *f)
{
	char *p = f->data;

	return xdr_bytes(x, &p, &f->len, FHSIZE);
}

static bool_t xdr_attr(XDR *x, struct attr *a)
{
	uint64_t time;

	return xdr_u_int(x, &a->type) && xdr_u_int(x, &a->mode) && xdr_u_int(x, &a->nlink) &&
	       xdr_u_int(x, &a->uid) && xdr_u_int(x, &a->gid) && xdr_uint64_t(x, &a->size) &&
	       xdr_uint64_t(x, &a->used) && xdr_uint64_t(x, &a->rdev) && xdr_uint64_t(x, &a->fsid) &&
	       xdr_uint64_t(x, &a->fileid) && xdr_uint64_t(x, &time) && xdr_uint64_t(x, &time) && xdr_uint64_t(x, &time);
}

static bool_t xdr_post_attr(XDR *x, struct answer *r)
{
	return xdr_bool(x, &r->has_attr) && (!r->has_attr || xdr_attr(x, &r->attr));
}

static bool_t xdr_getattr(XDR *x, struct op *o) { return xdr_fh(x, &o->fh); }
static bool_t xdr_lookup(XDR *x, struct op *o) { return xdr_fh(x, &o->fh) && xdr_string(x, &o->name, 255); }

static bool_t xdr_read(XDR *x, struct op *o)
{
	return xdr_fh(x, &o->fh) && xdr_uint64_t(x, &o->offset) && xdr_u_int(x, &o->count);
}

static bool_t xdr_write(XDR *x, struct op *o)
{
	u_int file_sync = 2;

	return xdr_read(x, o) && xdr_u_int(x, &file_sync) && xdr_bytes(x, &o->data, &o->count, DATA);
}

static bool_t xdr_getattr_answer(XDR *x, struct answer *r)
{
	r->has_attr = TRUE;
	return xdr_u_int(x, &r->status) && (r->status || xdr_attr(x, &r->attr));
}

static bool_t xdr_lookup_answer(XDR *x, struct answer *r)
{
	return xdr_u_int(x, &r->status) && (r->status || (xdr_fh(x, &r->fh) && xdr_post_attr(x, r)));
}

static bool_t xdr_read_answer(XDR *x, struct answer *r)
{
	u_int len;

	return xdr_u_int(x, &r->status) && xdr_post_attr(x, r) &&
	       (r->status || (xdr_u_int(x, &r->count) && xdr_bool(x, (bool_t *)&r->eof) &&
	                      xdr_bytes(x, &r->data, &len, DATA) && len == r->count));
}

static bool_t xdr_write_answer(XDR *x, struct answer *r)
{
	bool_t before;
	uint64_t old;

	if (!xdr_u_int(x, &r->status) || !xdr_bool(x, &before))
		return FALSE;
	for (int i = 0; before && i < 3; i++)
		if (!xdr_uint64_t(x, &old))
			return FALSE;
	return xdr_post_attr(x, r) && (r->status || xdr_u_int(x, &r->count));
}

static const struct procedure { xdrproc_t args, answer; } procedures[] = {
	[GETATTR] = {(xdrproc_t)xdr_getattr, (xdrproc_t)xdr_getattr_answer},
	[LOOKUP] = {(xdrproc_t)xdr_lookup, (xdrproc_t)xdr_lookup_answer},
	[READ] = {(xdrproc_t)xdr_read, (xdrproc_t)xdr_read_answer},
	[WRITE] = {(xdrproc_t)xdr_write, (xdrproc_t)xdr_write_answer},
};

static bool_t xdr_path(XDR *x, char **path) { return xdr_string(x, path, 1024); }

static bool_t xdr_mnt_answer(XDR *x, struct answer *r)
{
	return xdr_u_int(x, &r->status) && (r->status || xdr_fh(x, &r->fh)); /* flavors follow */
}

static CLIENT *dial(const char *host, const char *port, u_long program)
{
	struct addrinfo *to, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	int e = getaddrinfo(host, port, &hints, &to), fd;
	struct netbuf address;
	CLIENT *c;

	if (e)
		errx(1, "%s: %s", host, gai_strerror(e));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, to->ai_addr, to->ai_addrlen))
		err(1, "connect to %s port %s", host, port);
	address = (struct netbuf){.maxlen = to->ai_addrlen, .len = to->ai_addrlen, .buf = to->ai_addr};
	c = clnt_vc_create(fd, &address, program, 3, 2 * DATA, 2 * DATA); /* signed data have to fit */
	if (!c)
		errx(1, "%s", clnt_spcreateerror("clnt_vc_create"));
	return c;
}

/* Sets the XID of the next Call. libtirpc decrements the encoded XID first, without converting its octets. */
static void set_xid(CLIENT *c, uint32_t xid)
{
	uint32_t first = ntohl(htonl(xid) + 1) - 1;

	if (!clnt_control(c, CLSET_XID, (char *)&first))
		errx(1, "CLSET_XID");
}

/* A Call without a Reply for a minute counts as lost. */
static const struct timeval call_timeout = {60, 0};

static void call(CLIENT *c, uint32_t xid, int procedure, struct op *o, struct answer *r)
{
	const struct procedure *p = &procedures[procedure];
	enum clnt_stat e;
	uint32_t sent;

	set_xid(c, xid);
	r->status = r->count = r->has_attr = 0;
	shared->call[me].sent = now_us();
	e = clnt_call(c, procedure, p->args, (caddr_t)o, p->answer, (caddr_t)r, call_timeout);
	shared->call[me].answered = now_us();
	if (e != RPC_SUCCESS)
		errx(1, "client %d, procedure %d, XID %#x: %s", me, procedure, xid, clnt_sperror(c, "call"));
	if (r->status)
		errx(1, "client %d, procedure %d, XID %#x: NFS error %u", me, procedure, xid, r->status);
	if (!clnt_control(c, CLGET_XID, (char *)&sent) || sent != xid)
		errx(1, "client %d: the XID was %#x, not %#x", me, sent, xid);
}

static void meet(void)
{
	int e = pthread_barrier_wait(&shared->barrier);

	if (e && e != PTHREAD_BARRIER_SERIAL_THREAD)
		errx(1, "barrier: %s", strerror(e));
}

/* On one client: counts the pairs of Calls that were under way together. */
static void count(void)
{
	meet();
	if (me == 0) {
		for (int i = 0; i < clients; i++) {
			long us = shared->call[i].answered - shared->call[i].sent;
			if (us > shared->slowest)
				shared->slowest = us;
			for (int j = 0; j < i; j++)
				shared->together += shared->call[i].sent < shared->call[j].answered &&
				                    shared->call[j].sent < shared->call[i].answered;
		}
	}
	meet();
}

/* Returns how much client i reads or writes in a round: an odd number, small or large. */
static u_int length(int i, int round)
{
	static const u_int lengths[] = {1, 700, 9000, 40000};

	return lengths[round / 3 % 4] + 8 * i + round % 5;
}

static void check(const struct answer *r, uint64_t fileid, int procedure, uint32_t xid)
{
	if (!r->has_attr)
		errx(1, "client %d, procedure %d, XID %#x: no attributes", me, procedure, xid);
	if (r->attr.fileid != fileid || r->attr.size != (uint64_t)FILESIZE + me)
		errx(1, "client %d, procedure %d, XID %#x: file %lu of %lu octets, want file %lu of %d", me, procedure, xid,
		     r->attr.fileid, r->attr.size, fileid, FILESIZE + me);
}

static void client(const char *flavor, char **where, const char *dir, struct fh root, uint32_t xid, int rounds)
{
	static char image[FILESIZE + MOST], out[DATA], in[DATA], name[16], path[1024], service[256];
	struct op o = {.name = name, .data = out};
	struct answer r = {.data = in};
	unsigned seed = xid + me;
	CLIENT *c = dial(where[0], where[1], 100003);
	struct stat st;
	int fd;

	snprintf(name, sizeof name, "f%d", me);
	snprintf(path, sizeof path, "%s/%s", dir, name);
	meet();
	set_xid(c, xid++); /* for the Call that creates a context, if there is one */
	if (strcmp(flavor, "sys") == 0) {
		c->cl_auth = authunix_create("guest", getuid(), getgid(), 0, NULL);
	} else {
		struct rpc_gss_sec sec = {.svc = flavor[4] == 'i' ? RPCSEC_GSS_SVC_INTEGRITY :
		                                 flavor[4] == 'p' ? RPCSEC_GSS_SVC_PRIVACY : RPCSEC_GSS_SVC_NONE};
		snprintf(service, sizeof service, "nfs@%s", where[0]);
		c->cl_auth = authgss_create_default(c, service, &sec);
	}
	if (!c->cl_auth)
		errx(1, "client %d: %s", me, clnt_spcreateerror("no authentication"));

	o.fh = root;
	meet();
	call(c, xid, LOOKUP, &o, &r);
	count();
	fd = open(path, O_RDONLY);
	if (fd < 0 || fstat(fd, &st) || pread(fd, image, FILESIZE + me, 0) != FILESIZE + me)
		err(1, "%s", path);
	check(&r, st.st_ino, LOOKUP, xid++);
	o.fh = r.fh;

	for (int round = 0; round <= rounds; round++, xid++) {
		int procedure = (const int[]){GETATTR, READ, WRITE}[round % 3];
		if (round == rounds) {
			procedure = WRITE;
			pthread_barrier_wait(&shared->freeze); /* freeze */
			pthread_barrier_wait(&shared->freeze); /* frozen */
		}
		u_int n = length(me, round);
		o.offset = rand_r(&seed) % (FILESIZE - DATA);
		o.count = n;
		if (procedure == WRITE) {
			for (u_int i = 0; i < n; i++)
				out[i] = rand_r(&seed) >> 8;
			memcpy(image + o.offset, out, n);
		}
		meet();
		if (round == rounds)
			__atomic_add_fetch(&shared->frozen, 1, __ATOMIC_SEQ_CST);
		call(c, xid, procedure, &o, &r);
		count();
		check(&r, st.st_ino, procedure, xid);
		if (round == rounds && shared->call[me].answered < shared->thawed)
			errx(1, "client %d: a WRITE to a frozen file system was answered", me);
		if (procedure != GETATTR && r.count != n)
			errx(1, "client %d, procedure %d, XID %#x: %u octets, want %u", me, procedure, xid, r.count, n);
		if (procedure == READ && memcmp(in, image + o.offset, n))
			errx(1, "client %d, READ, XID %#x: not the %u octets at %lu of its file", me, xid, n, o.offset);
	}
	static char end[FILESIZE + MOST];
	if (pread(fd, end, sizeof end, 0) != FILESIZE + me || memcmp(end, image, FILESIZE + me))
		errx(1, "client %d: the server's file is not what was written", me);
	if (strcmp(flavor, "sys") != 0)
		set_xid(c, xid); /* for the Call that destroys the context */
	meet();
	auth_destroy(c->cl_auth);
	clnt_destroy(c);
}

int main(int argc, char **argv)
{
	pthread_barrierattr_t attr;
	int status, failed = 0;
	pid_t pids[MOST];

	if (argc != 8)
		errx(2, "usage: xids FLAVOR HOST PORT MOUNTPORT DIR ROUNDS CLIENTS");
	clients = atoi(argv[7]);
	if (clients < 1 || clients > MOST)
		errx(2, "CLIENTS is 1 to %d", MOST);

	char *dir = argv[5];
	struct answer r = {};
	CLIENT *m = dial(argv[2], argv[4], 100005);
	m->cl_auth = authunix_create("guest", getuid(), getgid(), 0, NULL);
	enum clnt_stat e = clnt_call(m, 1, (xdrproc_t)xdr_path, (caddr_t)&dir, (xdrproc_t)xdr_mnt_answer, (caddr_t)&r, call_timeout);
	if (e != RPC_SUCCESS || r.status)
		errx(1, "MNT %s: status %u, %s", dir, r.status, clnt_sperror(m, "call"));
	auth_destroy(m->cl_auth);
	clnt_destroy(m);

	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		err(1, "mmap");
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &attr, clients);
	pthread_barrier_init(&shared->freeze, &attr, clients + 1);
	/* The server must not remember this XID from an earlier run. */
	uint32_t xid = (uint32_t)now_us() ^ (uint32_t)time(NULL) << 16;
	for (int i = 0; i < clients; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			err(1, "fork");
		if (pids[i])
			continue;
		me = i;
		client(argv[1], argv + 2, dir, r.fh, xid, atoi(argv[6]));
		exit(0);
	}
	pid_t freezer = fork();
	if (freezer == 0) {
		int fd = open(dir, O_RDONLY);
		if (fd < 0)
			err(1, "%s", dir);
		pthread_barrier_wait(&shared->freeze);
		if (ioctl(fd, FIFREEZE, 0))
			err(1, "FIFREEZE");
		pthread_barrier_wait(&shared->freeze);
		for (int i = 0; i < 3000 && __atomic_load_n(&shared->frozen, __ATOMIC_SEQ_CST) < clients; i++)
			usleep(10000);
		sleep(1);
		shared->thawed = now_us();
		if (ioctl(fd, FITHAW, 0))
			err(1, "FITHAW");
		exit(0);
	}
	/* A client that fails leaves the others waiting at the barrier. */
	for (int i = 0; i <= clients && !failed; i++)
		failed = wait(&status) < 0 || status != 0;
	for (int i = 0; i < clients && failed; i++)
		kill(pids[i], SIGTERM);
	if (failed)
		return 1; /* the freezer thaws the file system, or ends with the guest if it has not frozen it */
	printf("%s: %d rounds of %d clients, %ld pairs of Calls under way together, the slowest took %ld ms\n",
	       argv[1], atoi(argv[6]), clients, shared->together, shared->slowest / 1000);
	return 0;
}
