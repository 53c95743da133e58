package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A recorder takes the errors of a book that is to find them.
type recorder struct {
	testing.TB
	said []string
}

// Errorf is part of testing.TB.
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

// Logf is part of testing.TB.
func (r *recorder) Logf(string, ...any) {}

// TestRulesCanFail: the model reports bridges that break its rules.
func TestRulesCanFail(t *testing.T) {
	made := func(b *book, k kind, xid, id uint32, who string) *outstanding {
		o := &outstanding{kind: k, id: id, m: newCall(k, xid, id, 100)}
		b.begin(who, k, id, o.m)
		b.transmit(id)
		return o
	}
	for _, tt := range []struct {
		name string
		do   func(b *book)
		want string // "" for nothing
	}{
		{"rightly answered", func(b *book) {
			o := made(b, read, 7, 1, "one")
			b.write(o.id)
			b.judge("one", o, replyTo(o.m))
		}, ""},
		{"octets of another Call", func(b *book) {
			o, other := made(b, read, 7, 1, "one"), made(b, read, 7, 2, "two")
			b.write(o.id)
			b.judge("one", o, replyTo(other.m))
		}, "octets that were not written for it"},
		{"right octets that were in the memory before", func(b *book) {
			o := made(b, read, 7, 1, "one")
			b.judge("one", o, replyTo(o.m))
		}, "no server has written all of them"},
		{"executed once each", func(b *book) {
			s := newServer(b, true)
			s.take(made(b, remove, 7, 1, "one").m)
			s.take(made(b, remove, 8, 2, "two").m)
		}, ""},
		{"sent again", func(b *book) {
			s := newServer(b, true)
			o := made(b, remove, 7, 1, "one")
			s.take(o.m)
			b.transmit(o.id)
			s.take(o.m)
		}, ""},
		{"not executed: an equal Call of another was", func(b *book) {
			s := newServer(b, true)
			s.take(made(b, remove, 7, 1, "one").m)
			s.take(made(b, remove, 7, 2, "two").m)
		}, "call 0x2 (REMOVE) of two is not executed: the duplicate request cache takes it, under XID 0x7, for call 0x1 (REMOVE) of one"},
		{"answered from another's execution", func(b *book) {
			o := made(b, remove, 7, 2, "two")
			made(b, remove, 7, 1, "one")
			b.write(o.id)
			b.judge("two", o, removeReply(7, 1, proxytest.Checksum(nil)))
		}, "two: call 0x2 (REMOVE) of two was answered from the execution of call 0x1 (REMOVE) of one"},
		{"executed twice", func(b *book) {
			s := newServer(b, true)
			o := made(b, mkdir, 7, 1, "one")
			s.take(o.m)
			b.transmit(o.id)
			s.take(proxytest.WithXID(o.m, 8))
		}, "was executed 2 times"},
		{"kept out", func(b *book) {
			var i infirmary
			now := time.Now()
			i.admit("a healthy client").last.Store(now.Add(-2 * starving).UnixNano())
			i.look(b, now.Add(-healthSlot), now, now.Add(-2*starving))
		}, "a healthy client was not answered for 1m0s"},
		{"kept out by the bridge's absence", func(b *book) {
			var i infirmary
			now := time.Now()
			i.admit("a healthy client").last.Store(now.Add(-2 * starving).UnixNano())
			i.look(b, now.Add(-healthSlot), now, now.Add(-2*healthSlot))
		}, ""},
		{"seldom answered", func(b *book) {
			var i infirmary
			now := time.Now()
			h := i.admit("a healthy client")
			for n := range healthSlots {
				h.last.Store(now.Add(-time.Duration(n%3/2) * healthSlot).UnixNano())
				i.look(b, now.Add(-healthSlot/2), now, now.Add(-time.Hour))
			}
			i.judge(b)
		}, "healthy clients were answered in 34 of 50 seconds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{TB: t}
			tt.do(newBook(r, 1))
			switch said := strings.Join(r.said, "; "); {
			case tt.want == "" && said != "":
				t.Errorf("reported: %s", said)
			case !strings.Contains(said, tt.want):
				t.Errorf("reported %q, want %q", said, tt.want)
			}
		})
	}
}
