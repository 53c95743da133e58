package proxy

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// BenchmarkLatestCalls is what comparing credentials costs, when all Calls have one and when each has another, and the
// key of an XID, which it saves.
func BenchmarkLatestCalls(b *testing.B) {
	s, o := someone(), someone()
	s.credential, o.credential = unix(1, "client.example.com", 1000), unix(1, "client.example.com", 1001)
	one, other := s.call(1, "arguments"), o.call(1, "arguments")
	space := newXIDSpace(testIdentity)
	client := testIdentity.clientKey("storage", s.origin)
	var users credentialKeys
	var l latestCalls
	var many []*oncrpc.Call
	for uid := range uint32(32) {
		s.credential = unix(1, "client.example.com", uid)
		many = append(many, s.call(1, "arguments"))
	}
	run := func(b *testing.B, calls ...*oncrpc.Call) {
		for b.Loop() {
			for _, h := range calls {
				l.see(h)
				l.keyOf(space.seed, &users, &client, h)
			}
		}
	}
	b.Run("same", func(b *testing.B) { run(b, one, one) })
	b.Run("another", func(b *testing.B) { run(b, one, other) })
	b.Run("32 users", func(b *testing.B) { run(b, many...) })
	b.Run("keys", func(b *testing.B) {
		for b.Loop() {
			users.find(space.seed, &client, one)
			users.find(space.seed, &client, other)
		}
	})
}
