/*
 * Stands for libibverbs and librdmacm in tests: one device in memory, whose queue pairs are all in
 * this process. A Work Request is carried out when it is posted. Both libraries are this one file.
 *
 * The file that RDMABRIDGE_STANDIN names is a page that the tests share: they set faults there, and
 * read how many objects are alive.
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
       F_CONNECT, F_SILENT, F_UNKNOWN, F_ARM };

static struct control {
	uint32_t fault, value; /* set by the tests */
	int32_t live;          /* objects */
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
	int unacked, listening, connected, over;
};
struct completions { struct ibv_comp_channel c; struct cq *first, *last; };
struct cq { struct ibv_cq c; int depth, n, head, armed, queued; struct cq *next; struct ibv_wc *wc; };
struct receive { uint64_t id; struct ibv_sge sge; };
struct qp { struct ibv_qp c; struct id *id; struct receive *r; int depth, n, head, broken; };
struct mr { struct ibv_mr c; uint64_t iova; int access; struct mr *next; };

static struct id *listeners;
static struct mr *mrs[1024];
static uint32_t keys = 1;
static uint16_t ports = 30000;

static int poll_cq(struct ibv_cq *, int, struct ibv_wc *);
static int notify(struct ibv_cq *, int);
static int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);

static struct ibv_device dev = {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "standin0"};
static struct ibv_context ctx = {.device = &dev, .async_fd = -1, .num_comp_vectors = 1,
	.ops = {.poll_cq = poll_cq, .req_notify_cq = notify, .post_send = post_send, .post_recv = post_recv}};

__attribute__((constructor)) static void attach(void)
{
	const char *name = getenv("RDMABRIDGE_STANDIN");
	int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	ctx.async_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (p != MAP_FAILED)
		control = p;
	if (fd >= 0)
		close(fd);
}

static void *new(size_t n) { live(1); return calloc(1, n); }
static void end(void *p) { live(-1); free(p); }
static void ring(int fd) { uint64_t one = 1; if (write(fd, &one, sizeof one) < 0) abort(); }
static int rung(int fd) { uint64_t n; return read(fd, &n, sizeof n) == sizeof n; }
static int bell(void) { return eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC); }

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
	return 0;
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
			end(e->e.id);
		}
		end(e);
	}
	while (id->unacked)
		pthread_cond_wait(&acked, &mu);
	pthread_mutex_unlock(&mu);
	end(id);
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *c, struct sockaddr *a)
{
	struct sockaddr_in *at = (struct sockaddr_in *)&c->route.addr.src_addr;

	if (a->sa_family != AF_INET)
		return fail(EADDRNOTAVAIL);
	memcpy(at, a, sizeof *at);
	pthread_mutex_lock(&mu);
	if (!at->sin_port)
		at->sin_port = htons(ports++);
	pthread_mutex_unlock(&mu);
	c->verbs = &ctx;
	c->port_num = 1;
	return 0;
}

int rdma_listen(struct rdma_cm_id *c, int backlog)
{
	struct id *id = (struct id *)c;

	(void)backlog;
	pthread_mutex_lock(&mu);
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

int rdma_resolve_addr(struct rdma_cm_id *c, struct sockaddr *from, struct sockaddr *to, int ms)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	(void)from, (void)ms;
	if (to->sa_family != AF_INET)
		return fail(ENETUNREACH);
	memcpy(&c->route.addr.dst_addr, to, sizeof at);
	rdma_bind_addr(c, (struct sockaddr *)&at);
	soon(c, F_ADDR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR);
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *c, int ms)
{
	(void)ms;
	soon(c, F_ROUTE, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR);
	return 0;
}

int rdma_connect(struct rdma_cm_id *c, struct rdma_conn_param *p)
{
	struct id *id = (struct id *)c, *l, *child;
	uint32_t kind = fault(F_CONNECT);

	if (fault(F_SILENT))
		return 0;
	pthread_mutex_lock(&mu);
	if (fault(F_UNKNOWN)) /* events that no step expects, before the one that it does */
		tell(id, id, RDMA_CM_EVENT_ADDR_CHANGE, 0, NULL, 0);
	for (l = listeners; l; l = l->next)
		if (((struct sockaddr_in *)&l->c.route.addr.src_addr)->sin_port == ((struct sockaddr_in *)&c->route.addr.dst_addr)->sin_port)
			break;
	if (kind || !l) {
		tell(id, id, kind ? kind : RDMA_CM_EVENT_REJECTED, kind ? -ETIMEDOUT : 8, NULL, 0);
	} else {
		child = new(sizeof *child);
		child->c.channel = l->c.channel;
		child->c.verbs = &ctx;
		child->c.port_num = 1;
		child->c.route.addr.src_storage = c->route.addr.dst_storage;
		child->c.route.addr.dst_storage = c->route.addr.src_storage;
		child->peer = id;
		id->peer = child;
		tell(l, child, RDMA_CM_EVENT_CONNECT_REQUEST, 0, p, 56);
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

int rdma_set_option(struct rdma_cm_id *c, int level, int name, void *v, size_t n)
{
	(void)c, (void)level, (void)name, (void)v, (void)n;
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
	(void)c;
	memset(a, 0, sizeof *a);
	a->max_sge = a->max_sge_rd = 16;
	a->max_qp_wr = 16384;
	a->max_cqe = 32767;
	a->max_mr = 1 << 16;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 128;
	return 0;
}

/* verbs.h declares the function with the struct of an older release. */
int query_port(struct ibv_context *, uint8_t, struct ibv_port_attr *) __asm__("ibv_query_port");
int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *p)
{
	(void)c, (void)port;
	memset(p, 0, sizeof *p);
	p->state = IBV_PORT_ACTIVE;
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

/* The device reports nothing by itself. */
int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	(void)c, (void)e;
	errno = EAGAIN;
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *pd;

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

static void complete(struct ibv_cq *c, uint64_t id, int status, int opcode, uint32_t bytes)
{
	struct cq *q = (struct cq *)c;
	struct completions *ch = (struct completions *)c->channel;
	struct ibv_wc *w = &q->wc[(q->head + q->n) % q->depth];

	if (q->n == q->depth)
		abort(); /* the provider must not let its queue overflow */
	memset(w, 0, sizeof *w);
	w->wr_id = id;
	w->status = status;
	w->opcode = opcode;
	w->byte_len = bytes;
	q->n++;
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

static int poll_cq(struct ibv_cq *c, int n, struct ibv_wc *out)
{
	struct cq *q = (struct cq *)c;
	int got = 0;

	if (fault(F_POLL))
		return -(int)fault(F_POLL);
	if (fault(F_ONE) && n > 1)
		n = 1;
	pthread_mutex_lock(&mu);
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
	q->c.context = &ctx;
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

	pthread_mutex_lock(&mu);
	c->qp = NULL;
	pthread_mutex_unlock(&mu);
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
	m->c.context = &ctx;
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
	pthread_mutex_lock(&mu);
	for (struct mr **p = &mrs[c->lkey % 1024]; *p; p = &(*p)->next)
		if (&(*p)->c == c) {
			*p = (*p)->next;
			break;
		}
	pthread_mutex_unlock(&mu);
	end(c);
	return 0;
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
	if (w->opcode == IBV_WR_SEND_WITH_INV) /* as rxe answers for the key of a memory region */
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
		to = memory(peer->c.pd, w->wr.rdma.rkey, w->wr.rdma.remote_addr, total, read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
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
	if (r)
		complete(peer->c.recv_cq, r->id, IBV_WC_SUCCESS, IBV_WC_RECV, total);
	return IBV_WC_SUCCESS;
}

static int post_send(struct ibv_qp *c, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	struct qp *q = (struct qp *)c;

	if (fault(F_POST_SEND)) {
		*bad = w;
		return fault(F_POST_SEND);
	}
	pthread_mutex_lock(&mu);
	for (; w; w = w->next) {
		struct qp *peer = q->id->peer ? (struct qp *)q->id->peer->c.qp : NULL;
		int status = q->broken || !peer || peer->broken ? IBV_WC_WR_FLUSH_ERR : (int)fault(F_STATUS);
		uint64_t total = 0;

		for (int i = 0; i < w->num_sge; i++)
			total += w->sg_list[i].length;
		if (fault(F_REMOVAL)) {
			tell(q->id, q->id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0);
			status = IBV_WC_WR_FLUSH_ERR;
		}
		if (!status)
			status = carry(q, peer, w, total);
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
	return 0;
}

static int post_recv(struct ibv_qp *c, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	struct qp *q = (struct qp *)c;
	int rc = 0;

	if (fault(F_POST_RECV)) {
		*bad = w;
		return fault(F_POST_RECV);
	}
	pthread_mutex_lock(&mu);
	for (; w; w = w->next) {
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
