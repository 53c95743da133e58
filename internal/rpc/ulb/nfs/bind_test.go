package nfs_test

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestBindForeOrBoth: the direction of a BIND_CONN_TO_SESSION is one word in the Call and in the Reply, and
// is changed only where it says FORE and the Call is not signed.
func TestBindForeOrBoth(t *testing.T) {
	const dirAt = 8 // octets before the end
	call := testkit.Unhex(t, bindCall)
	with := func(m []byte, dir byte) []byte {
		m = bytes.Clone(m)
		m[len(m)-dirAt+3] = dir
		return m
	}
	id := nfs.SessionID(call[len(call)-dirAt-16:])
	for _, tt := range []struct {
		name    string
		m       []byte
		bound   bool
		changed bool
	}{
		{"fore", with(call, 1), true, true},
		{"fore, of a session that is called elsewhere", with(call, 1), false, false},
		{"back", with(call, 2), true, false},
		{"fore or both", with(call, 3), true, false},
		{"back or both", with(call, 7), true, false},
		{"signed", signedCall(t, with(call, 1)), true, false},
		{"another operation", testkit.Unhex(t, destroyCall), true, false},
	} {
		var a ulb.Analysis
		c := parse(t, bytes.Clone(tt.m))
		newRegistry().Analyse(c, &a)
		asked := 0
		changed := nfs.BindForeOrBoth(c, &a, func(got nfs.SessionID) bool {
			if asked++; got != id {
				t.Errorf("%s: asked for session %x, want %x", tt.name, got, id)
			}
			return tt.bound
		})
		want := tt.m
		if tt.changed {
			want = with(call, 3)
		}
		if changed != tt.changed || !bytes.Equal(c.Message, want) {
			t.Errorf("%s: changed %v, %x; want %v, %x", tt.name, changed, c.Message, tt.changed, want)
		}
		if tt.name == "fore" && asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	}
}

func TestForeAlone(t *testing.T) {
	reply := testkit.Unhex(t, bindReply)
	var a ulb.Analysis
	newRegistry().Analyse(parse(t, testkit.Unhex(t, bindCall)), &a)
	at := len(reply) - 8 + 3
	for _, tt := range []struct{ dir, want byte }{{3, 1}, {2, 2}, {1, 1}} {
		m := bytes.Clone(reply)
		m[at] = tt.dir
		nfs.ForeAlone(m, &a)
		want := bytes.Clone(reply)
		want[at] = tt.want
		if !bytes.Equal(m, want) {
			t.Errorf("direction %d: %x, want %x", tt.dir, m, want)
		}
	}
	for n := range reply {
		m := bytes.Clone(reply[:n])
		if nfs.ForeAlone(m, &a); !bytes.Equal(m, reply[:n]) {
			t.Errorf("a Reply of %d octets was changed", n)
		}
	}
}
