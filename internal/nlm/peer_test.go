package nlm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A peer is a host of the tests: a server, or a client that can be called. It has an rpcbind, which has one port for all
// programs.
type peer struct {
	t    testing.TB
	addr netip.Addr
	port uint16
	// answer returns the results of a Call, or nil for no Reply.
	answer func(c *oncrpc.Call, udp bool) []byte
	xid    atomic.Uint32
}

// A network is the addresses of one test, and the port of rpcbind on them.
type network struct {
	t       testing.TB
	prefix  string
	rpcbind uint16
	last    int
}

func newNetwork(t testing.TB) *network {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // held, so that no test beside this one is given the port
	return &network{t: t, prefix: fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256)), rpcbind: uint16(l.Addr().(*net.TCPAddr).Port)}
}

func (n *network) next() netip.Addr {
	n.last++
	return netip.MustParseAddr(fmt.Sprint(n.prefix, n.last))
}

// peer starts a host.
func (n *network) peer(answer func(c *oncrpc.Call, udp bool) []byte) *peer {
	p := &peer{t: n.t, addr: n.next(), answer: answer}
	binder, err := net.Listen("tcp", netip.AddrPortFrom(p.addr, n.rpcbind).String())
	if err != nil {
		n.t.Fatal(err)
	}
	tcp, udp, err := listen(netip.AddrPortFrom(p.addr, 0).String())
	if err != nil {
		n.t.Fatal(err)
	}
	p.port = uint16(tcp.Addr().(*net.TCPAddr).Port)
	done := make(chan struct{}, 3)
	go func() {
		p.accept(tcp, func(c *oncrpc.Call) []byte { return p.answer(c, false) })
		done <- struct{}{}
	}()
	go func() {
		p.accept(binder, func(*oncrpc.Call) []byte { return xdr.AppendUint32(nil, uint32(p.port)) })
		done <- struct{}{}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			buf := make([]byte, maxDatagram)
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if b := p.reply(buf[:n], func(c *oncrpc.Call) []byte { return p.answer(c, true) }); b != nil {
				_, _ = udp.WriteToUDPAddrPort(b, from)
			}
		}
	}()
	n.t.Cleanup(func() {
		tcp.Close()
		binder.Close()
		_ = udp.Close()
		for range 3 {
			<-done
		}
	})
	return p
}

func (p *peer) reply(m []byte, answer func(*oncrpc.Call) []byte) []byte {
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		p.t.Error(err)
		return nil
	}
	results := answer(&c)
	if results == nil {
		return nil
	}
	return append(oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success), results...)
}

func (p *peer) accept(l net.Listener, answer func(*oncrpc.Call) []byte) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			stop := context.AfterFunc(p.t.Context(), func() { c.Close() })
			defer stop()
			for {
				m, err := readRecord(c, func() {})
				if err != nil {
					return
				}
				go func() {
					if b := p.reply(m, answer); b != nil {
						_, _ = c.Write(ask.Record(b))
					}
				}()
			}
		}()
	}
}

// call calls a procedure from this host, and returns the results.
func (p *peer) call(to netip.AddrPort, network string, program, version, procedure uint32, args []byte) []byte {
	p.t.Helper()
	var s Server
	s.o.RPCBindPort = 1
	c, err := s.dial(p.t.Context(), network, p.addr, to, false)
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	xid := p.xid.Add(1)
	m := append(appendCall(nil, xid, program, version, procedure, (&Server{o: Options{Name: "a client"}}).root()), args...)
	var b []byte
	if network == "udp" {
		b, err = exchange(p.t.Context(), c, xid, m, true)
	} else {
		if _, err = c.Write(ask.Record(m)); err == nil {
			b, err = readRecord(c, func() {})
		}
	}
	if err != nil {
		p.t.Errorf("procedure %d: %v", procedure, err)
		return nil
	}
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(b, &r); err != nil || !r.Succeeded() || r.XID != xid {
		p.t.Errorf("procedure %d: %x, %v", procedure, b, err)
		return nil
	}
	return b[r.Results:]
}

// lock returns arguments of LOCK, for the others, too.
func (p *peer) lock(svid uint32, start, length uint64) *request {
	return &request{
		cookie: []byte{9, 8, 7, byte(svid)}, block: 1, exclusive: 1, name: []byte("client"), handle: []byte("a handle of sixteen octets"),
		oh: fmt.Appendf(nil, "%d@client", svid), svid: svid, start: start, length: length, state: 3,
	}
}

// do calls a procedure of NLM and returns its stat.
func (p *peer) do(s *Server, network string, version, procedure uint32, r *request) uint32 {
	p.t.Helper()
	b := p.call(s.Addr(), network, oncrpc.ProgramNLM, version, procedure, r.append(nil, version, procedure))
	var res result
	if !res.parse(b, 0, version, procedure) {
		p.t.Errorf("procedure %d: results %x", procedure, b)
	}
	if c := xdr.NewCursor(b, 0); string(opaque(&c, b, maxCookie)) != string(r.cookie) {
		p.t.Errorf("procedure %d: results %x with another cookie", procedure, b)
	}
	return res.stat
}

// bridge starts a Server at the next address.
func (n *network) bridge(server *peer, o Options) *Server {
	o.Address, o.Server, o.Name, o.RPCBindPort = netip.AddrPortFrom(n.next(), 0).String(), server.addr.String(), "the bridge", n.rpcbind
	return start(n.t, o)
}
