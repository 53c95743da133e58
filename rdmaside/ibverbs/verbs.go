//go:build ibverbs

package ibverbs

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// This file is the only one that calls C. It gives the functions of the shim Go types, and nothing
// else. Objects of rdma-core are numbers; 0 is none.

// Compiled says whether the program was built with the tag ibverbs.
const Compiled = true

// These structs have the layout of their namesakes in shim.h, which the arrays below check.
type (
	element struct {
		addr     uint64
		len, key uint32
	}
	workRequest struct {
		id, raddr   uint64
		rkey, first uint32
		count       uint16
		op, flags   uint8
		access, len uint32 // of a bind, as all that follows
		_           uint32
		window, mr  uint64
	}
	workCompletion struct {
		id                            uint64
		status, opcode, bytes, vendor uint32
		invalidated                   uint32
		hasInvalidated                uint8
		_                             [3]uint8
	}
)

var (
	_ = [1]struct{}{}[unsafe.Sizeof(element{})-C.sizeof_vs_sge]
	_ = [1]struct{}{}[unsafe.Sizeof(workRequest{})-C.sizeof_vs_wr]
	_ = [1]struct{}{}[unsafe.Sizeof(workCompletion{})-C.sizeof_vs_wc]
)

const (
	opSend           = C.VS_SEND
	opSendInvalidate = C.VS_SEND_INV
	opWrite          = C.VS_WRITE
	opRead           = C.VS_READ
	opBind           = C.VS_BIND
	opInvalidate     = C.VS_INVALIDATE

	flagSignaled = C.VS_SIGNALED
	flagInline   = C.VS_INLINE

	localWrite  = C.VS_LOCAL_WRITE
	remoteWrite = C.VS_REMOTE_WRITE
	remoteRead  = C.VS_REMOTE_READ
	bindWindows = C.VS_BIND_WINDOWS

	statusFlushed = 5 // IBV_WC_WR_FLUSH_ERR
	opcodeRead    = 2 // IBV_WC_RDMA_READ
)

// A cmEvent is an event of the connection manager.
type cmEvent struct {
	id, listener uint64
	event        int
	status       int
	ird, ord     int // inbound and outbound Reads, as this side sees them
	private      []byte

	// broken is why the queues of the id are broken, if the device says so. The event is not one of
	// rdma-core's then, and has nothing else.
	broken error
}

// Kinds of cmEvent: enum rdma_cm_event_type.
const (
	addrResolved   = 0
	addrError      = 1
	routeResolved  = 2
	routeError     = 3
	connectRequest = 4
	connectError   = 6
	unreachable    = 7
	rejected       = 8
	established    = 9
	disconnected   = 10
	deviceRemoval  = 11
	addrChange     = 14
)

// A device has what the provider needs to know of a device.
type device struct {
	name            string
	iwarp           bool
	maxSGE, maxRead int
	maxWR, maxCQE   int
	maxIRD, maxORD  int
	maxMessage      int64
	windows         bool // of type 2B, which are valid on one queue pair
}

// cmParams are the parameters that both sides of a connection send.
type cmParams struct {
	ird, ord, retry, rnr int
	private              []byte
}

var library struct {
	once sync.Once
	err  error
}

// load opens rdma-core.
func load() error {
	library.once.Do(func() { library.err = open("libibverbs.so.1", "librdmacm.so.1") })
	return library.err
}

func open(verbs, cm string) error {
	v, c := C.CString(verbs), C.CString(cm)
	defer C.free(unsafe.Pointer(v))
	defer C.free(unsafe.Pointer(c))
	var text [512]C.char
	if C.vs_load(v, c, &text[0], C.int(len(text))) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: install rdma-core (Debian: libibverbs1, librdmacm1 and ibverbs-providers)", ErrUnavailable, C.GoString(&text[0]))
}

// errno returns the error of a result of the shim.
func errno(rc C.int) error {
	if rc >= 0 {
		return nil
	}
	return syscall.Errno(-rc)
}

func statusText(status int) string { return C.GoString(C.vs_status_text(C.int(status))) }
func eventText(event int) string {
	return strings.ToLower(strings.TrimPrefix(C.GoString(C.vs_event_text(C.int(event))), "RDMA_CM_EVENT_"))
}

func createEvents() (events uint64, fd int, err error) {
	c := C.vs_events_create()
	if c.err != 0 && c.handle != 0 {
		C.vs_events_destroy(c.handle)
	}
	return uint64(c.handle), int(c.fd), errno(C.int(c.err))
}

func destroyEvents(events uint64) { C.vs_events_destroy(C.uint64_t(events)) }

// nextEvent returns the next event, and how to acknowledge it. The error is EAGAIN if there is none.
func nextEvent(events uint64) (ev cmEvent, ack func(), err error) {
	var c C.vs_event
	if err := errno(C.vs_events_next(C.uint64_t(events), &c)); err != nil {
		return ev, nil, err
	}
	ev = cmEvent{
		id: uint64(c.id), listener: uint64(c.listener), event: int(c.event), status: int(c.status),
		ird: int(c.responder_resources), ord: int(c.initiator_depth),
		private: C.GoBytes(unsafe.Pointer(&c.private_data[0]), C.int(min(c.private_len, C.VS_PRIVATE_MAX))),
	}
	return ev, func() { C.vs_events_ack(c.raw) }, nil
}

func createID(events uint64) (uint64, error) {
	o := C.vs_id_create(C.uint64_t(events))
	return uint64(o.handle), errno(C.int(o.err))
}

func destroyID(id uint64) { C.vs_id_destroy(C.uint64_t(id)) }

func toAddr(a netip.AddrPort) (c C.vs_addr) {
	ip := a.Addr().Unmap()
	c.port = C.uint16_t(a.Port())
	switch {
	case ip.Is4():
		c.family = 4
		for i, b := range ip.As4() {
			c.ip[i] = C.uint8_t(b)
		}
	case ip.Is6():
		c.family = 6
		for i, b := range ip.As16() {
			c.ip[i] = C.uint8_t(b)
		}
		c.scope = C.uint32_t(zoneIndex(ip.Zone()))
	}
	return c
}

func fromAddr(c *C.vs_addr) netip.AddrPort {
	var b [16]byte
	for i := range b {
		b[i] = byte(c.ip[i])
	}
	switch c.family {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), uint16(c.port))
	case 6:
		return netip.AddrPortFrom(netip.AddrFrom16(b).WithZone(zoneName(uint32(c.scope))), uint16(c.port))
	}
	return netip.AddrPort{}
}

func bindAddr(id uint64, a netip.AddrPort) error {
	c := toAddr(a)
	return errno(C.vs_bind(C.uint64_t(id), &c))
}

func listenID(id uint64, backlog int) error {
	return errno(C.vs_listen(C.uint64_t(id), C.int(backlog)))
}

// resolveAddr begins to find the device for a connection. from may be the zero Addr.
func resolveAddr(id uint64, from netip.Addr, to netip.AddrPort, ms int) error {
	f, c := toAddr(netip.AddrPortFrom(from, 0)), toAddr(to)
	return errno(C.vs_resolve_addr(C.uint64_t(id), &f, &c, C.int(ms)))
}

func resolveRoute(id uint64, ms int) error {
	return errno(C.vs_resolve_route(C.uint64_t(id), C.int(ms)))
}

func (p *cmParams) c() (c C.vs_params) {
	c.responder_resources, c.initiator_depth = C.uint32_t(p.ird), C.uint32_t(p.ord)
	c.retry, c.rnr_retry = C.uint32_t(p.retry), C.uint32_t(p.rnr)
	c.private_len = C.uint32_t(min(len(p.private), C.VS_PRIVATE_MAX))
	for i, b := range p.private[:c.private_len] {
		c.private_data[i] = C.uint8_t(b)
	}
	return c
}

func connectID(id uint64, p cmParams) error {
	c := p.c()
	return errno(C.vs_connect(C.uint64_t(id), &c))
}

func acceptID(id uint64, p cmParams) error {
	c := p.c()
	return errno(C.vs_accept(C.uint64_t(id), &c))
}

func rejectID(id uint64, private []byte) error {
	c := (&cmParams{private: private}).c()
	return errno(C.vs_reject(C.uint64_t(id), &c.private_data[0], C.int(c.private_len)))
}

func disconnectID(id uint64) error { return errno(C.vs_disconnect(C.uint64_t(id))) }
func setTOS(id uint64, tos uint8) error {
	return errno(C.vs_set_tos(C.uint64_t(id), C.uint8_t(tos)))
}

func setAckTimeout(id uint64, exponent uint8) error {
	return errno(C.vs_set_ack_timeout(C.uint64_t(id), C.uint8_t(exponent)))
}

func idAddrs(id uint64) (local, peer netip.AddrPort) {
	var l, p C.vs_addr
	C.vs_id_addrs(C.uint64_t(id), &l, &p)
	return fromAddr(&l), fromAddr(&p)
}

// idContext returns the device context of an id, and the port. The context is 0 before the address is resolved.
func idContext(id uint64) (context uint64, port int) {
	return uint64(C.vs_id_context(C.uint64_t(id))), int(C.vs_id_port(C.uint64_t(id)))
}

// idGID returns the local GID of an id that has a context.
func idGID(id uint64) netip.Addr {
	var b [16]byte
	C.vs_id_gid(C.uint64_t(id), (*C.uint8_t)(unsafe.Pointer(&b[0])))
	return netip.AddrFrom16(b)
}

func queryDevice(context uint64, port int) (d device, err error) {
	var c C.vs_device
	if err := errno(C.vs_query_device(C.uint64_t(context), C.int(port), &c)); err != nil {
		return d, err
	}
	return device{
		name: C.GoString(&c.name[0]), iwarp: c.transport == 1,
		maxSGE: int(c.max_sge), maxRead: int(c.max_sge_rd), maxWR: int(c.max_qp_wr), maxCQE: int(c.max_cqe),
		maxIRD: int(c.max_rd_atom), maxORD: int(c.max_init_rd_atom), maxMessage: cmp.Or(int64(c.max_msg), mostMessage),
		windows: c.windows != 0,
	}, nil
}

// An asyncEvent is an asynchronous event of a device.
type asyncEvent struct {
	kind   asyncKind
	object uint64 // the QP or CQ, or the number of the port
}

// openAsync returns the descriptor of the events of a device.
func openAsync(context uint64) (fd int, err error) {
	rc := C.vs_async_open(C.uint64_t(context))
	return int(rc), errno(rc)
}

// nextAsync returns the next event of a device, and how to acknowledge it. The error is EAGAIN if
// there is none.
func nextAsync(context uint64) (ev asyncEvent, ack func(), err error) {
	var c C.vs_async
	if err := errno(C.vs_async_next(C.uint64_t(context), &c)); err != nil {
		return ev, nil, err
	}
	return asyncEvent{asyncKind(c._type), uint64(c.object)}, func() { C.vs_async_ack(&c) }, nil
}

// portDown says that a port is known not to be active.
func portDown(context uint64, port int) bool {
	return C.vs_port_active(C.uint64_t(context), C.int(port)) == 0
}

func createPD(context uint64) (uint64, error) {
	o := C.vs_pd_create(C.uint64_t(context))
	return uint64(o.handle), errno(C.int(o.err))
}

func destroyPD(pd uint64) error { return errno(C.vs_pd_destroy(C.uint64_t(pd))) }

func createCompletions(context uint64) (channel uint64, fd int, err error) {
	c := C.vs_completions_create(C.uint64_t(context))
	if c.err != 0 && c.handle != 0 {
		C.vs_completions_destroy(c.handle)
	}
	return uint64(c.handle), int(c.fd), errno(C.int(c.err))
}

func destroyCompletions(channel uint64) error {
	return errno(C.vs_completions_destroy(C.uint64_t(channel)))
}

// nextCompletions fills tokens with those of CQs that have completions.
func nextCompletions(channel uint64, tokens []uint64) (int, error) {
	n := C.vs_completions_next(C.uint64_t(channel), (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(tokens))), C.int(len(tokens)))
	return int(max(n, 0)), errno(n)
}

func createCQ(context uint64, depth int, token, channel uint64) (uint64, error) {
	o := C.vs_cq_create(C.uint64_t(context), C.int(depth), C.uint64_t(token), C.uint64_t(channel))
	return uint64(o.handle), errno(C.int(o.err))
}

func destroyCQ(cq uint64) error { return errno(C.vs_cq_destroy(C.uint64_t(cq))) }
func armCQ(cq uint64) error     { return errno(C.vs_cq_arm(C.uint64_t(cq))) }

// pollCQ fills out and returns how many completions there were.
func pollCQ(cq uint64, out []workCompletion, invalidated uint32) (int, error) {
	n := C.vs_cq_poll(C.uint64_t(cq), (*C.vs_wc)(unsafe.Pointer(unsafe.SliceData(out))), C.int(len(out)), C.uint32_t(invalidated))
	return int(max(n, 0)), errno(n)
}

func createQP(id, pd, cq uint64, sends, receives, sge, inline int) (qp uint64, gotInline int, err error) {
	o := C.vs_qp_create(C.uint64_t(id), C.uint64_t(pd), C.uint64_t(cq), C.int(sends), C.int(receives), C.int(sge), C.int(inline))
	return uint64(o.handle), int(o.got), errno(C.int(o.err))
}

// destroyQP destroys the QP of an id.
func destroyQP(id uint64) { C.vs_qp_destroy(C.uint64_t(id)) }

// A registration is a memory region of the device.
type registration struct {
	mr         uint64
	lkey, rkey uint32
}

// address is where b is, in the words of the device. The caller keeps b alive.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func registerMR(pd uint64, b []byte, iova uint64, access int) (registration, error) {
	r := C.vs_mr_register(C.uint64_t(pd), C.uint64_t(address(b)), C.uint64_t(len(b)), C.uint64_t(iova), C.int(access))
	return registration{uint64(r.mr), uint32(r.lkey), uint32(r.rkey)}, errno(C.int(r.err))
}

func deregisterMR(mr uint64) error { return errno(C.vs_mr_deregister(C.uint64_t(mr))) }

// createWindow makes a type 2 memory window, and returns its key.
func createWindow(pd uint64) (handle uint64, key uint32, err error) {
	o := C.vs_window_create(C.uint64_t(pd))
	return uint64(o.handle), uint32(o.got), errno(C.int(o.err))
}

func destroyWindow(handle uint64) error { return errno(C.vs_window_destroy(C.uint64_t(handle))) }

// A poster calls the posting functions. It has the memory for their result, which they write to.
type poster struct{ posted C.int }

func (p *poster) send(qp uint64, wrs []workRequest, elements []element) (int, error) {
	rc := C.vs_post_send(C.uint64_t(qp), (*C.vs_wr)(unsafe.Pointer(unsafe.SliceData(wrs))), C.int(len(wrs)),
		(*C.vs_sge)(unsafe.Pointer(unsafe.SliceData(elements))), &p.posted)
	return int(p.posted), errno(rc)
}

func (p *poster) receive(qp uint64, elements []element, ids []uint64) (int, error) {
	rc := C.vs_post_recv(C.uint64_t(qp), (*C.vs_sge)(unsafe.Pointer(unsafe.SliceData(elements))),
		(*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(ids))), C.int(len(ids)), &p.posted)
	return int(p.posted), errno(rc)
}
