package tcpframe

import (
	"bytes"
	"testing"
)

// SendFirst puts a record behind the one that was written in part and behind earlier ones
// of SendFirst, and before all others. Every record arrives whole.
func TestSendFirst(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	rec := newRecorder()
	const long, many = 1 << 20, 16
	rec.record = func(c *Conn, b Buffer) {
		b.Release()
		for i := range byte(many) {
			c.Send([][]byte{pattern(long, i)}, nil)
		}
		c.write() // writes the first records and a part of the next one
		for i := range byte(3) {
			c.SendFirst([][]byte{pattern(100, i)}, nil)
		}
		c.Send([][]byte{pattern(200, 0)}, nil)
		c.SendFirst([][]byte{pattern(100, 3)}, nil)
	}
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return rec })
	p := dialPeer(t, l)
	p.send(fragment(true, pattern(100, 0)))
	var order []int
	longs, shorts := byte(0), byte(0)
	for range many + 5 {
		r := p.readRecord()
		order = append(order, len(r))
		want := pattern(200, 0)
		switch len(r) {
		case long:
			want = pattern(long, longs)
			longs++
		case 100:
			want = pattern(100, shorts)
			shorts++
		}
		if !bytes.Equal(r, want) {
			t.Fatalf("record %d of %d octets differs", len(order), len(r))
		}
	}
	at := 0
	for order[at] == long {
		at++
	}
	if at == 0 || at == many {
		t.Errorf("%d long records came before those of SendFirst", at)
	}
	for i := range 4 {
		if order[at+i] != 100 {
			t.Errorf("order of lengths: %d", order)
			break
		}
	}
	if order[len(order)-1] != 200 {
		t.Errorf("the last has %d octets", order[len(order)-1])
	}
}

// With an empty queue SendFirst is Send. A record that was written no longer counts as the
// last one of SendFirst.
func TestSendFirstAlone(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	rec := newRecorder()
	rec.record = func(c *Conn, b Buffer) {
		b.Release()
		for i := range byte(3) {
			c.SendFirst([][]byte{pattern(100, i)}, nil)
		}
		c.Send([][]byte{pattern(100, 3)}, nil)
	}
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return rec })
	p := dialPeer(t, l)
	for range 3 {
		p.send(fragment(true, pattern(100, 0)))
		for i := range byte(4) {
			if !bytes.Equal(p.readRecord(), pattern(100, i)) {
				t.Fatal("out of order")
			}
		}
	}
}
