package nfs_test

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// sequenceCall is a CB_COMPOUND with CB_SEQUENCE alone, from the XDR of RFC 5662.
const sequenceCall = `
	7f000002 00000000 00000002   # xid, CALL, RPC version
	40000000 00000001 00000001   # callback program, version 1, CB_COMPOUND
	00000000 00000000            # cred
	00000000 00000000            # verf
	00000002 68690000            # tag "hi"
	00000001 00000000 00000001   # minorversion, callback_ident, count
	0000000b                     # CB_SEQUENCE
	d0d1d2d3 d4d5d6d7 d8d9dadb dcdddedf  # csa_sessionid
	00000001 00000000 00000000   # sequenceid, slotid, highest_slotid
	00000000 00000000            # cachethis, referring calls
`

// delayed is the answer NFS4ERR_DELAY to it.
const delayed = `
	7f000002 00000001 00000000   # xid, REPLY, MSG_ACCEPTED
	00000000 00000000 00000000   # verf, SUCCESS
	00002718 00000002 68690000   # NFS4ERR_DELAY, tag "hi"
	00000001 0000000b 00002718   # count, CB_SEQUENCE, NFS4ERR_DELAY
`

// sessionEnd is where the session ID in sequenceCall ends.
const sessionEnd = 40 + 8 + 12 + 4 + 16

func TestCallbackSession(t *testing.T) {
	m := testkit.Unhex(t, sequenceCall)
	recall := byID(t, "47-cb41-recall").Call
	for name, m := range map[string][]byte{
		"CB_SEQUENCE alone": m,
		"another program":   patched(m, 12, 0x40000123),
		"version 4":         patched(m, 16, 4),
		"minor version 2":   patched(m, 48, 2),
		"CB_RECALL":         recall,
		"integrity":         signedCall(t, m),
	} {
		if id, ok := nfs.CallbackSession(parse(t, m)); !ok || id != nfs.SessionID(sessionID) {
			t.Errorf("%s: %x, %v", name, id, ok)
		}
	}
	for n := 40; n <= len(m); n++ {
		if _, ok := nfs.CallbackSession(parse(t, m[:n])); ok != (n >= sessionEnd) {
			t.Fatalf("%v with %d of %d octets", ok, n, len(m))
		}
	}
	privacy := signedCall(t, m)
	privacy[32+15] = oncrpc.GSSServicePrivacy
	for name, m := range map[string][]byte{
		"CB_NULL":               patched(m, 20, 0)[:40],
		"procedure 2":           patched(m, 20, 2),
		"version 2":             patched(m, 16, 2),
		"NFSv4.0":               patched(m, 48, 0),
		"no operation":          patched(m, 56, 0),
		"another operation":     patched(m, 60, 4),
		"tag longer than all":   patched(m, 40, 1<<31),
		"tag of the whole rest": patched(m, 40, uint32(len(m)-44)),
		"privacy":               privacy,
	} {
		if id, ok := nfs.CallbackSession(parse(t, m)); ok {
			t.Errorf("%s: session %x", name, id)
		}
	}
}

func TestAppendCallbackStatus(t *testing.T) {
	m := testkit.Unhex(t, sequenceCall)
	c := parse(t, m)
	got := nfs.AppendCallbackStatus([]byte("before"), c, nfs.StatusDelay)
	if want := append([]byte("before"), testkit.Unhex(t, delayed)...); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	tagged := func(n int) []byte {
		tag := xdr.AppendOpaque(nil, bytes.Repeat([]byte{'x'}, n))
		return bytes.Join([][]byte{m[:40], tag, m[48:]}, nil)
	}
	for n, want := range map[int]int{0: 0, 1: 4, 255: 256, 256: 256, 257: 0, 1 << 16: 0} {
		c := parse(t, tagged(n))
		got := nfs.AppendCallbackStatus(nil, c, nfs.StatusDelay)
		if len(got) != 24+4+4+want+4+8 {
			t.Errorf("tag of %d octets: answer of %d", n, len(got))
		}
		var r oncrpc.Reply
		if err := oncrpc.ParseReply(got, &r); err != nil || !r.Succeeded() || r.XID != c.XID {
			t.Errorf("tag of %d octets: %+v, %v", n, r, err)
		}
	}
	for name, c := range map[string]*oncrpc.Call{
		"integrity": parse(t, signedCall(t, m)),
		"CB_NULL":   parse(t, patched(m, 20, 0)[:40]),
		"NFSv4.0":   parse(t, patched(m, 48, 0)),
		"cut short": parse(t, m[:sessionEnd-4]),
	} {
		if got := nfs.AppendCallbackStatus([]byte{1}, c, nfs.StatusDelay); len(got) != 1 {
			t.Errorf("%s: answered with %x", name, got)
		}
	}
	if got := nfs.AppendCallbackStatus(nil, c, nfs.StatusOK); len(got) != 0 {
		t.Errorf("StatusOK without results: %x", got)
	}
}

func TestCallbackProgram(t *testing.T) {
	m := []byte(byID(t, "23-nfs41-create-session").Call)
	const attrs = 6 * 4
	at := bytes.Index(m, backAttrs) + attrs // the back channel's rdma_ird
	for name, tt := range map[string]struct {
		m    []byte
		want uint32
	}{
		"as Linux sends it": {m, 0x40000000},
		"another program":   {patched(m, at+4, 0x20000001), 0x20000001},
		"with rdma_ird":     {bytes.Join([][]byte{m[:at], {0, 0, 0, 1, 0, 0, 0, 9}, m[at+4:]}, nil), 0x40000000},
		"integrity":         {signedCall(t, m), 0x40000000},
	} {
		a := analyse(t, tt.m)
		if program, ok := nfs.CallbackProgram(tt.m, &a); !ok || program != tt.want {
			t.Errorf("%s: %#x, %v, want %#x", name, program, ok, tt.want)
		}
	}
	a := analyse(t, m)
	for n := range at + 8 {
		if program, ok := nfs.CallbackProgram(m[:n], &a); ok {
			t.Fatalf("%#x in %d octets", program, n)
		}
	}
	if program, ok := nfs.CallbackProgram(m, &ulb.Analysis{Reduce: true}); ok {
		t.Errorf("%#x without CREATE_SESSION", program)
	}
}

func TestCallbackAllocs(t *testing.T) {
	m := testkit.Unhex(t, sequenceCall)
	c := parse(t, m)
	create := byID(t, "23-nfs41-create-session").Call
	a := analyse(t, create)
	b := make([]byte, 0, 128)
	if n := testing.AllocsPerRun(100, func() {
		_, session := nfs.CallbackSession(c)
		_, program := nfs.CallbackProgram(create, &a)
		if b = nfs.AppendCallbackStatus(b[:0], c, nfs.StatusDelay); !session || !program || len(b) == 0 {
			t.Fatal("nothing read or written")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzCallback fuzzes a reverse Call.
func FuzzCallback(f *testing.F) {
	m := testkit.Unhex(f, sequenceCall)
	f.Add(m, uint32(nfs.StatusDelay))
	f.Add(signedCall(f, m), uint32(nfs.StatusDelay))
	f.Add([]byte(byID(f, "47-cb41-recall").Call), uint32(nfs.StatusBadSession))
	f.Fuzz(func(t *testing.T, m []byte, status uint32) {
		var c oncrpc.Call
		if oncrpc.ParseCall(m, &c) != nil {
			return
		}
		id, ok := nfs.CallbackSession(&c)
		if ok && !bytes.Contains(m, id[:]) {
			t.Fatalf("session %x", id)
		}
		b := nfs.AppendCallbackStatus(nil, &c, status)
		if answered := len(b) > 0; answered != (ok && c.Flavor != oncrpc.FlavorGSS && status != 0) {
			t.Fatalf("session %v, flavor %d, status %d: answer %x", ok, c.Flavor, status, b)
		}
		if len(b) > 0 && (!oncrpc.IsReply(b, c.XID) || len(b) > 24+8+256+12) {
			t.Fatalf("answer %x", b)
		}
	})
}
