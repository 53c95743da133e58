//go:build ibverbs

/*
 * Operation: rdma-core is opened at run time, so that the program starts on hosts without it. The
 * functions of the data path (ibv_post_send, ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq) are
 * inline functions of verbs.h, which call through the context; they need no symbol. All others are
 * called through the table below. ibv_reg_mr and ibv_query_port are macros too, which would call
 * symbols; their names are undefined here.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

_Static_assert(sizeof(vs_sge) == sizeof(struct ibv_sge), "vs_sge is ibv_sge");
_Static_assert((int)VS_LOCAL_WRITE == (int)IBV_ACCESS_LOCAL_WRITE && (int)VS_REMOTE_WRITE == (int)IBV_ACCESS_REMOTE_WRITE &&
               (int)VS_REMOTE_READ == (int)IBV_ACCESS_REMOTE_READ && (int)VS_BIND_WINDOWS == (int)IBV_ACCESS_MW_BIND, "access flags");

static struct {
	struct ibv_pd *(*ibv_alloc_pd)(struct ibv_context *);
	int (*ibv_dealloc_pd)(struct ibv_pd *);
	struct ibv_comp_channel *(*ibv_create_comp_channel)(struct ibv_context *);
	int (*ibv_destroy_comp_channel)(struct ibv_comp_channel *);
	struct ibv_cq *(*ibv_create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*ibv_destroy_cq)(struct ibv_cq *);
	int (*ibv_get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
	void (*ibv_ack_cq_events)(struct ibv_cq *, unsigned);
	struct ibv_mr *(*ibv_reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*ibv_reg_mr_iova)(struct ibv_pd *, void *, size_t, uint64_t, int);
	int (*ibv_dereg_mr)(struct ibv_mr *);
	int (*ibv_query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*ibv_query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
	int (*ibv_get_async_event)(struct ibv_context *, struct ibv_async_event *);
	void (*ibv_ack_async_event)(struct ibv_async_event *);
	const char *(*ibv_wc_status_str)(enum ibv_wc_status);
	const char *(*ibv_get_device_name)(struct ibv_device *);

	struct rdma_event_channel *(*rdma_create_event_channel)(void);
	void (*rdma_destroy_event_channel)(struct rdma_event_channel *);
	int (*rdma_create_id)(struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space);
	int (*rdma_destroy_id)(struct rdma_cm_id *);
	int (*rdma_bind_addr)(struct rdma_cm_id *, struct sockaddr *);
	int (*rdma_listen)(struct rdma_cm_id *, int);
	int (*rdma_resolve_addr)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);
	int (*rdma_resolve_route)(struct rdma_cm_id *, int);
	int (*rdma_connect)(struct rdma_cm_id *, struct rdma_conn_param *);
	int (*rdma_accept)(struct rdma_cm_id *, struct rdma_conn_param *);
	int (*rdma_reject)(struct rdma_cm_id *, const void *, uint8_t);
	int (*rdma_disconnect)(struct rdma_cm_id *);
	int (*rdma_set_option)(struct rdma_cm_id *, int, int, void *, size_t);
	int (*rdma_get_cm_event)(struct rdma_event_channel *, struct rdma_cm_event **);
	int (*rdma_ack_cm_event)(struct rdma_cm_event *);
	int (*rdma_create_qp)(struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *);
	void (*rdma_destroy_qp)(struct rdma_cm_id *);
	const char *(*rdma_event_str)(enum rdma_cm_event_type);
} lib;

/* Every function of the table, with the library and the version of its symbol. */
static const struct symbol {
	int cm;
	const char *name, *version;
	void *slot;
	int optional;
} symbols[] = {
#define V(version, name) {0, #name, version, &lib.name, 0}
#define CM(name) {1, #name, "RDMACM_1.0", &lib.name, 0}
	V("IBVERBS_1.1", ibv_alloc_pd), V("IBVERBS_1.1", ibv_dealloc_pd), V("IBVERBS_1.0", ibv_create_comp_channel),
	V("IBVERBS_1.0", ibv_destroy_comp_channel), V("IBVERBS_1.1", ibv_create_cq), V("IBVERBS_1.1", ibv_destroy_cq),
	V("IBVERBS_1.1", ibv_get_cq_event), V("IBVERBS_1.1", ibv_ack_cq_events), V("IBVERBS_1.1", ibv_reg_mr),
	{0, "ibv_reg_mr_iova", "IBVERBS_1.7", &lib.ibv_reg_mr_iova, 1},
	V("IBVERBS_1.1", ibv_dereg_mr), V("IBVERBS_1.1", ibv_query_device), V("IBVERBS_1.1", ibv_query_port),
	V("IBVERBS_1.1", ibv_get_async_event), V("IBVERBS_1.1", ibv_ack_async_event),
	V("IBVERBS_1.1", ibv_wc_status_str), V("IBVERBS_1.1", ibv_get_device_name),
	CM(rdma_create_event_channel), CM(rdma_destroy_event_channel), CM(rdma_create_id), CM(rdma_destroy_id),
	CM(rdma_bind_addr), CM(rdma_listen), CM(rdma_resolve_addr), CM(rdma_resolve_route), CM(rdma_connect),
	CM(rdma_accept), CM(rdma_reject), CM(rdma_disconnect), CM(rdma_set_option), CM(rdma_get_cm_event),
	CM(rdma_ack_cm_event), CM(rdma_create_qp), CM(rdma_destroy_qp), CM(rdma_event_str),
#undef V
#undef CM
};

int vs_load(const char *verbs, const char *rdmacm, char *err, int len)
{
	const char *names[2] = {verbs, rdmacm};
	void *libs[2];

	for (int i = 0; i < 2; i++) {
		libs[i] = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
		if (!libs[i]) {
			snprintf(err, len, "%s", dlerror());
			return -ENOENT;
		}
	}
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		const struct symbol *s = &symbols[i];
		/* libibverbs has old versions of some functions under the same name. */
		void *f = dlvsym(libs[s->cm], s->name, s->version);
		if (!f)
			f = dlsym(libs[s->cm], s->name);
		if (!f && !s->optional) {
			snprintf(err, len, "%s has no function %s", names[s->cm], s->name);
			return -ENOSYS;
		}
		memcpy(s->slot, &f, sizeof f);
	}
	return 0;
}

#define OBJECT(type, handle) ((type *)(uintptr_t)(handle))
#define HANDLE(pointer) ((uint64_t)(uintptr_t)(pointer))
#define ID(handle) OBJECT(struct rdma_cm_id, handle)

/* Returns the result of a function that sets errno, as 0 or a negative errno. */
static int status(int rc) { return rc ? -(errno ? errno : EIO) : 0; }

static int nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? -errno : status(fcntl(fd, F_SETFL, flags | O_NONBLOCK));
}

const char *vs_status_text(int s) { return lib.ibv_wc_status_str(s); }
const char *vs_event_text(int e) { return lib.rdma_event_str(e); }

/* The connection manager. */

vs_channel vs_events_create(void)
{
	struct rdma_event_channel *c = lib.rdma_create_event_channel();
	vs_channel out = {HANDLE(c), c ? c->fd : -1, 0};

	if (!c)
		out.err = status(-1);
	else
		out.err = nonblocking(c->fd);
	return out;
}

void vs_events_destroy(uint64_t e) { lib.rdma_destroy_event_channel(OBJECT(struct rdma_event_channel, e)); }

int vs_events_next(uint64_t events, vs_event *out)
{
	struct rdma_cm_event *e;
	const struct rdma_conn_param *p;

	if (lib.rdma_get_cm_event(OBJECT(struct rdma_event_channel, events), &e))
		return status(-1);
	p = &e->param.conn;
	out->id = HANDLE(e->id);
	out->listener = HANDLE(e->listen_id);
	out->event = e->event;
	out->status = e->status;
	out->responder_resources = p->responder_resources;
	out->initiator_depth = p->initiator_depth;
	out->private_len = p->private_data ? p->private_data_len : 0;
	if (out->private_len > VS_PRIVATE_MAX)
		out->private_len = VS_PRIVATE_MAX;
	if (out->private_len)
		memcpy(out->private_data, p->private_data, out->private_len);
	out->raw = HANDLE(e);
	return 0;
}

void vs_events_ack(uint64_t raw) { lib.rdma_ack_cm_event(OBJECT(struct rdma_cm_event, raw)); }

vs_object vs_id_create(uint64_t events)
{
	struct rdma_cm_id *id = NULL;
	vs_object out = {0};

	out.err = status(lib.rdma_create_id(OBJECT(struct rdma_event_channel, events), &id, NULL, RDMA_PS_TCP));
	out.handle = HANDLE(id);
	return out;
}

void vs_id_destroy(uint64_t id) { lib.rdma_destroy_id(ID(id)); }

static struct sockaddr *to_sockaddr(const vs_addr *a, struct sockaddr_storage *s)
{
	memset(s, 0, sizeof *s);
	if (a->family == 4) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)s;
		v4->sin_family = AF_INET;
		v4->sin_port = htons(a->port);
		memcpy(&v4->sin_addr, a->ip, 4);
		return (struct sockaddr *)s;
	}
	if (a->family == 6) {
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)s;
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(a->port);
		v6->sin6_scope_id = a->scope;
		memcpy(&v6->sin6_addr, a->ip, 16);
		return (struct sockaddr *)s;
	}
	return NULL;
}

static void from_sockaddr(const struct sockaddr *s, vs_addr *a)
{
	memset(a, 0, sizeof *a);
	if (s->sa_family == AF_INET) {
		const struct sockaddr_in *v4 = (const struct sockaddr_in *)s;
		a->family = 4;
		a->port = ntohs(v4->sin_port);
		memcpy(a->ip, &v4->sin_addr, 4);
	} else if (s->sa_family == AF_INET6) {
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)s;
		a->family = 6;
		a->port = ntohs(v6->sin6_port);
		a->scope = v6->sin6_scope_id;
		memcpy(a->ip, &v6->sin6_addr, 16);
	}
}

int vs_bind(uint64_t id, const vs_addr *a)
{
	struct sockaddr_storage s;
	struct sockaddr *p = to_sockaddr(a, &s);

	return p ? status(lib.rdma_bind_addr(ID(id), p)) : -EAFNOSUPPORT;
}

int vs_listen(uint64_t id, int backlog) { return status(lib.rdma_listen(ID(id), backlog)); }

int vs_resolve_addr(uint64_t id, const vs_addr *from, const vs_addr *to, int ms)
{
	struct sockaddr_storage f, t;
	struct sockaddr *pt = to_sockaddr(to, &t);

	return pt ? status(lib.rdma_resolve_addr(ID(id), to_sockaddr(from, &f), pt, ms)) : -EAFNOSUPPORT;
}

int vs_resolve_route(uint64_t id, int ms) { return status(lib.rdma_resolve_route(ID(id), ms)); }

static void conn_param(const vs_params *p, struct rdma_conn_param *out)
{
	memset(out, 0, sizeof *out);
	out->private_data = p->private_len ? p->private_data : NULL;
	out->private_data_len = p->private_len;
	out->responder_resources = p->responder_resources;
	out->initiator_depth = p->initiator_depth;
	out->retry_count = p->retry;
	out->rnr_retry_count = p->rnr_retry;
}

int vs_connect(uint64_t id, const vs_params *p)
{
	struct rdma_conn_param c;

	conn_param(p, &c);
	return status(lib.rdma_connect(ID(id), &c));
}

int vs_accept(uint64_t id, const vs_params *p)
{
	struct rdma_conn_param c;

	conn_param(p, &c);
	return status(lib.rdma_accept(ID(id), &c));
}

int vs_reject(uint64_t id, const uint8_t *data, int len) { return status(lib.rdma_reject(ID(id), data, len)); }
int vs_disconnect(uint64_t id) { return status(lib.rdma_disconnect(ID(id))); }

int vs_set_tos(uint64_t id, uint8_t tos)
{
	return status(lib.rdma_set_option(ID(id), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos));
}

int vs_set_ack_timeout(uint64_t id, uint8_t exponent)
{
	return status(lib.rdma_set_option(ID(id), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &exponent, sizeof exponent));
}

void vs_id_addrs(uint64_t id, vs_addr *local, vs_addr *peer)
{
	from_sockaddr(&ID(id)->route.addr.src_addr, local);
	from_sockaddr(&ID(id)->route.addr.dst_addr, peer);
}

uint64_t vs_id_context(uint64_t id) { return HANDLE(ID(id)->verbs); }
int vs_id_port(uint64_t id) { return ID(id)->port_num; }
void vs_id_gid(uint64_t id, uint8_t *out) { memcpy(out, ID(id)->route.addr.addr.ibaddr.sgid.raw, 16); }

/* Objects of a device. */

int vs_query_device(uint64_t context, int port, vs_device *out)
{
	struct ibv_context *c = OBJECT(struct ibv_context, context);
	struct ibv_device_attr a;
	struct ibv_port_attr p;
	int rc;

	memset(out, 0, sizeof *out);
	memset(&p, 0, sizeof p);
	rc = lib.ibv_query_device(c, &a);
	if (!rc && port > 0)
		rc = lib.ibv_query_port(c, port, &p);
	if (rc)
		return -rc;
	snprintf(out->name, sizeof out->name, "%s", lib.ibv_get_device_name(c->device));
	out->transport = c->device->transport_type;
	out->link_layer = p.link_layer;
	out->port = port;
	out->max_sge = a.max_sge;
	out->max_sge_rd = a.max_sge_rd;
	out->max_qp_wr = a.max_qp_wr;
	out->max_cqe = a.max_cqe;
	out->max_mr = a.max_mr;
	out->max_mw = a.max_mw;
	out->max_rd_atom = a.max_qp_rd_atom;
	out->max_init_rd_atom = a.max_qp_init_rd_atom;
	out->max_msg = p.max_msg_sz;
	out->max_mr_size = a.max_mr_size;
	out->caps = a.device_cap_flags;
	out->windows = a.max_mw > 0 && (a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
	return 0;
}

/* Reports whether the object of an event is a port, or the device itself. */
static int of_port(int type)
{
	switch (type) {
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		return 1;
	}
	return 0;
}

int vs_async_open(uint64_t context)
{
	int fd = OBJECT(struct ibv_context, context)->async_fd;
	int rc = nonblocking(fd);

	return rc ? rc : fd;
}

int vs_async_next(uint64_t context, vs_async *out)
{
	struct ibv_async_event e;

	memset(&e, 0, sizeof e);
	if (lib.ibv_get_async_event(OBJECT(struct ibv_context, context), &e))
		return status(-1);
	out->type = e.event_type;
	out->object = of_port(e.event_type) ? (uint64_t)e.element.port_num : HANDLE(e.element.qp);
	out->pad = 0;
	return 0;
}

void vs_async_ack(const vs_async *from)
{
	struct ibv_async_event e;

	memset(&e, 0, sizeof e);
	e.event_type = from->type;
	if (of_port(from->type))
		e.element.port_num = (int)from->object;
	else
		e.element.qp = OBJECT(struct ibv_qp, from->object);
	lib.ibv_ack_async_event(&e);
}

int vs_port_active(uint64_t context, int port)
{
	struct ibv_port_attr a;
	int rc;

	memset(&a, 0, sizeof a);
	rc = lib.ibv_query_port(OBJECT(struct ibv_context, context), port, &a);
	return rc ? -rc : a.state == IBV_PORT_ACTIVE;
}

static vs_object object(void *p)
{
	vs_object out = {HANDLE(p), p ? 0 : status(-1), 0};

	return out;
}

vs_object vs_pd_create(uint64_t context) { return object(lib.ibv_alloc_pd(OBJECT(struct ibv_context, context))); }
int vs_pd_destroy(uint64_t pd) { return -lib.ibv_dealloc_pd(OBJECT(struct ibv_pd, pd)); }

vs_channel vs_completions_create(uint64_t context)
{
	struct ibv_comp_channel *c = lib.ibv_create_comp_channel(OBJECT(struct ibv_context, context));
	vs_channel out = {HANDLE(c), c ? c->fd : -1, 0};

	if (!c)
		out.err = status(-1);
	else
		out.err = nonblocking(c->fd);
	return out;
}

int vs_completions_destroy(uint64_t c) { return -lib.ibv_destroy_comp_channel(OBJECT(struct ibv_comp_channel, c)); }

int vs_completions_next(uint64_t channel, uint64_t *out, int n)
{
	struct ibv_comp_channel *c = OBJECT(struct ibv_comp_channel, channel);
	struct ibv_cq *cq;
	void *token;
	int got = 0;

	for (; got < n; got++) {
		if (lib.ibv_get_cq_event(c, &cq, &token))
			break;
		/* ibv_destroy_cq waits until each event of its CQ is acknowledged. */
		lib.ibv_ack_cq_events(cq, 1);
		out[got] = HANDLE(token);
	}
	if (got < n && got == 0 && errno != EAGAIN && errno != EINTR)
		return -errno;
	return got;
}

vs_object vs_cq_create(uint64_t context, int depth, uint64_t token, uint64_t channel)
{
	return object(lib.ibv_create_cq(OBJECT(struct ibv_context, context), depth, (void *)(uintptr_t)token,
	                                OBJECT(struct ibv_comp_channel, channel), 0));
}

int vs_cq_destroy(uint64_t cq) { return -lib.ibv_destroy_cq(OBJECT(struct ibv_cq, cq)); }
int vs_cq_arm(uint64_t cq) { return -ibv_req_notify_cq(OBJECT(struct ibv_cq, cq), 0); }

int vs_cq_poll(uint64_t cq, vs_wc *out, int n, uint32_t invalidated_bit)
{
	struct ibv_wc w[VS_BATCH];
	int got = ibv_poll_cq(OBJECT(struct ibv_cq, cq), n < VS_BATCH ? n : VS_BATCH, w);

	for (int i = 0; i < got; i++) {
		vs_wc *o = &out[i];
		o->id = w[i].wr_id;
		o->status = w[i].status;
		o->opcode = w[i].opcode;
		o->bytes = w[i].byte_len;
		o->vendor = w[i].vendor_err;
		o->has_inv = w[i].status == IBV_WC_SUCCESS && (w[i].wc_flags & invalidated_bit) != 0;
		o->invalidated = o->has_inv ? w[i].invalidated_rkey : 0;
	}
	return got;
}

vs_object vs_qp_create(uint64_t id, uint64_t pd, uint64_t cq, int sends, int receives, int send_sge, int inline_len)
{
	vs_object out = {0};
	struct ibv_qp_init_attr a;

	memset(&a, 0, sizeof a);
	a.send_cq = a.recv_cq = OBJECT(struct ibv_cq, cq);
	a.qp_type = IBV_QPT_RC;
	a.cap.max_send_wr = sends;
	a.cap.max_recv_wr = receives;
	a.cap.max_send_sge = send_sge;
	a.cap.max_recv_sge = 1;
	a.cap.max_inline_data = inline_len;
	out.err = status(lib.rdma_create_qp(ID(id), OBJECT(struct ibv_pd, pd), &a));
	if (!out.err) {
		out.handle = HANDLE(ID(id)->qp);
		out.got = a.cap.max_inline_data;
	}
	return out;
}

void vs_qp_destroy(uint64_t id) { lib.rdma_destroy_qp(ID(id)); }

vs_mr vs_mr_register(uint64_t pd, uint64_t addr, uint64_t len, uint64_t iova, int access)
{
	struct ibv_pd *p = OBJECT(struct ibv_pd, pd);
	void *at = (void *)(uintptr_t)addr;
	struct ibv_mr *m;
	vs_mr out = {0};

	if (iova != addr && !lib.ibv_reg_mr_iova) {
		out.err = -EOPNOTSUPP;
		return out;
	}
	m = iova == addr ? lib.ibv_reg_mr(p, at, len, access) : lib.ibv_reg_mr_iova(p, at, len, iova, access);
	if (!m) {
		out.err = status(-1);
		return out;
	}
	out.mr = HANDLE(m);
	out.lkey = m->lkey;
	out.rkey = m->rkey;
	return out;
}

int vs_mr_deregister(uint64_t mr) { return -lib.ibv_dereg_mr(OBJECT(struct ibv_mr, mr)); }

vs_object vs_window_create(uint64_t pd)
{
	struct ibv_mw *m = ibv_alloc_mw(OBJECT(struct ibv_pd, pd), IBV_MW_TYPE_2);
	vs_object out = object(m);

	if (m)
		out.got = m->rkey;
	return out;
}

int vs_window_destroy(uint64_t window) { return -ibv_dealloc_mw(OBJECT(struct ibv_mw, window)); }

/* Posting. */

static void set_bind(struct ibv_send_wr *w, const vs_wr *from)
{
	w->bind_mw.mw = OBJECT(struct ibv_mw, from->window);
	w->bind_mw.rkey = from->rkey;
	w->bind_mw.bind_info.mr = OBJECT(struct ibv_mr, from->mr);
	w->bind_mw.bind_info.addr = from->raddr;
	w->bind_mw.bind_info.length = from->length;
	w->bind_mw.bind_info.mw_access_flags = from->access;
}

int vs_post_send(uint64_t qp, const vs_wr *wr, int n, const vs_sge *sges, int *posted)
{
	static const enum ibv_wr_opcode opcodes[] = {
		[VS_SEND] = IBV_WR_SEND, [VS_SEND_INV] = IBV_WR_SEND_WITH_INV,
		[VS_WRITE] = IBV_WR_RDMA_WRITE, [VS_READ] = IBV_WR_RDMA_READ,
		[VS_BIND] = IBV_WR_BIND_MW, [VS_INVALIDATE] = IBV_WR_LOCAL_INV,
	};
	struct ibv_send_wr w[VS_BATCH], *bad;

	for (*posted = 0; n > 0;) {
		int k = n < VS_BATCH ? n : VS_BATCH;

		memset(w, 0, sizeof *w * k);
		for (int i = 0; i < k; i++) {
			const vs_wr *from = &wr[i];
			w[i].wr_id = from->id;
			w[i].next = i + 1 < k ? &w[i + 1] : NULL;
			w[i].opcode = opcodes[from->op];
			w[i].send_flags = (from->flags & VS_SIGNALED ? IBV_SEND_SIGNALED : 0) |
			                  (from->flags & VS_INLINE ? IBV_SEND_INLINE : 0);
			w[i].sg_list = (struct ibv_sge *)(uintptr_t)&sges[from->first];
			w[i].num_sge = from->count;
			w[i].wr.rdma.remote_addr = from->raddr;
			w[i].wr.rdma.rkey = from->rkey; /* libsiw looks here for the key to invalidate, too */
			if (from->op == VS_SEND_INV || from->op == VS_INVALIDATE)
				w[i].invalidate_rkey = from->rkey;
			if (from->op == VS_BIND)
				set_bind(&w[i], from);
		}
		bad = NULL;
		int rc = ibv_post_send(OBJECT(struct ibv_qp, qp), w, &bad);
		int got = !rc ? k : bad ? (int)(bad - w) : 0;

		/* Providers name the window by its old key while they post. */
		for (int i = 0; i < got; i++)
			if (wr[i].op == VS_BIND)
				OBJECT(struct ibv_mw, wr[i].window)->rkey = wr[i].rkey;
		*posted += got;
		if (rc)
			return rc > 0 ? -rc : rc;
		wr += k;
		n -= k;
	}
	return 0;
}

int vs_post_recv(uint64_t qp, const vs_sge *sges, const uint64_t *ids, int n, int *posted)
{
	struct ibv_recv_wr w[VS_BATCH], *bad;

	for (*posted = 0; n > 0;) {
		int k = n < VS_BATCH ? n : VS_BATCH;

		for (int i = 0; i < k; i++) {
			w[i].wr_id = ids[i];
			w[i].next = i + 1 < k ? &w[i + 1] : NULL;
			w[i].sg_list = (struct ibv_sge *)(uintptr_t)&sges[i];
			w[i].num_sge = 1;
		}
		bad = NULL;
		int rc = ibv_post_recv(OBJECT(struct ibv_qp, qp), w, &bad);
		if (rc) {
			*posted += bad ? (int)(bad - w) : 0;
			return rc > 0 ? -rc : rc;
		}
		*posted += k;
		sges += k;
		ids += k;
		n -= k;
	}
	return 0;
}
