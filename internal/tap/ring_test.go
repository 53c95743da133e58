package tap

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestRing puts messages of all lengths into a ring while another goroutine takes them out, and
// compares those that come out with those that fitted.
func TestRing(t *testing.T) {
	r := newRing(4096)
	want := make(chan []byte, 1<<16)
	done := make(chan int)
	go func() {
		n := 0
		for b := range want {
			var e *event
			for e = r.peek(); e == nil; e = r.peek() {
			}
			if !bytes.Equal(e.octets, b) {
				t.Errorf("message %d: %d octets, want %d", n, len(e.octets), len(b))
			}
			r.pop()
			n++
		}
		done <- n
	}()
	missed, put := 0, 0
	rounds := 20000
	if testkit.RaceEnabled {
		rounds = 2000
	}
	for i := range rounds {
		b := testkit.Pattern(i*37%1500, byte(i))
		if r.put(&event{at: time.Now()}, [][]byte{b[:len(b)/3], b[len(b)/3:]}, len(b)) {
			want <- b
			put++
		} else {
			missed++
		}
	}
	close(want)
	if n := <-done; n != put {
		t.Errorf("%d messages came out of %d", n, put)
	}
	if r.put(&event{}, [][]byte{make([]byte, 5000)}, 5000) {
		t.Error("a message that is longer than the ring fits")
	}
	t.Logf("%d messages did not fit", missed)
}

// TestRingAllocs checks that a loop does not allocate.
func TestRingAllocs(t *testing.T) {
	r := newRing(1 << 16)
	parts := [][]byte{make([]byte, 300), make([]byte, 200)}
	e := event{kind: eventMessage}
	if n := testing.AllocsPerRun(1000, func() {
		if !r.put(&e, parts, 500) {
			panic("no room")
		}
		r.pop()
	}); n != 0 {
		t.Errorf("%v allocations for each message", n)
	}
}

// TestRingFull checks that a ring that is full takes nothing, and goes on when there is room.
func TestRingFull(t *testing.T) {
	r := newRing(1 << 10)
	b := make([]byte, 100)
	n := 0
	for r.put(&event{text: fmt.Sprint(n)}, [][]byte{b}, len(b)) {
		n++
	}
	if n != 10 || !r.full() {
		t.Errorf("%d messages of 100 octets fit into 1024, full %v", n, r.full())
	}
	for i := range n {
		if e := r.peek(); e == nil || e.text != fmt.Sprint(i) {
			t.Fatalf("event %d: %+v", i, e)
		}
		r.pop()
	}
	if r.peek() != nil || !r.put(&event{}, [][]byte{b}, len(b)) {
		t.Error("the ring does not go on")
	}
}
