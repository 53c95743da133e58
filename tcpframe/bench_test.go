package tcpframe

import (
	"bufio"
	"fmt"
	"io"
	"testing"
)

// BenchmarkEcho has one plain client and an echoing Conn: small records, 1 and
// 16 outstanding, and 1 MiB.
func BenchmarkEcho(b *testing.B) {
	for _, bb := range []struct{ size, depth int }{{100, 1}, {100, 16}, {8 << 10, 1}, {1 << 20, 1}, {1 << 20, 4}} {
		b.Run(fmt.Sprintf("%dx%d", bb.size, bb.depth), func(b *testing.B) {
			e := startEngine(b, EngineOptions{Loops: 1})
			l := listen(b, e, ListenOptions{Conn: ConnOptions{Memory: &testMemory{}}}, func(*Conn) RecordHandler { return sender{} })
			p := dialPeer(b, l)
			var out []byte
			rec := fragment(true, pattern(bb.size, 0))
			for range bb.depth {
				out = append(out, rec...)
			}
			p.SetDeadline(noDeadline)
			b.SetBytes(int64(len(out)))
			b.ReportAllocs()
			// The writer runs ahead of the reader, or 1 MiB would fill both sockets.
			work := make(chan struct{}, 1)
			defer close(work)
			go func() {
				for range work {
					p.Write(out)
				}
			}()
			in := bufio.NewReaderSize(p, 256<<10)
			for b.Loop() {
				work <- struct{}{}
				if _, err := io.CopyN(io.Discard, in, int64(len(out))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReceive is the receiving half alone: 1 MiB records into a Conn.
func BenchmarkReceive(b *testing.B) {
	for _, size := range []int{100, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			e := startEngine(b, EngineOptions{Loops: 1})
			got := make(chan struct{}, 64)
			n := 0
			batch := max(1, (1<<20)/size)
			rec := newRecorder()
			rec.record = func(_ *Conn, buf Buffer) {
				buf.Release()
				if n++; n%batch == 0 {
					got <- struct{}{}
				}
			}
			l := listen(b, e, ListenOptions{Conn: ConnOptions{Memory: &testMemory{}}}, func(*Conn) RecordHandler { return rec })
			p := dialPeer(b, l)
			p.SetDeadline(noDeadline)
			var out []byte
			for range batch {
				out = append(out, fragment(true, pattern(size, 0))...)
			}
			b.SetBytes(int64(len(out)))
			b.ReportAllocs()
			for b.Loop() {
				p.send(out)
				<-got
			}
		})
	}
}
