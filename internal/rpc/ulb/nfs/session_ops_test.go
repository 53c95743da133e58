package nfs_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// The Calls and Replies of this file are written from the XDR of RFC 5662.

// callHeader begins a Call of NFSv4 COMPOUND with AUTH_NONE.
const callHeader = `
	00000001 00000000 00000002   # xid, CALL, RPC version
	000186a3 00000004 00000001   # NFS, version 4, COMPOUND
	00000000 00000000            # cred
	00000000 00000000            # verf
`

// replyHeader begins a Reply that has results.
const replyHeader = `
	00000001 00000001 00000000   # xid, REPLY, MSG_ACCEPTED
	00000000 00000000 00000000   # verf, SUCCESS
`

const bindCall = callHeader + `
	00000003 61626300            # tag "abc"
	00000001 00000001            # minorversion, count
	00000029                     # BIND_CONN_TO_SESSION
	d0d1d2d3 d4d5d6d7 d8d9dadb dcdddedf  # bctsa_sessid
	00000003 00000000            # CDFC4_FORE_OR_BOTH, no RDMA mode
`

const bindReply = replyHeader + `
	00000000 00000003 61626300   # status, tag "abc"
	00000001                     # count
	00000029 00000000            # BIND_CONN_TO_SESSION, NFS4_OK
	d0d1d2d3 d4d5d6d7 d8d9dadb dcdddedf  # bctsr_sessid
	00000003 00000000            # CDFS4_BOTH, no RDMA mode
`

const destroyCall = callHeader + `
	00000003 61626300            # tag "abc"
	00000001 00000002            # minorversion, count
	00000035                     # SEQUENCE
	00010203 04050607 08090a0b 0c0d0e0f  # sa_sessionid
	00000007 00000000 00000000 00000000  # sequenceid, slotid, highest_slotid, cachethis
	0000002c                     # DESTROY_SESSION
	d0d1d2d3 d4d5d6d7 d8d9dadb dcdddedf  # dsa_sessionid
`

const destroyReply = replyHeader + `
	00000000 00000003 61626300   # status, tag "abc"
	00000002                     # count
	00000035 00000000            # SEQUENCE, NFS4_OK
	00010203 04050607 08090a0b 0c0d0e0f  # sr_sessionid
	00000007 00000000 00000000   # sequenceid, slotid, highest_slotid
	00000000 00000000            # target_highest_slotid, status_flags
	0000002c 00000000            # DESTROY_SESSION, NFS4_OK
`

// signedCall returns the Call m with its arguments under RPCSEC_GSS integrity, with the sequence
// number 77.
func signedCall(t testing.TB, m []byte) []byte {
	t.Helper()
	cred := []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 2, 0, 0, 0, 0}
	b := xdr.AppendUint32(bytes.Clone(m[:24]), oncrpc.FlavorGSS)
	b = xdr.AppendOpaque(b, cred)
	b = xdr.AppendOpaque(xdr.AppendUint32(b, oncrpc.FlavorGSS), make([]byte, 28))
	body := append(xdr.AppendUint32(nil, 77), m[parse(t, m).Args:]...)
	return xdr.AppendOpaque(xdr.AppendOpaque(b, body), make([]byte, 28))
}

// patched returns m with the unit at octet at replaced.
func patched(m []byte, at int, v uint32) []byte {
	m = bytes.Clone(m)
	binary.BigEndian.PutUint32(m[at:], v)
	return m
}

func analyse(t testing.TB, m []byte) (a ulb.Analysis) {
	t.Helper()
	newRegistry().Analyse(parse(t, m), &a)
	return a
}

// TestSessionOps checks that an Analysis has the operations that concern sessions, and no others.
func TestSessionOps(t *testing.T) {
	bind, destroy := testkit.Unhex(t, bindCall), testkit.Unhex(t, destroyCall)
	for name, tt := range map[string]struct {
		m    []byte
		want ulb.SessionOps
	}{
		"BIND_CONN_TO_SESSION":     {bind, ulb.BindConnToSession},
		"DESTROY_SESSION":          {destroy, ulb.DestroySession},
		"CREATE_SESSION":           {byID(t, "23-nfs41-create-session").Call, ulb.CreateSession},
		"EXCHANGE_ID":              {byID(t, "24-nfs41-exchange-id").Call, ulb.ExchangeID},
		"two of them":              {compound4(1, 2, 44, 1, 2, 3, 4, 41, 1, 2, 3, 4, 3, 0), ulb.DestroySession | ulb.BindConnToSession},
		"READ":                     {byID(t, "16-nfs41-seq-putfh-read").Call, 0},
		"minor version 0":          {patched(bind, 48, 0), 0},
		"cut short":                {bind[:len(bind)-4], 0},
		"GETATTR of NFS version 3": {byID(t, "01-nfs3-getattr").Call, 0},
	} {
		if a := analyse(t, tt.m); a.SessionOps != tt.want {
			t.Errorf("%s: SessionOps %d, want %d", name, a.SessionOps, tt.want)
		}
	}
	for name, m := range map[string][]byte{"BIND_CONN_TO_SESSION": bind, "DESTROY_SESSION": destroy} {
		if a, b := analyse(t, m), analyse(t, signedCall(t, m)); a.SessionOps != b.SessionOps || b.Reduce {
			t.Errorf("%s under integrity: %+v, want the operations of %+v", name, b, a)
		}
	}
}

// A sessionReply is what CreatedSession and BoundSession return.
type sessionReply struct {
	id       nfs.SessionID
	back, ok bool
}

func TestCreatedAndBoundSession(t *testing.T) {
	id := nfs.SessionID(sessionID)
	create := []byte(byID(t, "23-nfs41-create-session").Replies[0].Reply)
	flags := bytes.Index(create, sessionID) + 20
	bind := testkit.Unhex(t, bindReply)
	dir := len(bind) - 8
	for _, tt := range []struct {
		name  string
		reply []byte
		read  func([]byte, *ulb.Analysis) (nfs.SessionID, bool, bool)
		want  sessionReply
	}{
		{"created", create, nfs.CreatedSession, sessionReply{id, true, true}},
		{"created, with PERSIST alone", patched(create, flags, 1), nfs.CreatedSession, sessionReply{id, false, true}},
		{"created, with CONN_BACK_CHAN alone", patched(create, flags, 2), nfs.CreatedSession, sessionReply{id, true, true}},
		{"CREATE_SESSION failed", replyOf(10008, 43, 10008), nfs.CreatedSession, sessionReply{}},
		{"not CREATE_SESSION", bind, nfs.CreatedSession, sessionReply{}},
		{"bound to both channels", bind, nfs.BoundSession, sessionReply{id, true, true}},
		{"bound to the back channel", patched(bind, dir, 2), nfs.BoundSession, sessionReply{id, true, true}},
		{"bound to the fore channel", patched(bind, dir, 1), nfs.BoundSession, sessionReply{id, false, true}},
		{"bound to no channel there is", patched(bind, dir, 7), nfs.BoundSession, sessionReply{id, false, true}},
		{"BIND_CONN_TO_SESSION failed", replyOf(22, 41, 22), nfs.BoundSession, sessionReply{}},
		{"not BIND_CONN_TO_SESSION", create, nfs.BoundSession, sessionReply{}},
	} {
		for _, way := range []struct {
			name  string
			reply []byte
			a     *ulb.Analysis
		}{{"plain", tt.reply, &plain}, {"integrity", integrity(tt.reply), &signed}} {
			var got sessionReply
			if got.id, got.back, got.ok = tt.read(way.reply, way.a); got != tt.want {
				t.Errorf("%s, %s: %+v, want %+v", tt.name, way.name, got, tt.want)
			}
			for n := range way.reply {
				if _, _, ok := tt.read(way.reply[:n], way.a); ok {
					t.Fatalf("%s, %s: read from %d of %d octets", tt.name, way.name, n, len(way.reply))
				}
			}
		}
	}
}

// replyOf returns the Reply to a COMPOUND with one operation whose result is its status.
func replyOf(status uint32, result ...uint32) []byte {
	m := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	for _, w := range append([]uint32{status, 0, 1}, result...) {
		m = xdr.AppendUint32(m, w)
	}
	return m
}

// A client chooses the sequence number of its GSS Calls and the tag, which the server returns. So it
// can make a Reply to a SEQUENCE that fails look, without the wrapping, as if it had succeeded.
func TestSequenceForged(t *testing.T) {
	m := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	m = xdr.AppendUint32(m, nfs.StatusBadSession)
	m = xdr.AppendOpaque(m, testkit.Words(53, nfs.StatusOK)) // the tag
	m = append(m, testkit.Words(1, 53, nfs.StatusBadSession)...)
	body := append(testkit.Words(4), m[24:]...) // the sequence number
	wrapped := xdr.AppendOpaque(xdr.AppendOpaque(bytes.Clone(m[:24]), body), make([]byte, 28))

	if status, ok := nfs.SequenceStatus(wrapped, &ulb.Analysis{Session: 92, Reduce: true}); !ok || status != nfs.StatusOK {
		t.Fatalf("read as plain results: %d, %v, so this is no forgery", status, ok)
	}
	if status, ok := nfs.SequenceStatus(wrapped, &ulb.Analysis{Session: 92}); !ok || status != nfs.StatusBadSession {
		t.Errorf("status %d, %v, want the server's", status, ok)
	}
	if status, ok := nfs.Status(wrapped, &signed); !ok || status != nfs.StatusBadSession {
		t.Errorf("status %d, %v of the COMPOUND, want the server's", status, ok)
	}
}

func TestDestroyedSession(t *testing.T) {
	m := testkit.Unhex(t, destroyCall)
	for name, call := range map[string][]byte{"plain": m, "integrity": signedCall(t, m)} {
		if id, ok := nfs.DestroyedSession(parse(t, call)); !ok || id != nfs.SessionID(sessionID) {
			t.Errorf("%s: %x, %v", name, id, ok)
		}
	}
	for n := 40; n < len(m); n++ {
		if _, ok := nfs.DestroyedSession(parse(t, m[:n])); ok {
			t.Fatalf("found in %d of %d octets", n, len(m))
		}
	}
	privacy := signedCall(t, m)
	privacy[32+15] = oncrpc.GSSServicePrivacy
	for name, m := range map[string][]byte{
		"privacy":           privacy,
		"minor version 0":   patched(m, 48, 0),
		"NFS version 3":     patched(m, 16, 3),
		"NULL":              patched(m, 20, 0),
		"no such operation": testkit.Unhex(t, bindCall),
		"unknown operation": patched(m, len(m)-20, 99),
		"trailing":          append(bytes.Clone(m), 0, 0, 0, 0),
	} {
		if id, ok := nfs.DestroyedSession(parse(t, m)); ok {
			t.Errorf("%s: found %x", name, id)
		}
	}
}

func TestStatus(t *testing.T) {
	ok := testkit.Unhex(t, destroyReply)
	failed := patched(patched(ok, 24, 10078), len(ok)-4, 10078)
	for _, tt := range []struct {
		name  string
		reply []byte
		want  uint32
		ok    bool
	}{
		{"success", ok, nfs.StatusOK, true},
		{"failure", failed, nfs.StatusDeadSession, true},
		{"no results", replyOf(10021)[:32], 0, false},
		{"minor version refused", append(replyOf(10021)[:32], 0, 0, 0, 0), 10021, true},
		{"trailing", append(bytes.Clone(ok), 0, 0, 0, 0), 0, false},
		{"unknown operation", patched(ok, len(ok)-8, 99), 0, false},
		{"denied", oncrpc.AppendAuthError(nil, 1, 1), 0, false},
		{"no results at all", oncrpc.AppendAccepted(nil, 1, oncrpc.SystemError), 0, false},
	} {
		if status, ok := nfs.Status(tt.reply, &plain); status != tt.want || ok != tt.ok {
			t.Errorf("%s: %d, %v, want %d, %v", tt.name, status, ok, tt.want, tt.ok)
		}
		if len(tt.reply) <= 24 {
			continue
		}
		if status, ok := nfs.Status(integrity(tt.reply), &signed); status != tt.want || ok != tt.ok {
			t.Errorf("%s under integrity: %d, %v, want %d, %v", tt.name, status, ok, tt.want, tt.ok)
		}
	}
	for n := range ok {
		if _, is := nfs.Status(ok[:n], &plain); is {
			t.Fatalf("read from %d of %d octets", n, len(ok))
		}
	}
}

func TestSequence(t *testing.T) {
	m := testkit.Unhex(t, destroyCall)
	reply := testkit.Unhex(t, destroyReply)
	want := nfs.SessionID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for _, way := range []struct {
		name        string
		call, reply []byte
		status      int // where the status of SEQUENCE ends
	}{
		{"plain", m, reply, 24 + 12 + 4 + 8},
		{"integrity", signedCall(t, m), integrity(reply), 24 + 8 + 12 + 4 + 8},
	} {
		a := analyse(t, way.call)
		if id, ok := nfs.SequenceSession(way.call, &a); !ok || id != want {
			t.Errorf("%s: session %x, %v", way.name, id, ok)
		}
		if id, ok := nfs.SequenceSession(way.call[:a.Session+31], &a); ok {
			t.Errorf("%s: session %x in a Call cut short", way.name, id)
		}
		for n := range len(way.reply) + 1 {
			if status, ok := nfs.SequenceStatus(way.reply[:n], &a); ok != (n >= way.status) || status != 0 {
				t.Fatalf("%s: status %d, %v in %d octets of the Reply", way.name, status, ok, n)
			}
		}
		bad := patched(way.reply, way.status-4, nfs.StatusConnNotBound)
		if status, ok := nfs.SequenceStatus(bad, &a); !ok || status != nfs.StatusConnNotBound {
			t.Errorf("%s: status %d, %v", way.name, status, ok)
		}
		for name, m := range map[string][]byte{
			"another operation": patched(way.reply, way.status-8, 44), "no result": patched(way.reply, way.status-12, 0),
			"denied": oncrpc.AppendAuthError(nil, 1, 1), "no results": oncrpc.AppendAccepted(nil, 1, oncrpc.SystemError),
		} {
			if status, ok := nfs.SequenceStatus(m, &a); ok {
				t.Errorf("%s, %s: status %d", way.name, name, status)
			}
		}
	}
	for _, v := range loadVectors(t) {
		a := analyse(t, v.Call)
		begins := len(v.Ops) > 0 && v.Ops[0] == "SEQUENCE"
		if id, ok := nfs.SequenceSession(v.Call, &a); ok != begins || ok && id != nfs.SessionID(sessionID) {
			t.Errorf("%s: session %x, %v", v.ID, id, ok)
		}
		for _, r := range v.Replies {
			want := uint32(0)
			if r.Name == "reply-badsession" {
				want = nfs.StatusBadSession
			}
			if status, ok := nfs.SequenceStatus(r.Reply, &a); ok != begins || status != want {
				t.Errorf("%s, %s: status %d, %v, want %d", v.ID, r.Name, status, ok, want)
			}
		}
	}
}

func TestSessionOpsAllocs(t *testing.T) {
	create := byID(t, "23-nfs41-create-session")
	bind, destroyed := testkit.Unhex(t, bindReply), testkit.Unhex(t, destroyReply)
	c := parse(t, signedCall(t, testkit.Unhex(t, destroyCall)))
	read := byID(t, "16-nfs41-seq-putfh-read")
	a := analyse(t, read.Call)
	if n := testing.AllocsPerRun(100, func() {
		_, _, created := nfs.CreatedSession(create.Replies[0].Reply, &plain)
		_, _, bound := nfs.BoundSession(bind, &plain)
		_, destroys := nfs.DestroyedSession(c)
		_, status := nfs.Status(destroyed, &plain)
		_, sequence := nfs.SequenceStatus(read.Replies[0].Reply, &a)
		_, session := nfs.SequenceSession(read.Call, &a)
		if !(created && bound && destroys && status && sequence && session) {
			t.Fatal("nothing read")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSequenceStatus(b *testing.B) {
	v := byID(b, "16-nfs41-seq-putfh-read")
	a := analyse(b, v.Call)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := nfs.SequenceStatus(v.Replies[0].Reply, &a); !ok {
			b.Fatal("no status")
		}
	}
}

// FuzzSessionOps fuzzes the arguments of a COMPOUND and the results of its Reply, and checks that
// everything that is read from them is there.
func FuzzSessionOps(f *testing.F) {
	for _, m := range [][2]string{{bindCall, bindReply}, {destroyCall, destroyReply}} {
		f.Add(testkit.Unhex(f, m[0])[40:], testkit.Unhex(f, m[1])[24:])
	}
	for _, v := range loadVectors(f) {
		if v.compound() {
			f.Add([]byte(v.Call[v.ArgsOffset:]), []byte(v.Replies[0].Reply[24:]))
		}
	}
	header := testkit.Unhex(f, callHeader)
	success := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	f.Fuzz(func(t *testing.T, args, results []byte) {
		call := slices.Concat(header, args)
		reply := slices.Concat(success, results)
		a := analyse(t, call)
		checkSessionOps(t, parse(t, call), reply, &a)
		if len(call)%4 == 0 && len(reply)%4 == 0 {
			signed := signedCall(t, call)
			b := analyse(t, signed)
			if a.SessionOps != b.SessionOps {
				t.Fatalf("SessionOps %d, under integrity %d", a.SessionOps, b.SessionOps)
			}
			// What can be read from plain results can be read from wrapped ones.
			status, ok := nfs.Status(reply, &a)
			if s, is := nfs.Status(integrity(reply), &b); s != status || is != ok {
				t.Fatalf("Status %d, %v, under integrity %d, %v", status, ok, s, is)
			}
			checkSessionOps(t, parse(t, signed), integrity(reply), &b)
		}
	})
}

func checkSessionOps(t *testing.T, c *oncrpc.Call, reply []byte, a *ulb.Analysis) {
	t.Helper()
	_, ok := nfs.Status(reply, a)
	if _, first := nfs.SequenceStatus(reply, a); first && a.Session == 0 {
		t.Fatal("the status of a SEQUENCE that the Call does not have")
	}
	for _, read := range []func([]byte, *ulb.Analysis) (nfs.SessionID, bool, bool){nfs.CreatedSession, nfs.BoundSession} {
		if id, _, is := read(reply, a); is && (!ok || !bytes.Contains(reply, id[:])) {
			t.Fatalf("session %x, status read: %v", id, ok)
		}
	}
	id, is := nfs.DestroyedSession(c)
	if is != (a.SessionOps&ulb.DestroySession != 0) || is && !bytes.Contains(c.Message, id[:]) {
		t.Fatalf("DestroyedSession = %x, %v with %+v", id, is, *a)
	}
	if program, is := nfs.CallbackProgram(c.Message, a); is != (a.SessionOps&ulb.CreateSession != 0) {
		t.Fatalf("CallbackProgram = %d, %v with %+v", program, is, *a)
	}
}
