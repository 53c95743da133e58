package nlm

import (
	"bytes"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/arrival"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Procedures of MOUNT.
const (
	mountMnt    = 1
	mountDump   = 2
	mountExport = 5
)

// mountCall returns a Call of MOUNT as mount.nfs sends it, with AUTH_SYS.
func mountCall(xid, version, procedure uint32, path string) []byte {
	m := appendCall(nil, xid, oncrpc.ProgramMount, version, procedure, (&Server{o: Options{Name: "client"}}).root())
	return xdr.AppendOpaque(m, []byte(path))
}

// datagramTo sends m over UDP and returns what comes back, or nil if nothing does within the time.
func datagramTo(t *testing.T, to netip.AddrPort, m []byte, patience time.Duration) []byte {
	t.Helper()
	c, err := net.Dial("udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 64<<10)
	if _, err := c.Write(m); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(b)
	if err != nil {
		return nil
	}
	return b[:n]
}

// TestMountUDP: MNT over UDP reaches the server over TCP, with the credential of the client, and its Reply comes back as it is, also
// when the server has closed the connection meanwhile. Procedures with long Replies, and what the option or the transport excludes, are
// refused.
func TestMountUDP(t *testing.T) {
	n := newNetwork(t)
	var seen atomic.Pointer[[]byte]
	server := n.peer(func(c *oncrpc.Call, udp bool) []byte {
		m := bytes.Clone(c.Message)
		seen.Store(&m)
		if udp {
			t.Error("the server is asked over UDP")
		}
		return xdr.AppendWords(xdr.AppendOpaque(xdr.AppendUint32(nil, 0), []byte("a handle")), 1, 1)
	})
	s := n.bridge(server, Options{Mount: true})
	for _, version := range []uint32{1, 3} {
		call := mountCall(77+version, version, mountMnt, "/export")
		got := datagramTo(t, s.Addr(), call, testkit.Patience)
		want := append(oncrpc.AppendAccepted(nil, 77+version, oncrpc.Success), xdr.AppendWords(xdr.AppendOpaque(xdr.AppendUint32(nil, 0), []byte("a handle")), 1, 1)...)
		if !bytes.Equal(got, want) {
			t.Errorf("MNT of version %d: %x, want %x", version, got, want)
		}
		if m := seen.Load(); m == nil || !bytes.Equal((*m)[4:], call[4:]) {
			t.Errorf("the server has got %x, want %x but for the XID", m, call)
		}
		s.mountd.mu.Lock()
		s.mountd.link.conn.Close()
		s.mountd.mu.Unlock()
	}
	for _, tt := range []struct {
		name string
		call []byte
		tcp  bool
		to   *Server
		want uint32
	}{
		{"EXPORT", mountCall(1, 3, mountExport, ""), false, s, oncrpc.ProcedureUnavailable},
		{"DUMP", mountCall(1, 3, mountDump, ""), false, s, oncrpc.ProcedureUnavailable},
		{"over TCP", mountCall(1, 3, mountMnt, "/export"), true, s, oncrpc.ProgramUnavailable},
		{"without the option", mountCall(1, 3, mountMnt, "/export"), false, n.bridge(server, Options{}), oncrpc.ProgramUnavailable},
	} {
		var got []byte
		if tt.tcp {
			c, err := net.Dial("tcp", tt.to.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(testkit.Patience))
			_, _ = c.Write(ask.Record(tt.call))
			got, _ = readRecord(c, func() {})
			c.Close()
		} else {
			got = datagramTo(t, tt.to.Addr(), tt.call, testkit.Patience)
		}
		if want := oncrpc.AppendAccepted(nil, 1, tt.want); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", tt.name, got, want)
		}
	}
}

// TestMountIsBounded: forged Calls of MOUNT gain no more than arrival.ExcessBurst octets at once.
func TestMountIsBounded(t *testing.T) {
	const long = 3 << 10
	n := newNetwork(t)
	s := n.bridge(n.peer(func(*oncrpc.Call, bool) []byte { return make([]byte, long) }), Options{Mount: true, Metrics: metrics.New()})
	begun, answers := time.Now(), 0
	for i := range uint32(2 * arrival.ExcessBurst / long) {
		if datagramTo(t, s.Addr(), mountCall(i, 3, mountMnt, "/export"), 100*time.Millisecond) != nil {
			answers++
		}
	}
	most := (arrival.ExcessBurst+int(time.Since(begun).Seconds()*arrival.ExcessRate))/(long-200) + 1
	if answers == 0 || answers > most {
		t.Errorf("%d answers, want at most %d", answers, most)
	}
	if s.series.refused[refusedRate].Value() == 0 {
		t.Error("no answer was refused for its length")
	}
}
