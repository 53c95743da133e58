package nfs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

func byID(t testing.TB, id string) vector {
	t.Helper()
	vectors := loadVectors(t)
	i := slices.IndexFunc(vectors, func(v vector) bool { return v.ID == id })
	if i < 0 {
		t.Fatalf("no vector %s", id)
	}
	return vectors[i]
}

// created returns the vector's Reply to a CREATE_SESSION with other limits. All vectors
// have the same session.
func created(t testing.TB, id []byte, response, cached uint32) []byte {
	t.Helper()
	m := bytes.Clone(byID(t, "23-nfs41-create-session").Replies[0].Reply)
	at := bytes.Index(m, sessionID)
	if at < 0 {
		t.Fatal("no session ID in the Reply")
	}
	copy(m[at:], id)
	binary.BigEndian.PutUint32(m[at+32:], response)
	binary.BigEndian.PutUint32(m[at+36:], cached)
	return m
}

// integrity wraps the results of a Reply as RFC 2203 Section 5.3.2.2 does.
func integrity(m []byte) []byte {
	body := append(xdr.AppendUint32(nil, 77), m[24:]...)
	return xdr.AppendOpaque(xdr.AppendOpaque(bytes.Clone(m[:24]), body), make([]byte, 37))
}

// The parts of the Analysis of a Call with CREATE_SESSION that Learn looks at, without RPCSEC_GSS
// integrity and with it.
var (
	plain  = ulb.Analysis{Known: true, Reduce: true, SessionOps: ulb.CreateSession}
	signed = ulb.Analysis{Known: true, SessionOps: ulb.CreateSession}
)

// The vectors' bounds on Replies in their session are those of the session's limits.
func TestSessionsVectors(t *testing.T) {
	reg := newRegistry()
	create := byID(t, "23-nfs41-create-session").Replies[0].Reply
	for name, reply := range map[string][]byte{"plain": create, "integrity": integrity(create)} {
		_, l, ok := nfs.CreatedLimits(reply, &ulb.Analysis{Reduce: name == "plain"})
		if !ok {
			t.Fatalf("%s: no session", name)
		}
		tightened := 0
		for _, v := range loadVectors(t) {
			var a ulb.Analysis
			reg.Analyse(parse(t, v.Call), &a)
			was := a
			l.Tighten(v.Call, &a)
			if (v.Session != nil) != (a.Session != 0) {
				t.Errorf("%s: Session at %d, want %v", v.ID, a.Session, v.Session)
			}
			want := was
			if v.Session != nil {
				want.MaxReply = v.MaxReplyTotal
				want.MaxReduced = min(was.MaxReduced, v.MaxReplyTotal)
			}
			if a != want {
				t.Errorf("%s: tightened to %+v, want %+v", v.ID, a, want)
			}
			if a.MaxReply < was.MaxReply {
				tightened++
			}
		}
		if tightened != 1 { // the unknown operation
			t.Errorf("%d bounds tightened, want 1", tightened)
		}
	}
}

func TestSessionsTighten(t *testing.T) {
	const most = 1<<20 + 8<<10
	acl := func(cachethis uint32) []byte {
		// SEQUENCE, PUTFH, GETATTR of an ACL: the vector with SEQUENCE, in which the
		// GETATTR of the v4.0 vector replaces READ.
		m := bytes.Clone(byID(t, "16-nfs41-seq-putfh-read").Call)
		binary.BigEndian.PutUint32(m[92+28:], cachethis)
		at := bytes.Index(m, []byte{0, 0, 0, 25, 0, 0, 0, 1})
		m = m[:at]
		for _, w := range []uint32{9, 1, 1 << 12} {
			m = xdr.AppendUint32(m, w)
		}
		return m
	}
	for _, tt := range []struct {
		name             string
		response, cached uint32
		m                []byte
		reduce           bool
		want             uint32
	}{
		{"limit", 1 << 20, 4096, acl(0), true, 1 << 20},
		{"limit of the cache", 1 << 20, 64 << 10, acl(1), true, 64 << 10},
		{"cache larger than the limit", 64 << 10, 1 << 20, acl(1), true, 64 << 10},
		{"limit above what there is room for", 1 << 30, 1 << 30, acl(1), true, most},
		{"no limit", 0xffffffff, 0xffffffff, acl(1), false, most},
		{"tiny limit", 100, 0, acl(0), true, 8 << 10},
		{"zero cache", 1 << 20, 0, acl(1), true, 8 << 10},
		{"integrity", 64 << 10, 0, acl(0), false, 64<<10 + 412},
	} {
		reg := newRegistry()
		id, l, ok := nfs.CreatedLimits(created(t, sessionID, tt.response, tt.cached), &plain)
		if want := (nfs.SessionLimits{Response: tt.response, Cached: tt.cached}); !ok || string(id[:]) != string(sessionID) || l != want {
			t.Fatalf("%s: session %x with %+v, want %x with %+v", tt.name, id, l, sessionID, want)
		}
		var a ulb.Analysis
		reg.Analyse(parse(t, tt.m), &a)
		if !a.Known || a.MaxReply != most || a.Session != 92 {
			t.Fatalf("%s: %+v", tt.name, a)
		}
		a.Reduce = tt.reduce
		l.Tighten(tt.m, &a)
		if a.MaxReply != tt.want || a.MaxReduced != tt.want {
			t.Errorf("%s: %+v, want bounds of %d", tt.name, a, tt.want)
		}
		// The message of another Analysis.
		b := a
		l.Tighten(tt.m[:92+31], &b)
		b.Session = 0xfffffff0
		l.Tighten(tt.m, &b)
		b.Session = a.Session
		if b != a {
			t.Errorf("%s: %+v of a message cut short", tt.name, b)
		}
	}
}

func TestSessionsLearn(t *testing.T) {
	id := bytes.Repeat([]byte{7}, 16)
	ok := created(t, id, 1<<16, 1<<12)
	failed := func(at int, v byte) []byte {
		m := bytes.Clone(ok)
		m[at] = v
		return m
	}
	bad := map[string][]byte{
		"empty":           nil,
		"a Call":          byID(t, "23-nfs41-create-session").Call,
		"another Reply":   byID(t, "16-nfs41-seq-putfh-read").Replies[0].Reply,
		"of version 3":    byID(t, "02-nfs3-read").Replies[0].Reply,
		"denied":          oncrpc.AppendAuthError(nil, 1, 1),
		"without results": oncrpc.AppendAccepted(nil, 1, oncrpc.SystemError),
		"trailing":        append(bytes.Clone(ok), 0, 0, 0, 0),
		"failed":          failed(24+12+7, 1),
		"another op":      failed(24+12+3, 44),
		"unknown op":      failed(24+12+3, 99),
		"many results":    failed(24+8, 0xff),
	}
	for n := range ok {
		bad[fmt.Sprintf("cut to %d octets", n)] = ok[:n]
	}
	bad["wrapped"] = integrity(ok)
	learns := func(m []byte, a *ulb.Analysis) bool {
		_, _, ok := nfs.CreatedLimits(m, a)
		return ok
	}
	for name, m := range bad {
		if learns(m, &plain) {
			t.Fatalf("%s: learnt %x", name, m)
		}
	}
	for n := range integrity(ok) {
		if learns(integrity(ok)[:n], &signed) {
			t.Fatalf("integrity, cut to %d octets: learnt", n)
		}
	}
	if learns(ok, &signed) {
		t.Fatal("learnt from plain results to a signed Call")
	}
	if !learns(ok, &plain) || !learns(integrity(ok), &signed) {
		t.Error("a good Reply is not learnt from")
	}
}

func TestSessionsAllocs(t *testing.T) {
	_, l, _ := nfs.CreatedLimits(byID(t, "23-nfs41-create-session").Replies[0].Reply, &plain)
	m := byID(t, "28-nfs42-unknown-op").Call
	var a ulb.Analysis
	newRegistry().Analyse(parse(t, m), &a)
	if n := testing.AllocsPerRun(100, func() {
		b := a
		if l.Tighten(m, &b); b == a {
			t.Fatal("nothing tightened")
		}
	}); n != 0 {
		t.Errorf("Tighten allocates %v times", n)
	}
}
