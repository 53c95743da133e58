package main

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// Calls of a program that the configuration declares. Their server keeps to the declaration, or answers with more.
func TestDeclaredPrograms(t *testing.T) {
	t.Parallel()
	log := zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	s, err := bench.StartServer(bench.ServerOptions{
		Address: "127.0.0.1:0", Loops: 1, Budget: 64 << 20, Log: log, Credits: 32, CallInline: 4096, ReplyInline: 4096,
		Provider: proxytest.IWARP(iwarp.Options{Log: log}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	type result struct {
		n      int     // octets of the Reply
		status uint32  // accept_stat
		chunks float64 // Reply chunks that were offered
	}
	declared := func(effect string) string {
		return fmt.Sprintf("programs: [{program: %d, versions: [1], reply: 2KiB, effect: %s}]", bench.EchoProgram, effect)
	}
	for _, tt := range []struct {
		name, programs string
		reply          int // octets of data that the Call asks for
		want           result
	}{
		{"unknown", "", 100, result{24 + 8 + 100, oncrpc.Success, 1}},
		{"declared", declared("read_only"), 100, result{24 + 8 + 100, oncrpc.Success, 0}},
		{"declared, the longest", declared("non_idempotent"), 2048 - 8, result{24 + 2048, oncrpc.Success, 0}},
		{"longer, but inline", declared("non_idempotent"), 3000, result{24 + 8 + 3000, oncrpc.Success, 0}},
		{"longer, and the Call only reads", declared("read_only"), 100 << 10, result{24 + 8 + 100<<10, oncrpc.Success, 1}},
		{"longer, and the Call must not be repeated", declared("non_idempotent"), 100 << 10, result{24, oncrpc.SystemError, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, signals, wait := startServe(t, fmt.Sprintf(`
listeners: [{name: near, address: "127.0.0.1:0", upstream: far}]
upstreams: [{name: far, transport: rdma, endpoints: [%q]}]
admin: {address: none}
control: {path: none}
%s
`, s.Addr(), tt.programs))
			if err := b.waitReady(testkit.Patience); err != nil {
				t.Fatal(err)
			}
			c, err := proxytest.DialClient(b.proxy.Addr("near"))
			if err != nil {
				t.Fatal(err)
			}
			r, err := c.Call(echoCall(7, tt.reply))
			if err != nil {
				t.Fatal(err)
			}
			var h oncrpc.Reply
			if err := oncrpc.ParseReply(r, &h); err != nil {
				t.Fatal(err)
			}
			if got := (result{len(r), h.AcceptStat, replyChunks(t, b)}); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			c.Conn.Close() // a drain waits for clients
			signals <- syscall.SIGTERM
			if err := wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// echoCall returns a Call of the echo program that asks for a Reply of n octets: tag, length, delay, no data.
func echoCall(xid uint32, n int) []byte {
	m := proxytest.CallHeader(nil, xid, bench.EchoProgram, bench.EchoVersion, bench.EchoProc)
	return testkit.AppendWords(m, 0, uint32(n), 0, 0)
}

// replyChunks returns how many Calls that were sent over RDMA have offered a Reply chunk. The bridge's own Calls offer none.
func replyChunks(t *testing.T, b *bridge) (n float64) {
	t.Helper()
	for _, m := range gathered(t, b)["rdmabridge_upstream_rdma_calls_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "reply" && l.GetValue() == "reply_chunk" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
