package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
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

// A sourceOfOnes draws the first of the possibilities.
type sourceOfOnes struct{}

// Uint64 is part of rand.Source.
func (sourceOfOnes) Uint64() uint64 { return 1 << 32 }

var certain = rand.New(sourceOfOnes{})

// TestRulesCanFail: the model reports bridges that break its rules.
func TestRulesCanFail(t *testing.T) {
	made := func(b *book, k kind, xid, id uint32, who string) *outstanding {
		o := &outstanding{kind: k, id: id, m: newCall(k, xid, id, 100)}
		b.begin(who, k, id, o.m)
		b.transmit(id)
		return o
	}
	// onConns has a client send SEQUENCEs on one connection, of which each comes on another one of the server.
	onConns := func(b *book, mode settings.Mode, again bool) (r *reverses, j job) {
		s := newServer(b, true)
		s.kept.set(mode)
		line := b.dialled(time.Now().Add(time.Second))
		for i := range uint32(2) {
			o := made(b, sequence, 7+i, 1+i, "one")
			b.sentOn(o.id, line)
			if again {
				b.transmit(o.id)
			}
			rs := newReverses(s, rand.New(rand.NewPCG(1, 1)))
			r = &rs
			j, _ = s.take(o.m)
			r.took(&j)
		}
		return r, j
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
		{"sessions on two connections", func(b *book) { onConns(b, settings.ModeSessions, false) }, "came on connection 2 of a server, an earlier one on connection 1"},
		{"sessions on two shared connections", func(b *book) { onConns(b, settings.ModeShared, false) }, ""},
		{"sessions on the next pinned connection", func(b *book) { onConns(b, settings.ModePinned, false) }, ""},
		{"sent on who knows which connection", func(b *book) { onConns(b, settings.ModeAuto, true) }, ""},
		{"a client on a lane refused as on a shared connection", func(b *book) {
			r, j := onConns(b, settings.ModePinned, false)
			j.kept = true
			m := r.draw(certain, &j)
			r.answered(oncrpc.AppendAccepted(nil, proxytest.XID(m), oncrpc.ProgramUnavailable))
		}, "is answered with PROG_UNAVAIL"},
		{"asked to try later", func(b *book) {
			r, j := onConns(b, settings.ModePinned, false)
			m := r.draw(certain, &j)
			r.answered(reverseLater(proxytest.XID(m)))
		}, ""},
		{"answered with the answer of another client", func(b *book) {
			r, j := onConns(b, settings.ModePinned, false)
			m := r.draw(certain, &j)
			r.answered(reverseReply(newReverse(proxytest.XID(m), j.id+1, j.session, 100)))
		}, "other octets"},
		{"answered twice", func(b *book) {
			r, j := onConns(b, settings.ModePinned, false)
			m := reverseReply(r.draw(certain, &j))
			r.answered(m)
			r.answered(m)
		}, "or twice"},
		{"called in another's session", func(b *book) {
			c := &client{name: "one", book: b, session: newSession(1), sequences: map[uint32]bool{1: true}}
			c.called(nil, newReverse(1, 1, newSession(2), 100))
		}, "which is another client's"},
		{"called for another's SEQUENCE", func(b *book) {
			c := &client{name: "one", book: b, session: newSession(1), sequences: map[uint32]bool{1: true}}
			c.called(nil, newReverse(1, 2, newSession(1), 100))
		}, "which is another client"},
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
