package tcpframe

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// BenchmarkEcho has one plain client and an echoing Conn: small records, 1 and 16
// outstanding, and records of 1 MiB. For comparison, "net" echoes on a goroutine with a
// net.Conn.
func BenchmarkEcho(b *testing.B) {
	for _, bb := range []struct{ size, depth int }{{100, 1}, {100, 16}, {8 << 10, 1}, {1 << 20, 1}, {1 << 20, 4}} {
		b.Run(fmt.Sprintf("%dx%d", bb.size, bb.depth), func(b *testing.B) {
			e := startEngine(b, EngineOptions{Loops: 1})
			o := ConnOptions{Memory: lend(&testMemory{})}
			l := listen(b, e, ListenOptions{Conn: o}, func(*Conn) RecordHandler { return sender{} })
			benchEcho(b, dialPeer(b, l).TCPConn, bb.size, bb.depth)
		})
		b.Run(fmt.Sprintf("%dx%d/net", bb.size, bb.depth), func(b *testing.B) {
			s, c := testkit.TCPPair(b)
			go func() {
				in := bufio.NewReaderSize(s, 64<<10)
				rec := make([]byte, 4+bb.size)
				for {
					if _, err := io.ReadFull(in, rec); err != nil {
						return
					}
					if _, err := s.Write(rec); err != nil {
						return
					}
				}
			}()
			benchEcho(b, c, bb.size, bb.depth)
			c.Close()
		})
	}
}

func benchEcho(b *testing.B, c *net.TCPConn, size, depth int) {
	c.SetDeadline(noDeadline)
	out := bytes.Repeat(fragment(true, pattern(size, 0)), depth)
	in := make([]byte, min(len(out), 256<<10))
	b.SetBytes(int64(len(out)))
	b.ReportAllocs()
	write := func() { c.Write(out) }
	if len(out) > 64<<10 {
		// The writer must not wait for the reader: both sockets would fill.
		work := make(chan struct{}, 1)
		defer close(work)
		go func() {
			for range work {
				c.Write(out)
			}
		}()
		write = func() { work <- struct{}{} }
	}
	for b.Loop() {
		write()
		for left := len(out); left > 0; {
			n, err := c.Read(in[:min(left, len(in))])
			if err != nil {
				b.Fatal(err)
			}
			left -= n
		}
	}
}

// BenchmarkReceive measures the receiving half alone.
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
			l := listen(b, e, ListenOptions{Conn: ConnOptions{Memory: lend(&testMemory{})}}, func(*Conn) RecordHandler { return rec })
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
