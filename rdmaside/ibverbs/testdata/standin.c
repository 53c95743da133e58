/*
 * Stands for libibverbs and librdmacm in tests: two devices in memory, whose queue pairs are all in
 * this process. A Work Request is carried out when it is posted. Both libraries are this one file.
 *
 * The file that RDMABRIDGE_STANDIN names is a page that the tests share: they set faults there, and
 * read how many objects are alive. A call of rdma_set_option without an id carries out the command
 * that the page has.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

/* The order is that of standin_test.go. */
enum { F_NONE, F_POST_SEND, F_POST_RECV, F_POLL, F_ONE, F_STATUS, F_REMOVAL, F_REG_MR, F_CQ, F_QP, F_PD, F_ADDR, F_ROUTE,
       F_CONNECT, F_SILENT, F_UNKNOWN, F_ARM, F_BATCH_SEND, F_BATCH_RECV, F_PORT, F_BIND, F_WINDOW, F_INVALIDATE, F_UNTOLD, F_BLOCK,
       F_DEREG_MR, F_GONE };
enum { C_NONE, C_ASYNC, C_COMPLETE, C_EVENT, C_REMOVE, C_ADD };

/* How the device's memory windows are. With LOOSE they are those of rxe in Linux 6.1: a peer reaches all
 * of the region behind a window, and may invalidate windows of other connections; the completion has the
 * kernel's flag; and to invalidate a window that is not bound stops the machine. */
enum { W_GOOD, W_LOOSE, W_NONE };

static struct control {
	uint32_t fault, value; /* set by the tests */
	int32_t live;          /* objects */
	uint32_t tos;          /* type of service of the last id that asked to connect, when its address was resolved */
	uint32_t listen_tos;   /* type of service of the last id that began to listen */
	uint32_t command;      /* set by the tests */
	uint64_t object;       /* of the command */
	int64_t args[6];       /* of the command */
	uint32_t windows;      /* set by the tests */
} none, *control = &none;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t acked = PTHREAD_COND_INITIALIZER;

static uint32_t fault(uint32_t f) { return __atomic_load_n(&control->fault, __ATOMIC_SEQ_CST) == f ? control->value : 0; }
static void live(int n) { __atomic_add_fetch(&control->live, n, __ATOMIC_SEQ_CST); }
static int fail(int e) { errno = e; return -1; }

struct event { struct rdma_cm_event e; struct event *next; struct id *owner; uint8_t data[256]; };
struct events { struct rdma_event_channel c; struct event *first, *last; };
struct id {
	struct rdma_cm_id c;
	struct id *peer, *next; /* next of listeners */
	struct id *another;     /* next of ids */
	int unacked, connected, over;
	int hidden; /* nobody has read its request yet */
	uint8_t tos, used_tos;
};
struct completions { struct ibv_comp_channel c; struct cq *first, *last; };
enum { COMMANDED = 64 };
struct cq {
	struct ibv_cq c;
	int depth, n, head, armed, queued;
	struct cq *next;
	struct ibv_wc *wc;
	struct ibv_wc more[COMMANDED]; /* those of C_COMPLETE; they come first */
	int mores, lied;
	struct cq *another; /* next of cqs */
};
struct async { int type; uint64_t object; };
struct context {
	struct ibv_context c;
	int ids, removed;
	struct async events[64];
	int first, n;
};
struct receive { uint64_t id; struct ibv_sge sge; };
struct qp { struct ibv_qp c; struct id *id; struct receive *r; int depth, n, head, broken; };
struct mr { struct ibv_mr c; uint64_t iova; int access, bound; struct mr *next; };
struct mw { struct ibv_mw c; uint32_t key; struct qp *qp; struct mr *mr; uint64_t at, n; int access; struct mw *next; };

static struct id *listeners, *ids;
static struct cq *cqs;
static void *reported[8]; /* objects of asynchronous events that are not acknowledged */
static struct mr *mrs[1024];
static struct mw *mws;
static uint32_t keys = 1;
static uint16_t ports = 30000;

static int poll_cq(struct ibv_cq *, int, struct ibv_wc *);
static int notify(struct ibv_cq *, int);
static int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static struct ibv_mw *alloc_mw(struct ibv_pd *, enum ibv_mw_type);
static int dealloc_mw(struct ibv_mw *);

enum { DEVICES = 2 };
static struct ibv_device devices[DEVICES] = {
	{.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "standin0"},
	{.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "standin1"},
};
static struct context *contexts[DEVICES]; /* NULL while the device is away */

static int bell(void) { return eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC); }

/* A device that comes back has another context than before. */
static void add(int device)
{
	struct context *x = calloc(1, sizeof *x);

	x->c.device = &devices[device];
	x->c.num_comp_vectors = 1;
	x->c.async_fd = bell();
	x->c.ops.poll_cq = poll_cq;
	x->c.ops.req_notify_cq = notify;
	x->c.ops.post_send = post_send;
	x->c.ops.post_recv = post_recv;
	x->c.ops.alloc_mw = alloc_mw;
	x->c.ops.dealloc_mw = dealloc_mw;
	contexts[device] = x;
}

/* As librdmacm does, the last id on a removed device closes its context. */
static void unuse(struct ibv_context *c)
{
	struct context *x = (struct context *)c;

	if (!x || --x->ids || !x->removed)
		return;
	close(x->c.async_fd);
	free(x);
}

__attribute__((constructor)) static void attach(void)
{
	const char *name = getenv("RDMABRIDGE_STANDIN");
	int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	for (int i = 0; i < DEVICES; i++)
		add(i);
	if (p != MAP_FAILED)
		control = p;
	if (fd >= 0)
		close(fd);
}

static void *new(size_t n) { live(1); return calloc(1, n); }
static void end(void *p) { live(-1); free(p); }
static void ring(int fd) { uint64_t one = 1; if (write(fd, &one, sizeof one) < 0) abort(); }
static int rung(int fd) { uint64_t n; return read(fd, &n, sizeof n) == sizeof n; }

/*
 * Where an address is: 127.0.0.1 and ::1 at port 1 of standin0, 127.0.0.2 and fd00::2 at port 1 of
 * standin1, 127.0.0.3 and fd00::3 at port 2 of standin1. Others are at no device.
 */
static int place(const struct sockaddr *a, int *device, int *port)
{
	int n = -1;

	if (a->sa_family == AF_INET) {
		n = (int)(ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) - INADDR_LOOPBACK);
	} else if (a->sa_family == AF_INET6) {
		const uint8_t *b = ((const struct sockaddr_in6 *)a)->sin6_addr.s6_addr;
		static const uint8_t local[15], unique[15] = {0xfd};
		if (!memcmp(b, local, 15) && b[15] == 1)
			n = 0;
		else if (!memcmp(b, unique, 15) && b[15] > 1)
			n = b[15] - 1;
	}
	if (n < 0 || n > 2)
		return fail(EADDRNOTAVAIL);
	*device = n > 0;
	*port = n > 1 ? 2 : 1;
	return contexts[*device] ? 0 : fail(ENODEV);
}

static int any(const struct sockaddr *a)
{
	return a->sa_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_addr.s_addr == INADDR_ANY :
	       IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static size_t size(const struct sockaddr *a) { return a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6); }

/* The port is at the same place in both families. */
static uint16_t *port_of(struct sockaddr *a) { return &((struct sockaddr_in *)a)->sin_port; }

/* The connection manager. */

struct rdma_event_channel *rdma_create_event_channel(void) { struct events *e = new(sizeof *e); e->c.fd = bell(); return &e->c; }
void rdma_destroy_event_channel(struct rdma_event_channel *c) { close(c->fd); end(c); }

static void tell(struct id *id, struct id *about, int kind, int status, const struct rdma_conn_param *p, int padded)
{
	struct events *ch = (struct events *)id->c.channel;
	struct event *e = new(sizeof *e);

	e->owner = id;
	e->e.id = &about->c;
	e->e.listen_id = about != id ? &id->c : NULL;
	e->e.event = kind;
	e->e.status = status;
	if (p) {
		e->e.param.conn.initiator_depth = p->responder_resources;
		e->e.param.conn.responder_resources = p->initiator_depth;
		if (p->private_data_len)
			memcpy(e->data, p->private_data, p->private_data_len);
		e->e.param.conn.private_data = e->data;
		e->e.param.conn.private_data_len = padded;
	}
	if (ch->last)
		ch->last->next = e;
	else
		ch->first = e;
	ch->last = e;
	ring(ch->c.fd);
}

int rdma_get_cm_event(struct rdma_event_channel *c, struct rdma_cm_event **out)
{
	struct events *ch = (struct events *)c;
	struct event *e;

	do {
		if (!rung(c->fd))
			return -1;
		pthread_mutex_lock(&mu);
		if ((e = ch->first)) {
			if (!(ch->first = e->next))
				ch->last = NULL;
			e->owner->unacked++;
			((struct id *)e->e.id)->hidden = 0;
		}
		pthread_mutex_unlock(&mu);
	} while (!e);
	*out = &e->e;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *ev)
{
	struct event *e = (struct event *)ev;

	pthread_mutex_lock(&mu);
	e->owner->unacked--;
	pthread_cond_broadcast(&acked);
	pthread_mutex_unlock(&mu);
	end(e);
	return 0;
}

int rdma_create_id(struct rdma_event_channel *c, struct rdma_cm_id **out, void *context, enum rdma_port_space ps)
{
	struct id *id = new(sizeof *id);

	id->c.channel = c;
	id->c.context = context;
	id->c.ps = ps;
	*out = &id->c;
	pthread_mutex_lock(&mu);
	id->another = ids;
	ids = id;
	pthread_mutex_unlock(&mu);
	return 0;
}

/* Forgets an id that nobody uses any more. */
static void end_id(struct id *id)
{
	for (struct id **p = &ids; *p; p = &(*p)->another)
		if (*p == id) {
			*p = id->another;
			break;
		}
	unuse(id->c.verbs);
	end(id);
}

/* Makes the GID of an address, as RoCE does. */
static void gid(uint8_t *out, const struct sockaddr *a)
{
	memset(out, 0, 16);
	if (a->sa_family == AF_INET6) {
		memcpy(out, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
	} else {
		out[10] = out[11] = 0xff;
		memcpy(out + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
	}
}

/* Binds an id, whose address is known, to a device. */
static void use(struct rdma_cm_id *c, struct ibv_context *x, int port)
{
	if (!c->verbs && x)
		((struct context *)x)->ids++;
	c->verbs = x;
	c->port_num = port;
	gid(c->route.addr.addr.ibaddr.sgid.raw, (struct sockaddr *)&c->route.addr.src_addr);
}

static void breakqp(struct qp *);

/* Ends the connection of an id, whatever its state is. */
static void part(struct id *id)
{
	struct id *peer = id->peer;

	if (id->c.qp)
		breakqp((struct qp *)id->c.qp);
	if (peer) {
		if (peer->c.qp && id->connected)
			breakqp((struct qp *)peer->c.qp);
		tell(peer, peer, id->connected ? RDMA_CM_EVENT_DISCONNECTED : RDMA_CM_EVENT_REJECTED, id->connected ? 0 : 28, NULL, 0);
		peer->peer = NULL;
	}
	id->peer = NULL;
}

int rdma_destroy_id(struct rdma_cm_id *c)
{
	struct id *id = (struct id *)c;
	struct events *ch = (struct events *)c->channel;

	pthread_mutex_lock(&mu);
	for (struct id **p = &listeners; *p; p = &(*p)->next)
		if (*p == id) {
			*p = id->next;
			break;
		}
	part(id);
	ch->last = NULL;
	for (struct event **p = &ch->first; *p;) {
		struct event *e = *p;
		if (e->owner != id && e->e.id != c) {
			ch->last = e;
			p = &e->next;
			continue;
		}
		*p = e->next;
		if (e->e.event == RDMA_CM_EVENT_CONNECT_REQUEST && e->e.id != c) {
			part((struct id *)e->e.id);
			end_id((struct id *)e->e.id);
		}
		end(e);
	}
	while (id->unacked)
		pthread_cond_wait(&acked, &mu);
	end_id(id);
	pthread_mutex_unlock(&mu);
	return 0;
}

static void away(int device);

int rdma_bind_addr(struct rdma_cm_id *c, struct sockaddr *a)
{
	struct sockaddr *at = (struct sockaddr *)&c->route.addr.src_addr;
	int device = -1, port = 0, rc, gone = 0;

	pthread_mutex_lock(&mu);
	rc = any(a) ? 0 : place(a, &device, &port);
	if (!rc) {
		memcpy(at, a, size(a));
		if (!*port_of(at))
			*port_of(at) = htons(ports++);
		if (device >= 0)
			use(c, &contexts[device]->c, port);
		if (device >= 0 && (gone = fault(F_GONE))) {
			__atomic_store_n(&control->fault, F_NONE, __ATOMIC_SEQ_CST);
			away(device);
		}
	}
	pthread_mutex_unlock(&mu);
	if (gone)
		usleep(20000); /* so that the event comes before this call returns */
	return rc;
}

int rdma_listen(struct rdma_cm_id *c, int backlog)
{
	struct id *id = (struct id *)c;

	(void)backlog;
	pthread_mutex_lock(&mu);
	control->listen_tos = id->tos;
	id->next = listeners;
	listeners = id;
	pthread_mutex_unlock(&mu);
	return 0;
}

static void soon(struct rdma_cm_id *c, int f, int ok, int bad)
{
	struct id *id = (struct id *)c;
	uint32_t e = fault(f);

	pthread_mutex_lock(&mu);
	tell(id, id, e ? bad : ok, -(int)e, NULL, 0);
	pthread_mutex_unlock(&mu);
}

/* Without a source address, every route leaves from standin0. */
int rdma_resolve_addr(struct rdma_cm_id *c, struct sockaddr *from, struct sockaddr *to, int ms)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};

	(void)ms;
	if (from && from->sa_family != to->sa_family)
		return fail(EINVAL);
	memcpy(&c->route.addr.dst_addr, to, size(to));
	if (!from)
		from = to->sa_family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	if (rdma_bind_addr(c, from))
		return -1;
	((struct id *)c)->used_tos = ((struct id *)c)->tos;
	soon(c, F_ADDR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR);
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *c, int ms)
{
	(void)ms;
	soon(c, F_ROUTE, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR);
	return 0;
}

/* Asks the listener l to accept the id from, which may be NULL. */
static void request(struct id *l, struct id *from, const struct rdma_conn_param *p, struct ibv_context *x, int port)
{
	struct id *child = new(sizeof *child);

	child->c.channel = l->c.channel;
	child->hidden = 1;
	child->another = ids;
	ids = child;
	if (from) {
		child->c.route.addr.src_storage = from->c.route.addr.dst_storage;
		child->c.route.addr.dst_storage = from->c.route.addr.src_storage;
		child->peer = from;
		from->peer = child;
	} else {
		child->c.route.addr.src_storage = child->c.route.addr.dst_storage = l->c.route.addr.src_storage;
	}
	use(&child->c, x, port);
	tell(l, child, RDMA_CM_EVENT_CONNECT_REQUEST, 0, p, 56);
}

int rdma_connect(struct rdma_cm_id *c, struct rdma_conn_param *p)
{
	struct id *id = (struct id *)c, *l;
	struct sockaddr *to = (struct sockaddr *)&c->route.addr.dst_addr, *at;
	uint32_t kind = fault(F_CONNECT);
	int device = -1, port = 0;

	if (fault(F_SILENT))
		return 0;
	while (fault(F_BLOCK)) /* as siw does while nobody answers its SYN */
		usleep(1000);
	pthread_mutex_lock(&mu);
	if (fault(F_UNKNOWN)) /* events that no step expects, before the one that it does */
		tell(id, id, RDMA_CM_EVENT_ADDR_CHANGE, 0, NULL, 0);
	control->tos = id->used_tos;
	for (l = place(to, &device, &port) ? NULL : listeners; l; l = l->next) {
		at = (struct sockaddr *)&l->c.route.addr.src_addr;
		if (*port_of(at) == *port_of(to) && at->sa_family == to->sa_family && (any(at) || l->c.verbs == &contexts[device]->c))
			break;
	}
	if (kind || !l) {
		tell(id, id, kind ? kind : RDMA_CM_EVENT_REJECTED, kind ? -ETIMEDOUT : 8, NULL, 0);
	} else {
		request(l, id, p, &contexts[device]->c, port);
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_accept(struct rdma_cm_id *c, struct rdma_conn_param *p)
{
	struct id *id = (struct id *)c;
	int rc = 0;

	pthread_mutex_lock(&mu);
	if (id->peer) {
		id->connected = id->peer->connected = 1;
		tell(id->peer, id->peer, RDMA_CM_EVENT_ESTABLISHED, 0, p, 196);
		tell(id, id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0);
	} else {
		rc = fail(EINVAL);
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

int rdma_reject(struct rdma_cm_id *c, const void *data, uint8_t len)
{
	struct id *id = (struct id *)c;
	struct rdma_conn_param p = {.private_data = data, .private_data_len = len};

	pthread_mutex_lock(&mu);
	if (id->peer) {
		tell(id->peer, id->peer, RDMA_CM_EVENT_REJECTED, 28, &p, 148);
		id->peer->peer = NULL;
		id->peer = NULL;
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *c)
{
	struct id *id = (struct id *)c;

	pthread_mutex_lock(&mu);
	if (id->connected && !id->over) {
		id->over = 1;
		tell(id, id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
	}
	part(id);
	pthread_mutex_unlock(&mu);
	return 0;
}

static int command(void);

int rdma_set_option(struct rdma_cm_id *c, int level, int name, void *v, size_t n)
{
	if (!c)
		return command();
	if (level == RDMA_OPTION_ID && name == RDMA_OPTION_ID_TOS && n == 1)
		((struct id *)c)->tos = *(uint8_t *)v;
	return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type e)
{
	static const char *const names[] = {"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST",
		"CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL"};
	static __thread char text[64];

	snprintf(text, sizeof text, "RDMA_CM_EVENT_%s", (unsigned)e < sizeof names / sizeof *names ? names[e] : "UNKNOWN");
	return text;
}

/* Objects of the device. */

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	if (((struct context *)c)->removed)
		return EIO;
	memset(a, 0, sizeof *a);
	a->max_sge = a->max_sge_rd = 16;
	a->max_qp_wr = 16384;
	a->max_cqe = 32767;
	a->max_mr = 1 << 16;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 128;
	if (control->windows != W_NONE) {
		a->max_mw = 1 << 16;
		a->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	}
	return 0;
}

/* verbs.h declares the function with the struct of an older release. */
int query_port(struct ibv_context *, uint8_t, struct ibv_port_attr *) __asm__("ibv_query_port");
int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *p)
{
	(void)c, (void)port;
	memset(p, 0, sizeof *p);
	p->state = fault(F_PORT) ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	p->link_layer = IBV_LINK_LAYER_ETHERNET;
	p->max_msg_sz = 1 << 30;
	return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status s)
{
	static __thread char text[32];

	snprintf(text, sizeof text, "status %d", s);
	return text;
}

const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }

static void report(struct context *x, int type, uint64_t object)
{
	if (x->n == 64)
		return;
	x->events[(x->first + x->n++) % 64] = (struct async){type, object};
	ring(x->c.async_fd);
}

/* Reports whether the object of an asynchronous event is a queue pair or a completion queue. */
static int of_queue(int type) { return type >= 0 && type < IBV_EVENT_DEVICE_FATAL; }

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	struct context *x = (struct context *)c;
	struct async a;
	int rc = -1;

	pthread_mutex_lock(&mu);
	if (x->n && rung(c->async_fd)) {
		a = x->events[x->first];
		x->first = (x->first + 1) % 64;
		x->n--;
		e->event_type = a.type;
		if (of_queue(a.type)) {
			e->element.qp = (struct ibv_qp *)(uintptr_t)a.object;
			for (int i = 0; i < 8; i++)
				if (!reported[i]) {
					reported[i] = e->element.qp;
					break;
				}
		} else {
			e->element.port_num = (int)a.object;
		}
		rc = 0;
	} else {
		errno = x->removed ? EIO : EAGAIN;
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

void ibv_ack_async_event(struct ibv_async_event *e)
{
	if (!of_queue(e->event_type))
		return;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < 8; i++)
		if (reported[i] == e->element.qp) {
			reported[i] = NULL;
			break;
		}
	pthread_cond_broadcast(&acked);
	pthread_mutex_unlock(&mu);
}

/* Returns when no event of a queue is to come or is unacknowledged. */
static void await_acks(struct ibv_context *c, void *object)
{
	struct context *x = (struct context *)c;

	for (int i = 0; i < x->n; i++) {
		struct async *a = &x->events[(x->first + i) % 64];
		if (of_queue(a->type) && a->object == (uintptr_t)object)
			*a = (struct async){IBV_EVENT_SRQ_LIMIT_REACHED, 0};
	}
	for (int i = 0; i < 8; i++)
		while (reported[i] && reported[i] == object)
			pthread_cond_wait(&acked, &mu);
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *pd;

	if (((struct context *)c)->removed)
		return fail(EIO), NULL;
	if (fault(F_PD))
		return fail(fault(F_PD)), NULL;
	pd = new(sizeof *pd);
	pd->context = c;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	int busy = 0;

	pthread_mutex_lock(&mu);
	for (int i = 0; i < 1024; i++)
		for (struct mr *m = mrs[i]; m; m = m->next)
			busy |= m->c.pd == pd;
	for (struct mw *m = mws; m; m = m->next)
		busy |= m->c.pd == pd;
	pthread_mutex_unlock(&mu);
	if (busy)
		return EBUSY;
	end(pd);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct completions *ch = new(sizeof *ch);

	ch->c.context = c;
	ch->c.fd = bell();
	return &ch->c;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *c)
{
	if (c->refcnt)
		return EBUSY;
	close(c->fd);
	end(c);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int depth, void *token, struct ibv_comp_channel *ch, int vector)
{
	struct cq *q;

	(void)vector;
	if (fault(F_CQ))
		return fail(fault(F_CQ)), NULL;
	q = new(sizeof *q);
	q->c.context = c;
	q->c.cq_context = token;
	q->c.channel = ch;
	q->depth = depth;
	q->wc = calloc(depth, sizeof *q->wc);
	pthread_mutex_lock(&mu);
	ch->refcnt++;
	q->another = cqs;
	cqs = q;
	pthread_mutex_unlock(&mu);
	return &q->c;
}

int ibv_destroy_cq(struct ibv_cq *c)
{
	struct cq *q = (struct cq *)c;
	struct completions *ch = (struct completions *)c->channel;

	pthread_mutex_lock(&mu);
	ch->last = NULL;
	for (struct cq **p = &ch->first; *p;)
		if (*p == q) {
			*p = q->next;
		} else {
			ch->last = *p;
			p = &(*p)->next;
		}
	ch->c.refcnt--;
	await_acks(c->context, c);
	for (struct cq **p = &cqs; *p; p = &(*p)->another)
		if (*p == q) {
			*p = q->another;
			break;
		}
	pthread_mutex_unlock(&mu);
	free(q->wc);
	end(q);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **out, void **token)
{
	struct completions *ch = (struct completions *)c;
	struct cq *q;

	do {
		if (!rung(c->fd))
			return -1;
		pthread_mutex_lock(&mu);
		if ((q = ch->first)) {
			if (!(ch->first = q->next))
				ch->last = NULL;
			q->next = NULL;
			q->queued = 0;
			*out = &q->c;
			*token = q->c.cq_context;
		}
		pthread_mutex_unlock(&mu);
	} while (!q);
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *c, unsigned n) { (void)c, (void)n; }

static int notify(struct ibv_cq *c, int solicited)
{
	(void)solicited;
	if (fault(F_ARM))
		return fault(F_ARM);
	pthread_mutex_lock(&mu);
	((struct cq *)c)->armed = 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

/* Says that a completion queue has something, if anyone has asked. */
static void wake(struct cq *q)
{
	struct completions *ch = (struct completions *)q->c.channel;

	if (!q->armed || q->queued)
		return;
	q->armed = 0;
	q->queued = 1;
	q->next = NULL;
	if (ch->last)
		ch->last->next = q;
	else
		ch->first = q;
	ch->last = q;
	ring(ch->c.fd);
}

static struct ibv_wc *complete(struct ibv_cq *c, uint64_t id, int status, int opcode, uint32_t bytes)
{
	struct cq *q = (struct cq *)c;
	struct ibv_wc *w = &q->wc[(q->head + q->n) % q->depth];

	if (q->n == q->depth) {
		if (!q->lied)
			abort(); /* the provider must not let its queue overflow */
		q->n--; /* it believed what was not so, and loses a completion */
	}
	memset(w, 0, sizeof *w);
	w->wr_id = id;
	w->status = status;
	w->opcode = opcode;
	w->byte_len = bytes;
	q->n++;
	wake(q);
	return w;
}

static int poll_cq(struct ibv_cq *c, int n, struct ibv_wc *out)
{
	struct cq *q = (struct cq *)c;
	int got = 0;

	if (fault(F_POLL))
		return -(int)fault(F_POLL);
	if (fault(F_ONE) && n > 1)
		n = 1;
	/* As on devices, a poll that finds nothing waits for nobody. */
	if (!__atomic_load_n(&q->n, __ATOMIC_ACQUIRE) && !__atomic_load_n(&q->mores, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&mu);
	for (; got < n && q->mores; got++, q->mores--) {
		out[got] = q->more[0];
		memmove(q->more, q->more + 1, sizeof *q->more * (q->mores - 1));
	}
	for (; got < n && q->n; got++, q->n--) {
		out[got] = q->wc[q->head];
		q->head = (q->head + 1) % q->depth;
	}
	pthread_mutex_unlock(&mu);
	return got;
}

int rdma_create_qp(struct rdma_cm_id *c, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct qp *q;

	if (fault(F_QP))
		return fail(fault(F_QP));
	q = new(sizeof *q);
	q->c.context = c->verbs;
	q->c.pd = pd;
	q->c.send_cq = a->send_cq;
	q->c.recv_cq = a->recv_cq;
	q->id = (struct id *)c;
	q->depth = a->cap.max_recv_wr;
	q->r = calloc(q->depth, sizeof *q->r);
	c->qp = &q->c;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *c)
{
	struct qp *q = (struct qp *)c->qp;
	int bound = 0;

	pthread_mutex_lock(&mu);
	c->qp = NULL;
	await_acks(q->c.context, &q->c);
	for (struct mw *m = mws; m; m = m->next)
		bound |= m->qp == q;
	pthread_mutex_unlock(&mu);
	if (bound) /* EBUSY, which librdmacm does not tell: the queue pair stays */
		return;
	free(q->r);
	end(q);
}

/* Flushes the Receives: the queue pair is in its error state. */
static void breakqp(struct qp *q)
{
	q->broken = 1;
	for (; q->n; q->n--) {
		complete(q->c.recv_cq, q->r[q->head].id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
		q->head = (q->head + 1) % q->depth;
	}
}

/* Memory. */

/* Returns a key that none had before, and that the one before does not tell. */
static uint32_t key(void)
{
	uint32_t k = keys++;

	k = (k ^ k >> 16) * 0x85ebca6bu;
	k = (k ^ k >> 13) * 0xc2b2ae35u;
	return k ^ k >> 16;
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *at, size_t n, uint64_t iova, int access)
{
	struct mr *m;

	if (fault(F_REG_MR))
		return fail(fault(F_REG_MR)), NULL;
	m = new(sizeof *m);
	m->c.context = pd->context;
	m->c.pd = pd;
	m->c.addr = at;
	m->c.length = n;
	m->iova = iova;
	m->access = access;
	pthread_mutex_lock(&mu);
	m->c.lkey = m->c.rkey = key();
	m->next = mrs[m->c.lkey % 1024];
	mrs[m->c.lkey % 1024] = m;
	pthread_mutex_unlock(&mu);
	return &m->c;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t n, int access) { return ibv_reg_mr_iova(pd, at, n, (uintptr_t)at, access); }

int ibv_dereg_mr(struct ibv_mr *c)
{
	if (fault(F_DEREG_MR))
		return fault(F_DEREG_MR);
	pthread_mutex_lock(&mu);
	if (((struct mr *)c)->bound) {
		pthread_mutex_unlock(&mu);
		return EINVAL;
	}
	for (struct mr **p = &mrs[c->lkey % 1024]; *p; p = &(*p)->next)
		if (&(*p)->c == c) {
			*p = (*p)->next;
			break;
		}
	pthread_mutex_unlock(&mu);
	end(c);
	return 0;
}

static uint8_t *memory(struct ibv_pd *, uint32_t, uint64_t, uint64_t, int);

/* Memory windows. The list has them all; the upper 24 bits of a key tell which it is. */

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct mw *m, *other;

	if (fault(F_WINDOW))
		return fail(fault(F_WINDOW)), NULL;
	m = new(sizeof *m);
	m->c.context = pd->context;
	m->c.pd = pd;
	m->c.type = type;
	pthread_mutex_lock(&mu);
	do {
		m->c.rkey = m->key = key();
		for (other = mws; other && other->key >> 8 != m->key >> 8; other = other->next)
			;
	} while (other || !(m->key >> 8));
	m->next = mws;
	mws = m;
	pthread_mutex_unlock(&mu);
	return &m->c;
}

static void unbind(struct mw *m)
{
	m->mr->bound--;
	m->mr = NULL;
	m->qp = NULL;
}

static int dealloc_mw(struct ibv_mw *c)
{
	struct mw *m = (struct mw *)c;

	pthread_mutex_lock(&mu);
	for (struct mw **p = &mws; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			break;
		}
	if (m->mr)
		unbind(m);
	pthread_mutex_unlock(&mu);
	end(m);
	return 0;
}

static struct mw *window(uint32_t key)
{
	struct mw *m = mws;

	while (m && m->key != key)
		m = m->next;
	return m;
}

static int bind_window(struct qp *q, struct ibv_send_wr *w)
{
	struct mw *m = (struct mw *)w->bind_mw.mw;
	struct ibv_mw_bind_info *b = &w->bind_mw.bind_info;
	struct mr *r = (struct mr *)b->mr;

	if (fault(F_BIND))
		return fault(F_BIND);
	if (m->mr || m->c.type != IBV_MW_TYPE_2 || m->c.rkey != m->key || w->bind_mw.rkey >> 8 != m->key >> 8 || !b->length ||
	    m->c.pd != q->c.pd || r->c.pd != q->c.pd || !(r->access & IBV_ACCESS_MW_BIND) ||
	    (b->mw_access_flags & IBV_ACCESS_REMOTE_WRITE && !(r->access & IBV_ACCESS_LOCAL_WRITE)) ||
	    b->addr < r->iova || b->length > r->c.length || b->addr - r->iova > r->c.length - b->length)
		return IBV_WC_MW_BIND_ERR;
	m->key = w->bind_mw.rkey;
	m->qp = q;
	m->mr = r;
	m->at = b->addr;
	m->n = b->length;
	m->access = b->mw_access_flags;
	r->bound++;
	return IBV_WC_SUCCESS;
}

/* Invalidates the window of a key for a queue pair. Reports whether it has. */
static int invalidate(struct qp *q, uint32_t key)
{
	struct mw *m = window(key);
	int loose = control->windows == W_LOOSE;

	if (m && loose && !m->mr)
		abort(); /* the kernel would stop */
	if (!m || !m->mr || (!loose && m->qp != q))
		return 0;
	unbind(m);
	return 1;
}

/* Returns the memory behind a key of the peer's, or NULL if the key does not grant access to it. */
static uint8_t *exposed(struct qp *q, uint32_t key, uint64_t at, uint64_t n, int access)
{
	struct mw *m = window(key);
	uint64_t from, length;

	if (!m)
		return memory(q->c.pd, key, at, n, access);
	if (!m->mr || m->qp != q || (m->access & access) != access)
		return NULL;
	from = control->windows == W_LOOSE ? m->mr->iova : m->at;
	length = control->windows == W_LOOSE ? m->mr->c.length : m->n;
	if (at < from || n > length || at - from > length - n)
		return NULL;
	return (uint8_t *)m->mr->c.addr + (at - m->mr->iova);
}

/* Returns the memory behind a key, or NULL if the key does not grant access to it. */
static uint8_t *memory(struct ibv_pd *pd, uint32_t key, uint64_t at, uint64_t n, int access)
{
	for (struct mr *m = mrs[key % 1024]; m; m = m->next)
		if (m->c.lkey == key && m->c.pd == pd && (m->access & access) == access && at >= m->iova && n <= m->c.length &&
		    at - m->iova <= m->c.length - n)
			return (uint8_t *)m->c.addr + (at - m->iova);
	return NULL;
}

/* Posting. */

/* Carries out a Work Request. Returns its status, and in *theirs that of the peer's Receive. */
static int carry(struct qp *q, struct qp *peer, struct ibv_send_wr *w, uint64_t total)
{
	uint8_t *to = NULL, *local;
	int read = w->opcode == IBV_WR_RDMA_READ, send = w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_INV;
	struct receive *r = send && peer->n ? &peer->r[peer->head] : NULL;

	if (send && !r)
		return IBV_WC_RNR_RETRY_EXC_ERR;
	if (w->opcode == IBV_WR_SEND_WITH_INV && !invalidate(peer, w->invalidate_rkey)) /* as rxe answers for the key of a region */
		return IBV_WC_REM_INV_REQ_ERR;
	if (r) {
		peer->head = (peer->head + 1) % peer->depth;
		peer->n--;
		if (total > r->sge.length) {
			complete(peer->c.recv_cq, r->id, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, 0);
			return IBV_WC_REM_INV_REQ_ERR;
		}
		to = memory(peer->c.pd, r->sge.lkey, r->sge.addr, r->sge.length, IBV_ACCESS_LOCAL_WRITE);
		if (!to && total) {
			complete(peer->c.recv_cq, r->id, IBV_WC_LOC_PROT_ERR, IBV_WC_RECV, 0);
			return IBV_WC_REM_OP_ERR;
		}
	} else {
		to = exposed(peer, w->wr.rdma.rkey, w->wr.rdma.remote_addr, total, read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
		if (!to)
			return IBV_WC_REM_ACCESS_ERR;
	}
	for (int i = 0; i < w->num_sge; i++) {
		struct ibv_sge *s = &w->sg_list[i];
		local = w->send_flags & IBV_SEND_INLINE ? (uint8_t *)(uintptr_t)s->addr :
		        memory(q->c.pd, s->lkey, s->addr, s->length, read ? IBV_ACCESS_LOCAL_WRITE : 0);
		if (!local)
			return IBV_WC_LOC_PROT_ERR;
		memmove(read ? local : to, read ? to : local, s->length);
		to += s->length;
	}
	if (r) {
		struct ibv_wc *wc = complete(peer->c.recv_cq, r->id, IBV_WC_SUCCESS, IBV_WC_RECV, total);

		if (w->opcode == IBV_WR_SEND_WITH_INV && !fault(F_UNTOLD)) {
			wc->wc_flags = control->windows == W_LOOSE ? 1 << 2 : IBV_WC_WITH_INV;
			wc->invalidated_rkey = w->invalidate_rkey;
		}
	}
	return IBV_WC_SUCCESS;
}

/* Carries out a Work Request that the peer has no part in. Returns -1 if it never completes. */
static int local(struct qp *q, struct ibv_send_wr *w)
{
	if (w->opcode == IBV_WR_BIND_MW)
		return bind_window(q, w);
	if (fault(F_INVALIDATE))
		return -1;
	return invalidate(q, w->invalidate_rkey) ? IBV_WC_SUCCESS : IBV_WC_LOC_QP_OP_ERR;
}

static int post_send(struct ibv_qp *c, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	struct qp *q = (struct qp *)c;
	int rc = 0, nth = 0;

	if (fault(F_POST_SEND)) {
		*bad = w;
		return fault(F_POST_SEND);
	}
	pthread_mutex_lock(&mu);
	for (; w; w = w->next) {
		struct qp *peer = q->id->peer ? (struct qp *)q->id->peer->c.qp : NULL;
		int status = q->broken || !peer || peer->broken ? IBV_WC_WR_FLUSH_ERR : (int)fault(F_STATUS);
		uint64_t total = 0;

		if (fault(F_BATCH_SEND) && nth++ == (int)fault(F_BATCH_SEND)) {
			*bad = w;
			rc = ENOMEM;
			break;
		}
		for (int i = 0; i < w->num_sge; i++)
			total += w->sg_list[i].length;
		if (fault(F_REMOVAL)) {
			tell(q->id, q->id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0);
			status = IBV_WC_WR_FLUSH_ERR;
		}
		if (!status)
			status = w->opcode == IBV_WR_BIND_MW || w->opcode == IBV_WR_LOCAL_INV ? local(q, w) : carry(q, peer, w, total);
		if (status < 0)
			continue;
		if (status || w->send_flags & IBV_SEND_SIGNALED)
			complete(c->send_cq, w->wr_id, status,
			         w->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : w->opcode == IBV_WR_RDMA_WRITE ? IBV_WC_RDMA_WRITE : IBV_WC_SEND, total);
		if (status) {
			breakqp(q);
			if (peer)
				breakqp(peer);
		}
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

static int post_recv(struct ibv_qp *c, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	struct qp *q = (struct qp *)c;
	int rc = 0, nth = 0;

	if (fault(F_POST_RECV)) {
		*bad = w;
		return fault(F_POST_RECV);
	}
	pthread_mutex_lock(&mu);
	for (; w; w = w->next) {
		if (fault(F_BATCH_RECV) && nth++ == (int)fault(F_BATCH_RECV)) {
			*bad = w;
			rc = ENOMEM;
			break;
		}
		if (q->broken) {
			complete(c->recv_cq, w->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
		} else if (q->n == q->depth) {
			*bad = w;
			rc = ENOMEM;
			break;
		} else {
			q->r[(q->head + q->n++) % q->depth] = (struct receive){w->wr_id, w->sg_list[0]};
		}
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

/* Commands. */

/* Removes a device: its queue pairs break, and everybody who knows an id on it is told. */
static void away(int device)
{
	struct context *x = contexts[device];

	if (!x)
		return;
	contexts[device] = NULL;
	x->removed = 1;
	ring(x->c.async_fd);
	for (struct id *id = ids; id; id = id->another) {
		if (id->c.verbs != &x->c)
			continue;
		if (id->c.qp)
			breakqp((struct qp *)id->c.qp);
		if (!id->hidden)
			tell(id, id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0);
	}
	x->ids++; /* closes it if nobody has an id on it */
	unuse(&x->c);
}

/* Carries out the command of the page. */
static int command(void)
{
	int64_t *a = control->args;
	void *object = (void *)(uintptr_t)control->object;
	static uint8_t octets[256];
	struct rdma_conn_param p = {.private_data = octets, .private_data_len = (uint8_t)a[2],
		.responder_resources = (uint8_t)a[3], .initiator_depth = (uint8_t)a[4]};
	int rc = 0;

	pthread_mutex_lock(&mu);
	switch (control->command) {
	case C_ASYNC: /* event args[0] of the object, on device args[1] */
		if (contexts[a[1]])
			report(contexts[a[1]], (int)a[0], control->object);
		break;
	case C_COMPLETE: { /* args: number, status, opcode, octets, flags, key of the completion */
		struct cq *q = cqs;
		while (q && q != object)
			q = q->another;
		if (!q || q->mores == COMMANDED)
			break; /* a queue that is gone has no completions */
		q->lied = 1;
		q->more[q->mores++] = (struct ibv_wc){.wr_id = (uint64_t)a[0], .status = (int)a[1], .opcode = (int)a[2],
			.byte_len = (uint32_t)a[3], .wc_flags = (unsigned)a[4], .invalidated_rkey = (uint32_t)a[5]};
		wake(q);
		break;
	}
	case C_EVENT: /* args: event and status, octets of private data, Reads, Reads, is it about a new id */
		for (struct id *id = ids; id; id = id->another)
			if (id == object && !id->hidden) {
				if (!a[5])
					tell(id, id, (int)a[0], (int)a[1], a[2] ? &p : NULL, p.private_data_len);
				else if (id->c.verbs)
					request(id, NULL, &p, id->c.verbs, id->c.port_num);
				break;
			}
		break;
	case C_REMOVE:
		away((int)a[0]);
		break;
	case C_ADD:
		if (!contexts[a[0]])
			add((int)a[0]);
		break;
	default:
		rc = fail(EINVAL);
	}
	pthread_mutex_unlock(&mu);
	return rc;
}
