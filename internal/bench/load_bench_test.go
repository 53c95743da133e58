package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// The cost of load and server without a proxy: no proxy can be faster. One
// operation is a Call of 100 octets and its Reply.
func BenchmarkEcho(b *testing.B) {
	for _, transport := range []string{"tcp", "rdma"} {
		for _, n := range [][2]int{{1, 1}, {16, 16}, {256, 16}} {
			if transport == "rdma" && n[0] > 16 {
				continue
			}
			work := Load{Conns: n[0], Depth: n[1], Work: Work{Call: 100, Reply: 100}}
			b.Run(transport+" "+fmt.Sprintf("%dx%d", n[0], n[1]), func(b *testing.B) {
				p := provider(transport == "rdma")
				s, err := StartServer(ServerOptions{Address: "127.0.0.1:0", Loops: 1, Budget: 1 << 30, Credits: 128, CallInline: 4096, ReplyInline: 4096, Provider: p, Log: zerolog.Nop()})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				l, err := NewLoader(LoaderOptions{Loops: 1, Budget: 1 << 30, Log: zerolog.Nop()})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				work.Target, work.Provider = s.Addr().String(), p
				work.Warmup, work.Duration, work.Timeout = 100*time.Millisecond, 500*time.Millisecond, 10*time.Second
				work.Processes = Processes{pid()}
				var r *Result
				for b.Loop() {
					if r, err = l.Run(context.Background(), work); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(r.CallsPerSecond, "calls/s")
				b.ReportMetric(r.CPU.PerCall*1e3, "cpu-ns/call")
			})
		}
	}
}
