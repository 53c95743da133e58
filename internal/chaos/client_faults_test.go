package chaos

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A clientRow is a row of docs/faults.md about a client, or about a fault that no single
// Call shows.
type clientRow struct {
	name        string
	do          func(w *world, g *rogue, c net.Conn) // acts as the client, and reports a wrong answer
	sees        outcome
	log         string
	metrics     []string
	unavailable time.Duration // default: so long that nothing ends by it
}

// closes waits for the end of c.
func closes(w *world, c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(stallTimeout + patience))
	if _, err := io.Copy(io.Discard, c); timedOut(err) {
		w.t.Error("the connection is not closed")
	}
}

var clientRows = []clientRow{
	{"Client resets inside a record", func(w *world, g *rogue, c net.Conn) {
		_, _ = c.Write(testkit.Record(g.any().m)[:20])
		c.(*net.TCPConn).SetLinger(0)
	}, "", "", nil, 0},
	{"Client stops inside a record", func(w *world, g *rogue, c net.Conn) {
		_, _ = c.Write(testkit.Record(g.any().m)[:20])
		closes(w, c)
	}, closed, "connection closed", []string{`listener_refused_connections_total{reason="stalled"`}, 0},
	{"Record longer than `limits.record`", func(w *world, g *rogue, c net.Conn) {
		_, _ = c.Write(testkit.Words(1<<31 | 0x7fffffff))
		closes(w, c)
	}, closed, "connection closed", []string{`listener_refused_connections_total{reason="too_long"`}, 0},
	{"Endless fragments: a record with more octets of record marks than `limits.record`", func(w *world, g *rogue, c net.Conn) {
		_, _ = c.Write(make([]byte, 4<<20+64<<10+4))
		closes(w, c)
	}, closed, "connection closed", []string{`listener_refused_connections_total{reason="fragments"`}, 0},
	{"Record that is no Call", func(w *world, g *rogue, c net.Conn) {
		m := proxytest.GetattrCall(1)
		m[7] = 2
		_, _ = c.Write(testkit.Record(m))
		closes(w, c)
	}, closed, "not an RPC Call; connection closed", []string{`listener_calls_total{result="malformed"`}, 0},
	{"Call whose RPC header is not valid", func(w *world, g *rogue, c net.Conn) {
		m := proxytest.GetattrCall(1)
		binary.BigEndian.PutUint32(m[28:], 0xfffffff0) // the credential has no end
		_, _ = c.Write(testkit.Record(m))
		if r, err := testkit.ReadRecord(c); err != nil || !bytes.Equal(r, oncrpc.AppendAuthError(nil, 1, oncrpc.AuthBadCredential)) {
			w.t.Errorf("it is answered with %x, %v", r, err)
		}
		o := g.call(getattr, 0)
		g.book.transmit(o.id)
		_, _ = c.Write(testkit.Record(o.m))
		if !g.await(c, o) {
			w.t.Error("the client was closed")
		}
	}, answered, "the header of a Call is not valid; call refused", []string{`listener_refused_calls_total{reason="credential"`}, 0},
	{"Call sent again on another connection from the same port while it is under way", func(w *world, g *rogue, c net.Conn) {
		s := w.responders[0].server
		s.stop()
		goOn := sync.OnceFunc(s.goOn)
		defer goOn()
		o := g.call(mkdir, 0)
		g.book.transmit(o.id)
		_, _ = c.Write(testkit.Record(o.m))
		if !testkit.Settles(5*time.Second, func() bool { return w.sum("rdmabridge_listener_received_calls_total") == 2 }) {
			w.t.Error("the Call was not read")
		}
		next, err := g.dialFrom(c.LocalAddr(), w.proxy.Addr("in too"))
		if err != nil {
			w.t.Fatal(err)
		}
		defer next.Close()
		g.book.transmit(o.id)
		_, _ = next.Write(testkit.Record(o.m))
		if !testkit.Settles(patience, func() bool { return w.sum("rdmabridge_listener_calls_total", `result="absorbed"`) == 1 }) {
			w.t.Error("the Call was not taken for the one under way")
		}
		goOn()
		for i, c := range []net.Conn{c, next} {
			if !g.await(c, o) {
				w.t.Errorf("connection %d has no Reply", i)
			}
		}
	}, answered, "", []string{`listener_calls_total{result="absorbed"`}, 0},
	{"Client never reads", func(w *world, g *rogue, c net.Conn) {
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		var all []*outstanding
		for range 3000 {
			o := g.call(read, 1<<20)
			g.book.transmit(o.id)
			all = append(all, o)
			if testkit.WriteRecord(c, o.m) != nil {
				break
			}
		}
		if used := w.h.Arena.Used(); used > budget/2 {
			w.t.Errorf("it holds %d octets", used)
		}
		other, err := g.dial()
		if err != nil {
			w.t.Fatal(err)
		}
		defer other.Close()
		o := g.call(getattr, 0)
		g.book.transmit(o.id)
		_, _ = other.Write(testkit.Record(o.m))
		if !g.await(other, o) {
			w.t.Error("another client was closed")
		}
		c.(*net.TCPConn).SetLinger(0)
		g.book.abandon(all)
	}, "", "", []string{`listener_calls_total{result="client_gone"`}, 0},
	{"No connection to the upstream for `timeouts.unavailable`", func(w *world, g *rogue, c net.Conn) {
		w.wires[0].down()
		defer w.wires[0].up()
		if !testkit.Settles(patience, func() bool { return w.proxy.Ready() != nil }) {
			w.t.Error("the upstream is still there")
		}
		o := g.call(getattr, 0)
		g.book.transmit(o.id)
		_, _ = c.Write(testkit.Record(o.m))
		closes(w, c)
	}, closed, "call cannot be answered; client connection closed", []string{`upstream_queue_expired_calls_total`, `listener_calls_total{result="abandoned"`}, time.Second},
	{"Connection to the upstream refused, for less", func(w *world, g *rogue, c net.Conn) {
		w.wires[0].down()
		if !testkit.Settles(patience, func() bool { return w.proxy.Ready() != nil }) {
			w.t.Error("the upstream is still there")
		}
		o := g.call(mkdir, 0)
		g.book.transmit(o.id)
		_, _ = c.Write(testkit.Record(o.m))
		testkit.Settles(patience, func() bool { return w.sum("rdmabridge_upstream_dial_errors_total") > 0 })
		w.wires[0].up()
		if !g.await(c, o) {
			w.t.Error("the client was closed")
		}
	}, answered, "no connection to upstream", []string{`upstream_dial_errors_total`}, 0},
}

// TestClientFaults is TestFaults for clients, and for faults that belong to no single Call.
func TestClientFaults(t *testing.T) {
	doc := document(t)
	for _, r := range clientRows {
		t.Run(r.name, func(t *testing.T) {
			w := newWorld(t, 1, budget)
			w.callTimeout, w.unavailable = 15*time.Second, 15*time.Second
			if r.unavailable > 0 {
				w.unavailable = r.unavailable
			}
			w.start([]settings.ListenerOptions{{Name: "in", Address: "127.0.0.1:0", Upstream: "up"}, {Name: "in too", Address: "127.0.0.1:0", Upstream: "up"}},
				[]settings.UpstreamOptions{{Name: "up", Connections: 1, RDMA: true, Provider: w.iwarp, Endpoints: []string{w.overRDMA("up", newServer(w.book, true))}}})
			g := &rogue{name: "client", book: w.book, counts: &w.counts, addr: w.proxy.Addr("in"), local: net.IPv4(127, 0, 3, 1), dice: w.seed.dice("row", 0), xid: 100}
			if got := w.probe(g, getattr, nil); got != answered {
				t.Fatalf("before the fault: %v", got)
			}
			before := w.series()
			c, err := g.dial()
			if err != nil {
				t.Fatal(err)
			}
			r.do(w, g, c)
			c.Close()
			w.shows(before, r.log, r.metrics)
			if got := w.probe(g, mkdir, nil); got != answered {
				t.Errorf("after the fault: %v", got)
			}
			w.rest()
			w.close()
			written(t, doc, r.name, []outcome{r.sees}, r.log, r.metrics)
		})
	}
}
