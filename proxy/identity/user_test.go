package identity

import (
	"reflect"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// BenchmarkLatestUser is what comparing credentials costs, when all Calls have one and when each has another, and the
// key of an XID, which it saves.
func BenchmarkLatestUser(b *testing.B) {
	s, o := someone(), someone()
	s.credential, o.credential = unix(1, "client.example.com", 1000), unix(1, "client.example.com", 1001)
	one, other := s.call(1, "arguments"), o.call(1, "arguments")
	client := testBridge.ClientKey("storage", s.origin)
	users := NewUsers()
	var l LatestUser
	var many []*oncrpc.Call
	for uid := range uint32(32) {
		s.credential = unix(1, "client.example.com", uid)
		many = append(many, s.call(1, "arguments"))
	}
	run := func(b *testing.B, calls ...*oncrpc.Call) {
		for b.Loop() {
			for _, h := range calls {
				l.See(h)
				l.keyOf(users, &client, h)
			}
		}
	}
	b.Run("same", func(b *testing.B) { run(b, one, one) })
	b.Run("another", func(b *testing.B) { run(b, one, other) })
	b.Run("32 users", func(b *testing.B) { run(b, many...) })
	b.Run("keys", func(b *testing.B) {
		for b.Loop() {
			users.find(&client, one)
			users.find(&client, other)
		}
	})
}

// TestLatestUserParse: a Call whose credential is remembered is parsed as ParseCall does it, and no other Call is.
func TestLatestUserParse(t *testing.T) {
	s := someone()
	s.credential = unix(1, "client.example.com", 1000)
	seen := s.call(1, "arguments").Message
	other := someone()
	other.credential = unix(1, "client.example.com", 1001)
	verified := append([]byte(nil), seen[:32+len(s.credential)+4]...)
	verified = append(append(verified, 0, 0, 0, 4, 1, 2, 3, 4), "arguments..."...)
	changed := func(at int, to byte) []byte {
		m := append([]byte(nil), seen...)
		m[at] = to
		return m
	}
	var l LatestUser
	if l.Parse(seen, new(oncrpc.Call)) {
		t.Error("parsed a Call although no credential is remembered")
	}
	l.See(s.call(1, "arguments"))
	for _, tt := range []struct {
		name string
		m    []byte
		same bool
	}{
		{"the Call", seen, true},
		{"other arguments", s.call(7, "other arguments").Message, true},
		{"another procedure", changed(23, 9), true},
		{"another program", changed(14, 9), true},
		{"another user", other.call(1, "arguments").Message, false},
		{"a Reply", changed(7, 1), false},
		{"another version of RPC", changed(11, 3), false},
		{"a verifier", verified, false},
		{"no verifier", seen[:32+len(s.credential)+4], false},
		{"no credential", seen[:24], false},
	} {
		var got, want oncrpc.Call
		got.GSS.Sequence, got.VerifierLen, got.Protection = 1, 1, oncrpc.ProtectPrivacy // of a Call before
		if same := l.Parse(tt.m, &got); same != tt.same {
			t.Errorf("%s: Parse = %v, want %v", tt.name, same, tt.same)
		} else if !same {
			continue
		}
		if err := oncrpc.ParseCall(tt.m, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: parsed as %+v, want %+v", tt.name, got, want)
		}
		if l.Number() != l.number || !l.known {
			t.Errorf("%s: the credential is not known", tt.name)
		}
	}
	var h oncrpc.Call
	if err := oncrpc.ParseCall(verified, &h); err != nil {
		t.Fatal(err)
	}
	for range 2 * mostOthers {
		if l.See(&h); l.known {
			t.Fatal("a credential is remembered with a verifier")
		}
	}
}

// TestNextXID: a Call behind another one of its user has the XID that it has by itself, also when the connection has had
// Calls of another user, or to another upstream, before these.
func TestNextXID(t *testing.T) {
	t.Parallel()
	s, o := someone(), someone()
	o.credential = unix(1, "client", 1001)
	storage, other := testBridge.ClientKey("storage", s.origin), testBridge.ClientKey("other", s.origin)
	users := NewUsers()
	var l LatestUser
	for _, tt := range []struct {
		user   *xidUser
		client *ClientKey
	}{{&s, &storage}, {&s, &other}, {&o, &other}, {&o, &storage}} {
		first, next := tt.user.call(1, "arguments"), tt.user.call(2, "other arguments")
		for range mostOthers { // until its credential is remembered
			l.See(first)
		}
		l.XID(users, tt.client, first)
		if got, want := l.NextXID(next), xidOf(users.find(tt.client, next), next); got != want {
			t.Errorf("the next Call has XID %#x, want %#x", got, want)
		}
	}
}
