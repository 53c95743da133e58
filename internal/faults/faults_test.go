package faults

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A bed is a server with faults in front of a server without.
type bed struct {
	*proxytest.Harness
	t      *testing.T
	s      *Server
	behind *proxytest.TCPServer
	log    bytes.Buffer // until the server is closed
}

// newBed starts a server with these rules.
func newBed(t *testing.T, rules string) *bed {
	t.Helper()
	b := &bed{Harness: proxytest.NewHarness(t, 16<<20), t: t}
	b.behind = b.TCPServer(proxytest.Behaviour{})
	plan, err := Load([]byte("seed: 11\nrules:\n" + rules))
	if err != nil {
		t.Fatal(err)
	}
	b.s, err = Start(Options{
		Plan: plan, To: b.behind.Addr(), TCP: "127.0.0.1:0", RDMA: "127.0.0.1:0",
		Open:    func(func() [][]byte) (fabric.Provider, error) { return proxytest.IWARP(iwarp.Options{}), nil },
		Credits: 16, CallInline: 4096, ReplyInline: 4096, Loops: 1, Budget: 64 << 20,
		Log: zerolog.New(zerolog.SyncWriter(&b.log)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

func (b *bed) close() {
	if b.s != nil {
		if err := b.s.Close(); err != nil {
			b.t.Error(err)
		}
		b.s = nil
	}
}

// dial connects over RDMA.
func (b *bed) dial() (*proxytest.RDMAClient, error) {
	return b.DialRDMA(proxytest.IWARP(iwarp.Options{}), b.Engine.Loops()[0], b.s.RDMA().String(), rdmaside.RequesterOptions{Deadline: 250 * time.Millisecond})
}

// injected fails the test unless the rules injected so many faults.
func (b *bed) injected(want uint64) {
	b.t.Helper()
	var n uint64
	b.Eventually(fmt.Sprintf("%d faults, and not %+v", want, b.s.Counts()), func() bool {
		n = 0
		for _, c := range b.s.Counts() {
			n += c.Injected
		}
		return n >= want
	})
	if n != want {
		b.t.Errorf("%d faults were injected, want %d", n, want)
	}
}

// What a client sees of a Call.
const (
	answered = "answered" // as if nothing were wrong
	failed   = "failed"   // the Call failed, and the connection goes on
	ended    = "ended"    // the connection ended
	silent   = "silent"   // no Reply within 250 ms, and so the connection ended
)

// TestFaultsRDMA: a Requester makes of each fault what RFC 8166 says.
func TestFaultsRDMA(t *testing.T) {
	read, reply := proxytest.ReadCall(7, 0, 8000), proxytest.EchoCall(7, 10, 20000, 0)
	getattr := proxytest.GetattrCall(7)
	for _, tt := range []struct {
		rule  string
		calls [][]byte // one after the other
		want  string
		says  string // in the error
	}{
		{"fault: delay, delay: 50ms", [][]byte{read, getattr}, answered, ""},
		{"fault: delay, delay: 10s", [][]byte{getattr}, silent, ""},
		{"fault: reorder, delay: 20ms", [][]byte{getattr}, answered, ""},
		{"fault: drop_call", [][]byte{read, getattr, reply}, silent, ""},
		{"fault: drop_reply", [][]byte{read, getattr, reply}, silent, ""},
		{"fault: duplicate_reply", [][]byte{read, getattr, reply}, answered, ""},
		{"fault: wrong_xid", [][]byte{read, getattr}, silent, ""},
		{"fault: wrong_xid, where: header", [][]byte{getattr}, silent, ""},
		{"fault: wrong_xid, where: payload", [][]byte{getattr}, failed, "XID"},
		{"fault: rpc_error", [][]byte{read, getattr, reply}, "SYSTEM_ERR", ""},
		{"fault: rpc_error, error: AUTH_TOOWEAK", [][]byte{getattr}, "AUTH_TOOWEAK", ""},
		{"fault: short_reply", [][]byte{read}, failed, ""},
		{"fault: corrupt", [][]byte{read, getattr, reply}, ended, "CRC"},
		{"fault: close", [][]byte{read, getattr, reply}, ended, ""},
		{"fault: reset", [][]byte{read, getattr, reply}, ended, "reset"},
		{"fault: cut", [][]byte{read, getattr, reply}, ended, "reset"},
		{"fault: cut, how: close, octets: 40", [][]byte{getattr}, ended, ""},
		{"fault: half_close", [][]byte{getattr}, answered, ""},
		{"fault: freeze, delay: 60ms", [][]byte{read, getattr, reply}, answered, ""},
		{"fault: grant", [][]byte{read, getattr, reply}, answered, ""},
		{"fault: grant, credits: 4294967295", [][]byte{getattr}, answered, ""},
		{"fault: err_chunk", [][]byte{read, getattr, reply}, failed, "ERR_CHUNK"},
		{"fault: err_vers", [][]byte{getattr}, ended, "ERR_VERS"}, // the first answer: the peer speaks no version of ours
		{"fault: bad_version", [][]byte{getattr, read}, silent, ""},
		{"fault: bad_procedure", [][]byte{getattr, read}, silent, ""},
		{"fault: short_header", [][]byte{getattr, read}, silent, ""},
		{"fault: chunk_short", [][]byte{read}, failed, ""},
		{"fault: chunk_short", [][]byte{reply}, "20028 octets that are wrong", ""}, // only the program knows how long its Replies are
		{"fault: chunk_long, octets: 100", [][]byte{reply}, failed, ""},
		{"fault: chunk_beyond", [][]byte{read, reply}, failed, ""},
		{"fault: chunk_unwritten", [][]byte{read, reply}, failed, ""},
		{"fault: chunk_missing", [][]byte{read}, "128 octets that are wrong", ""}, // as the server sent them: the client finds no data
		{"fault: chunk_overrun", [][]byte{read, reply}, ended, ""},
		{"fault: late_write, delay: 20ms", [][]byte{read, reply}, answered, ""},
		{"fault: wrong_invalidate", [][]byte{read, reply}, ended, ""},
	} {
		for _, m := range tt.calls {
			t.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(strings.TrimPrefix(tt.rule, "fault: "), ",", ""), binary.BigEndian.Uint32(m[12:])%1000+binary.BigEndian.Uint32(m[20:])), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, "- {name: it, count: 1, "+tt.rule+"}\n")
				c, err := b.dial()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				begun := time.Now()
				got, err := c.Call(m)
				if said := fmt.Sprint(err); tt.says != "" && !strings.Contains(said, tt.says) {
					t.Errorf("the error says %q, want %q in it", said, tt.says)
				}
				b.injected(1)
				_, again := c.Call(proxytest.GetattrCall(8))
				outcome := ""
				switch {
				case bytes.Equal(got, proxytest.Expected(m)):
					outcome = answered
				case len(got) == 24 && got[23] == 5:
					outcome = "SYSTEM_ERR"
				case len(got) == 20 && got[19] == 5:
					outcome = "AUTH_TOOWEAK"
				case got != nil:
					outcome = fmt.Sprintf("%d octets that are wrong", len(got))
				case again == nil:
					outcome = failed
				case time.Since(begun) >= 250*time.Millisecond:
					outcome = silent
				default:
					outcome = ended
				}
				if outcome != tt.want {
					t.Errorf("the Call was %s, want %s (%v)", outcome, tt.want, err)
				}
				// The server is there for the next connection.
				next, err := b.dial()
				if err != nil {
					t.Fatal(err)
				}
				defer next.Close()
				if got, err := next.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
					t.Errorf("on the next connection: %d octets, %v", len(got), err)
				}
			})
		}
	}
}

// TestFaultsTCP: the octets that a TCP client gets are those of the fault.
func TestFaultsTCP(t *testing.T) {
	m := proxytest.GetattrCall(7)
	reply := testkit.Record(proxytest.Expected(m))
	with := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(reply)) }
	for _, tt := range []struct {
		rule string
		want []byte
		err  error // of the connection; nil: it goes on
	}{
		{"fault: delay, delay: 20ms", reply, nil},
		{"fault: reorder, delay: 20ms", reply, nil},
		{"fault: drop_call", nil, nil},
		{"fault: drop_reply", nil, nil},
		{"fault: duplicate_reply", append(bytes.Clone(reply), reply...), nil},
		{"fault: wrong_xid", with(func(b []byte) []byte { b[4] ^= 0x80; return b }), nil},
		{"fault: rpc_error, error: PROC_UNAVAIL", testkit.Record(testkit.Words(7, 1, 0, 0, 0, 3)), nil},
		{"fault: short_reply, octets: 8", with(func(b []byte) []byte { b[3] -= 8; return b[:len(b)-8] }), nil},
		{"fault: corrupt", with(func(b []byte) []byte { b[68] ^= 1; return b }), nil},
		{"fault: close", nil, io.EOF},
		{"fault: reset", nil, syscall.ECONNRESET},
		{"fault: cut", reply[:20], syscall.ECONNRESET},
		{"fault: cut, octets: 33, how: close", reply[:33], io.EOF},
		{"fault: half_close", reply, io.EOF},
		{"fault: freeze, delay: 20ms", reply, nil},
		{"fault: fragments, octets: 64", with(func(b []byte) []byte {
			out := append(testkit.Words(64), b[4:68]...)
			out = append(append(out, testkit.Words(uint32(len(b)-68))...), b[68:]...)
			return append(out, 0x80, 0, 0, 0)
		}), nil},
		{"fault: long_record, octets: 12", with(func(b []byte) []byte { b[3] += 12; return b }), nil},
		{"fault: short_record, octets: 12", with(func(b []byte) []byte { b[3] -= 12; return b }), nil},
	} {
		t.Run(strings.TrimPrefix(tt.rule, "fault: "), func(t *testing.T) {
			b := newBed(t, "- {count: 1, "+tt.rule+"}\n")
			c, err := net.Dial("tcp", b.s.TCP().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := testkit.WriteRecord(c, m); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
			got := make([]byte, len(tt.want))
			if _, err := io.ReadFull(c, got); err != nil && tt.err != syscall.ECONNRESET {
				t.Fatal(err) // octets may be lost with RST
			}
			if err == nil && !bytes.Equal(got, tt.want) {
				t.Errorf("got  %x\nwant %x", got, tt.want)
			}
			b.injected(1)
			if tt.err != nil {
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, tt.err) {
					t.Errorf("the connection: %v, want %v", err, tt.err)
				}
				return
			}
			// The next Call is answered.
			next := proxytest.GetattrCall(8)
			if err := testkit.WriteRecord(c, next); err != nil {
				t.Fatal(err)
			}
			if r, err := testkit.ReadRecord(c); err != nil || !bytes.Equal(r, proxytest.Expected(next)) {
				t.Errorf("the next Reply: %x, %v", r, err)
			}
		})
	}
}

// TestFaultsConnect: connections are refused, and those that hang are set up later.
func TestFaultsConnect(t *testing.T) {
	for _, tt := range []struct {
		rule string
		want error
	}{
		{"fault: refuse", fabric.ErrRejected},
		{"fault: hang_connect, delay: 50ms", nil},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			b := newBed(t, "- {count: 2, "+tt.rule+"}\n")
			c, err := net.Dial("tcp", b.s.TCP().String())
			if err == nil {
				defer c.Close()
				_ = testkit.WriteRecord(c, proxytest.GetattrCall(7))
				_, err = testkit.ReadRecord(c)
			}
			if (err != nil) != (tt.want != nil) {
				t.Errorf("over TCP: %v, want %v", err, tt.want)
			}
			r, err := b.dial()
			if !errors.Is(err, tt.want) {
				t.Errorf("over RDMA: %v, want %v", err, tt.want)
			}
			if err == nil {
				r.Close()
			}
			b.injected(2)
			if r, err = b.dial(); err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := r.Call(proxytest.GetattrCall(9)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFaultsReorder: a held Reply comes after the next one.
func TestFaultsReorder(t *testing.T) {
	b := newBed(t, "- {fault: reorder, count: 1, delay: 1m}\n")
	c, err := net.Dial("tcp", b.s.TCP().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for xid := range uint32(2) {
		if err := testkit.WriteRecord(c, proxytest.GetattrCall(xid)); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
	for _, want := range []uint32{1, 0} {
		m, err := testkit.ReadRecord(c)
		if err != nil || binary.BigEndian.Uint32(m) != want {
			t.Fatalf("Reply %x, %v, want that to Call %d", m, err, want)
		}
	}
}

// TestFaultsSameSeed: two runs with one seed strike the same Calls; another seed strikes others.
func TestFaultsSameSeed(t *testing.T) {
	run := func(seed uint64) (xids []string) {
		t.Helper()
		b := newBed(t, "- {fault: rpc_error, probability: 0.3, match: {operations: [getattr]}}\n- {fault: delay, delay: 1ms, jitter: 5ms, every: 3}\n")
		b.s.judge.plan.Seed = seed
		c := b.Client(b.s.TCP().String())
		for xid := range uint32(60) {
			if _, err := c.Call(proxytest.GetattrCall(xid)); err != nil {
				t.Fatal(err)
			}
		}
		b.close()
		for line := range bytes.Lines(b.log.Bytes()) {
			var l struct {
				Event, Fault, XID string
				Delay             float64
			}
			if err := json.Unmarshal(line, &l); err != nil {
				t.Fatal(err)
			}
			if l.Event == "fault_injected" {
				xids = append(xids, fmt.Sprint(l.Fault, l.XID, l.Delay))
			}
		}
		return xids
	}
	one, two, other := run(1), run(1), run(2)
	if fmt.Sprint(one) != fmt.Sprint(two) {
		t.Errorf("seed 1 struck %v,\nthen %v", one, two)
	}
	if fmt.Sprint(one) == fmt.Sprint(other) {
		t.Errorf("seeds 1 and 2 both struck %v", one)
	}
	if len(one) < 20 || len(one) > 50 {
		t.Errorf("%d faults in 60 Calls: %v", len(one), one)
	}
}

// TestFaultsParked: the next connection of a client has the server's connection of the one before, so
// that the server's memory of the client holds.
func TestFaultsParked(t *testing.T) {
	b := newBed(t, "- {fault: close, every: 2}\n")
	for range 3 {
		c, err := b.dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Call(proxytest.GetattrCall(1)); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Call(proxytest.GetattrCall(2)) // the connection ends
		c.Close()
		b.Eventually("the session has ended", func() bool {
			b.s.mu.Lock()
			defer b.s.mu.Unlock()
			return len(b.s.parked) == 1
		})
	}
	if n := len(b.behind.Conns()); n != 1 {
		t.Errorf("the server has %d connections, want 1", n)
	}
}
