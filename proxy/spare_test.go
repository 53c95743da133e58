package proxy

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
)

// TestSpare: a Reply may lie behind its Call in a short block, as long as little of the memory for Calls is taken.
func TestSpare(t *testing.T) {
	arena, err := regmem.New(regmem.Options{Budget: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	calls := arena.Account("calls", 32<<20)
	lease := func(n int) *regmem.Lease {
		l, err := calls.Lease(n)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	call := func(n int) *call {
		l := lease(n)
		c := &call{}
		c.buf, c.rdma.Message, c.shares = l, l.Bytes(), true
		return c
	}
	l := &eventLoop{ample: ample(calls)}
	for _, tt := range []struct {
		length int
		spare  uint32
	}{{100, 412}, {512, 0}, {600, 424}, {1025, 0}, {4096, 0}} {
		if got := call(tt.length).spare(l); got != tt.spare {
			t.Errorf("%d octets may follow a Call of %d, want %d", got, tt.length, tt.spare)
		}
	}
	c := call(100)
	c.shares = false // in memory of an Exchange
	if got := c.spare(l); got != 0 {
		t.Errorf("%d octets may follow a Call of an RDMA client", got)
	}
	c = call(100)
	for calls.Taken() <= calls.Limit()/4 {
		lease(1 << 20)
	}
	if l.ample = ample(calls); c.spare(l) != 0 {
		t.Errorf("%d octets may follow a Call while %d of %d are taken", c.spare(l), calls.Taken(), calls.Limit())
	}
}
