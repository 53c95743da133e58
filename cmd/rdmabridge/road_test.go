package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// road starts a bridge with an RPC-over-RDMA server behind it, over iWARP on loopback
// sockets. TCP clients connect to the address that it returns.
func road(t testing.TB, o iwarp.Options, credits int) (*proxytest.Harness, string, *proxytest.RDMAServer) {
	t.Helper()
	h := proxytest.NewHarness(t, 512<<20)
	o.Log = h.Log
	l := iwarptest.NewLoop()
	t.Cleanup(l.Stop)
	s := h.RDMAServer(proxytest.IWARP(o), []loop.Loop{l}, "127.0.0.1:0", credits, proxytest.Behaviour{})
	p := h.Proxy(
		[]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{
			Name: "storage", RDMA: true, Provider: proxytest.IWARP(o), Endpoints: []string{s.Addr()}, BackoffMin: 5 * time.Millisecond,
			ProbeInterval: -1, // the server counts Calls
		}},
	)
	return h, p.Addr("nfs"), s
}

// TestRoad: many clients send Calls of all shapes and sizes, with CRC on and off. Every
// octet of their Replies is right, and the server executes no Call twice.
func TestRoad(t *testing.T) {
	t.Parallel()
	for _, o := range []iwarp.Options{{}, {CRCOff: true}, {FPDU: iwarp.FPDUMax}} {
		t.Run(fmt.Sprintf("crc=%t,fpdu=%v", !o.CRCOff, o.FPDU), func(t *testing.T) {
			h, addr, s := road(t, o, 16)
			var wg sync.WaitGroup
			const clients = 12
			calls := 60
			if testkit.RaceEnabled {
				calls = 20
			}
			for i := range clients {
				c := h.Client(addr)
				for part := range 4 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						r := rand.New(rand.NewPCG(uint64(i), uint64(part)))
						for j := range calls {
							xid := uint32(i<<20 | part<<16 | j + 1)
							n := r.IntN(1 << (1 + r.IntN(20)))
							var m []byte
							switch r.IntN(5) {
							case 0:
								m = proxytest.ReadCall(xid, uint64(j), uint32(n))
							case 1:
								m = proxytest.WriteCall(xid, uint64(j), n)
							case 2:
								m = proxytest.EchoCall(xid, n, 0, 0)
							case 3:
								m = proxytest.EchoCall(xid, 0, n, 0)
							default:
								m = proxytest.GetattrCall(xid)
							}
							got, err := c.Call(m)
							if err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
								t.Errorf("client %d call %d: wrong octets or %v", i, j, err)
								return
							}
						}
					}()
				}
			}
			wg.Wait()
			if n := s.Calls.Load(); n != int64(clients*4*calls) {
				t.Errorf("%d Calls at the server, want %d", n, clients*4*calls)
			}
		})
	}
}

// BenchmarkRoad measures client, bridge and server in one process. The ratios between its
// lines are meaningful, the single lines are not.
func BenchmarkRoad(b *testing.B) {
	small := func(xid uint32) []byte { return proxytest.EchoCall(xid, 20, 60, 0) }
	getattr := proxytest.GetattrCall
	read := func(n uint32) func(uint32) []byte {
		return func(xid uint32) []byte { return proxytest.ReadCall(xid, 0, n) }
	}
	write := func(n int) func(uint32) []byte {
		return func(xid uint32) []byte { return proxytest.WriteCall(xid, 0, n) }
	}
	for _, bc := range []struct {
		name        string
		make        func(uint32) []byte
		conns, deep int
		octets      int64
	}{
		{"getattr/1x1", getattr, 1, 1, 0},
		{"getattr/1x16", getattr, 1, 16, 0},
		{"getattr/16x16", getattr, 16, 16, 0},
		{"echo/16x16", small, 16, 16, 0},
		{"read64K/4x4", read(64 << 10), 4, 4, 64 << 10},
		{"read1M/1x4", read(1 << 20), 1, 4, 1 << 20},
		{"write64K/4x4", write(64 << 10), 4, 4, 64 << 10},
		{"write1M/1x4", write(1 << 20), 1, 4, 1 << 20},
	} {
		b.Run(bc.name, func(b *testing.B) {
			_, addr, _ := road(b, iwarp.Options{}, 64)
			b.SetBytes(bc.octets)
			var wg sync.WaitGroup
			left := make(chan struct{}, 1024)
			for i := range bc.conns {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { c.Close() })
				wg.Add(1)
				go func() {
					defer wg.Done()
					pump(b, c, bc.make(1), uint32(i)<<20, bc.deep, left)
				}()
			}
			for b.Loop() {
				left <- struct{}{}
			}
			close(left)
			wg.Wait()
		})
	}
}

// pump keeps deep copies of the Call m outstanding on c, one for each token. XIDs
// count from xid: the same Call with the same XID from the same address would be a
// retransmission.
func pump(b *testing.B, c net.Conn, m []byte, xid uint32, deep int, tokens <-chan struct{}) {
	slots := make(chan struct{}, deep)
	done := make(chan struct{})
	var sent, got int
	var mu sync.Mutex
	go func() {
		defer close(done)
		buf := make([]byte, 0, 2<<20)
		var mark [4]byte
		for {
			if _, err := io.ReadFull(c, mark[:]); err != nil {
				return
			}
			n := int(binary.BigEndian.Uint32(mark[:]) &^ (1 << 31))
			if _, err := io.ReadFull(c, buf[:n]); err != nil {
				b.Error(err)
				return
			}
			mu.Lock()
			got++
			mu.Unlock()
			<-slots
		}
	}()
	rec := make([]byte, 4, 4+len(m))
	binary.BigEndian.PutUint32(rec, 1<<31|uint32(len(m)))
	rec = append(rec, m...)
	for range tokens {
		slots <- struct{}{}
		sent++
		binary.BigEndian.PutUint32(rec[4:], xid+uint32(sent))
		if _, err := c.Write(rec); err != nil {
			b.Error(err)
			return
		}
	}
	for range cap(slots) {
		slots <- struct{}{} // all answered
	}
	c.Close()
	<-done
}
