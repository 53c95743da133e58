package tcpframe

import (
	"bytes"
	"testing"
)

func TestEcho(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	mem := &testMemory{}
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: mem, Prefix: 64}}, func(*Conn) RecordHandler { return echo() })
	p := dialPeer(t, l)
	for _, n := range []int{8, 9, 100, 4096, firstLease - 4, firstLease, firstLease + 1, 300_000, 1 << 20, defaultMaxRecord} {
		want := pattern(n, byte(n))
		go p.Write(fragment(true, want))
		if got := p.readRecord(); !bytes.Equal(got, want) {
			t.Fatalf("record of %d octets came back different", n)
		}
	}
}
