//go:build ibverbs

/*
 * The flat C interface between Go and rdma-core.
 *
 * No struct here has a pointer: addresses and objects are uint64_t, so that Go may pass its memory
 * to these functions, and C keeps none of it. Functions that can fail return 0 or a negative errno.
 * Functions that take arrays work on as many elements as they are told, and never on more.
 */
#ifndef RDMABRIDGE_SHIM_H
#define RDMABRIDGE_SHIM_H

#include <stdint.h>

enum { VS_SEND = 1, VS_SEND_INV, VS_WRITE, VS_READ, VS_BIND, VS_INVALIDATE };
enum { VS_SIGNALED = 1, VS_INLINE = 2 };
enum { VS_LOCAL_WRITE = 1, VS_REMOTE_WRITE = 2, VS_REMOTE_READ = 4, VS_BIND_WINDOWS = 16 };

/* The most elements of one call into rdma-core; longer arrays take several. */
enum { VS_BATCH = 64 };

/* A scatter/gather element, with the layout of struct ibv_sge. */
typedef struct {
	uint64_t addr;
	uint32_t len, lkey;
} vs_sge;

/* A Work Request of the send queue. Its elements are sges[first .. first+count). */
typedef struct {
	uint64_t id;
	uint64_t raddr; /* of a bind: where the window begins, as the peer is told */
	uint32_t rkey;  /* of a Read or Write; the key to invalidate; of a bind: the new key */
	uint32_t first;
	uint16_t count;
	uint8_t op, flags;
	uint32_t access, length; /* of a bind, as all that follows */
	uint32_t pad;
	uint64_t window, mr;
} vs_wr;

typedef struct {
	uint64_t id;
	uint32_t status, opcode, bytes, vendor;
	uint32_t invalidated; /* valid if has_inv */
	uint8_t has_inv, pad[3];
} vs_wc;

/* An IPv4 or IPv6 address and port; family 4, 6, or 0 for none. */
typedef struct {
	uint8_t ip[16];
	uint32_t scope;
	uint16_t port, family;
} vs_addr;

enum { VS_PRIVATE_MAX = 256 };

/* An event of a connection manager channel. */
typedef struct {
	uint64_t raw; /* for vs_events_ack */
	uint64_t id, listener;
	int32_t event, status;
	uint32_t responder_resources, initiator_depth; /* as this side sees them */
	uint32_t private_len;
	uint8_t private_data[VS_PRIVATE_MAX];
} vs_event;

typedef struct {
	char name[64];
	int32_t transport; /* 0 InfiniBand or RoCE, 1 iWARP */
	int32_t link_layer; /* of port: 1 InfiniBand, 2 Ethernet */
	int32_t port;
	int32_t max_sge, max_sge_rd, max_qp_wr, max_cqe, max_mr, max_mw, max_rd_atom, max_init_rd_atom;
	int32_t windows; /* whether there are windows of type 2B */
	uint32_t max_msg;
	uint64_t max_mr_size, caps;
} vs_device;

typedef struct {
	uint64_t mr;
	uint32_t lkey, rkey;
	int32_t err;
	uint32_t pad;
} vs_mr;

typedef struct {
	uint64_t handle;
	int32_t fd, err;
} vs_channel;

typedef struct {
	uint64_t handle;
	int32_t err;
	uint32_t got; /* for a QP: the inline limit that the device gave */
} vs_object;

/* The connection parameters that both sides send. */
typedef struct {
	uint32_t responder_resources, initiator_depth, retry, rnr_retry;
	uint32_t private_len;
	uint8_t private_data[VS_PRIVATE_MAX];
} vs_params;

/* vs_load opens the libraries. On failure err has what is missing. */
int vs_load(const char *verbs, const char *rdmacm, char *err, int len);
const char *vs_status_text(int status);
const char *vs_event_text(int event);

vs_channel vs_events_create(void);
void vs_events_destroy(uint64_t events);
/*
 * vs_events_next returns -EAGAIN when there is no event. Otherwise vs_events_ack must follow when
 * the event has been handled: until then its id is not destroyed, so that no other id can have the
 * same number.
 */
int vs_events_next(uint64_t events, vs_event *out);
void vs_events_ack(uint64_t raw);

vs_object vs_id_create(uint64_t events);
void vs_id_destroy(uint64_t id);
int vs_bind(uint64_t id, const vs_addr *a);
int vs_listen(uint64_t id, int backlog);
int vs_resolve_addr(uint64_t id, const vs_addr *from, const vs_addr *to, int ms);
int vs_resolve_route(uint64_t id, int ms);
int vs_connect(uint64_t id, const vs_params *p);
int vs_accept(uint64_t id, const vs_params *p);
int vs_reject(uint64_t id, const uint8_t *data, int len);
int vs_disconnect(uint64_t id);
int vs_set_tos(uint64_t id, uint8_t tos);
int vs_set_ack_timeout(uint64_t id, uint8_t exponent);
void vs_id_addrs(uint64_t id, vs_addr *local, vs_addr *peer);
uint64_t vs_id_context(uint64_t id); /* 0 before the address is resolved */
void vs_id_gid(uint64_t id, uint8_t *out); /* the 16 octets of the local GID */

/* An asynchronous event of a device. */
typedef struct {
	uint64_t object; /* the QP or CQ, or the number of the port */
	int32_t type;    /* enum ibv_event_type */
	uint32_t pad;
} vs_async;

/* vs_async_open makes the descriptor of a device's events non-blocking, and returns it. */
int vs_async_open(uint64_t context);
/*
 * vs_async_next returns -EAGAIN when there is no event. Otherwise vs_async_ack must follow: until
 * then the QP or CQ of the event is not destroyed, so that no other can have the same number.
 */
int vs_async_next(uint64_t context, vs_async *out);
void vs_async_ack(const vs_async *e);
/* vs_port_active returns 1 if the port is active, 0 if it is not. */
int vs_port_active(uint64_t context, int port);

int vs_query_device(uint64_t context, int port, vs_device *out);
int vs_id_port(uint64_t id);

vs_object vs_pd_create(uint64_t context);
int vs_pd_destroy(uint64_t pd);
vs_channel vs_completions_create(uint64_t context);
int vs_completions_destroy(uint64_t channel);
/* vs_completions_next fills out with the tokens of CQs that have completions, and returns their number. */
int vs_completions_next(uint64_t channel, uint64_t *out, int n);
vs_object vs_cq_create(uint64_t context, int depth, uint64_t token, uint64_t channel);
int vs_cq_destroy(uint64_t cq);
int vs_cq_arm(uint64_t cq);
int vs_cq_poll(uint64_t cq, vs_wc *out, int n, uint32_t invalidated_bit);
vs_object vs_qp_create(uint64_t id, uint64_t pd, uint64_t cq, int sends, int receives, int send_sge, int inline_len);
void vs_qp_destroy(uint64_t id);

vs_mr vs_mr_register(uint64_t pd, uint64_t addr, uint64_t len, uint64_t iova, int access);
int vs_mr_deregister(uint64_t mr);

/* These are windows of type 2. got of the result is the key, of which binds replace the last 8 bits. */
vs_object vs_window_create(uint64_t pd);
int vs_window_destroy(uint64_t window);

/* These post n Work Requests and set *posted to how many the device accepted. */
int vs_post_send(uint64_t qp, const vs_wr *wr, int n, const vs_sge *sges, int *posted);
int vs_post_recv(uint64_t qp, const vs_sge *sges, const uint64_t *ids, int n, int *posted);

#endif
