package oncrpc

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestParseReplyVectors(t *testing.T) {
	_, replies := load(t)
	for _, v := range replies {
		var r Reply
		if err := ParseReply(v.message, &r); err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if !r.Succeeded() || r.Results < ReplyHeader || r.Results > len(v.message) {
			t.Errorf("%s: parsed %+v", v.name, r)
		}
		if want := 24 + xdr.Roundup(r.VerifierLen); r.Results != want {
			t.Errorf("%s: Results = %d, want %d", v.name, r.Results, want)
		}
		for n := range r.Results {
			var p Reply
			if err := ParseReply(v.message[:n:n], &p); !errors.Is(err, ErrShort) {
				t.Errorf("%s: prefix of %d octets: %v", v.name, n, err)
			}
		}
	}
}

// RFC 5531 Section 9, written out.
func TestLocalReplies(t *testing.T) {
	for _, tt := range []struct {
		name  string
		got   []byte
		want  string
		check func(r *Reply) bool
	}{
		{
			"PROG_UNAVAIL", AppendAccepted(nil, 7, ProgramUnavailable), `
			00000007 00000001  # xid, REPLY
			00000000           # MSG_ACCEPTED
			00000000 00000000  # verf: AUTH_NONE, no body
			00000001           # PROG_UNAVAIL`,
			func(r *Reply) bool { return !r.Denied && r.AcceptStat == ProgramUnavailable },
		},
		{
			"SYSTEM_ERR", AppendAccepted(nil, 7, SystemError), "00000007 00000001 00000000 00000000 00000000 00000005",
			func(r *Reply) bool { return !r.Denied && r.AcceptStat == SystemError },
		},
		{
			"PROG_MISMATCH", AppendProgramMismatch(nil, 7, 2, 3), "00000007 00000001 00000000 00000000 00000000 00000002 00000002 00000003",
			func(r *Reply) bool { return r.AcceptStat == ProgramMismatch && r.Low == 2 && r.High == 3 },
		},
		{
			"RPC_MISMATCH", AppendRPCMismatch(nil, 7), "00000007 00000001 00000001 00000000 00000002 00000002",
			func(r *Reply) bool { return r.Denied && r.RejectStat == RPCMismatch && r.Low == 2 && r.High == 2 },
		},
		{
			"AUTH_ERROR", AppendAuthError(nil, 7, AuthTooWeak), "00000007 00000001 00000001 00000001 00000005",
			func(r *Reply) bool { return r.Denied && r.RejectStat == AuthError && r.AuthStat == AuthTooWeak },
		},
	} {
		if want := testkit.Unhex(t, tt.want); !bytes.Equal(tt.got, want) {
			t.Errorf("%s = %x, want %x", tt.name, tt.got, want)
		}
		var r Reply
		if err := ParseReply(tt.got, &r); err != nil || r.XID != 7 || r.Succeeded() || !tt.check(&r) {
			t.Errorf("%s: parsed %+v, %v", tt.name, r, err)
		}
		for n := range tt.got {
			if err := ParseReply(tt.got[:n:n], &r); !errors.Is(err, ErrShort) {
				t.Errorf("%s: prefix of %d octets: %v", tt.name, n, err)
			}
		}
	}
}

func TestParseReplyRefusals(t *testing.T) {
	for _, tt := range []struct {
		name, hex, field string
		want             error
	}{
		{"a Call", "00000007 00000000 00000000", "mtype", ErrValue},
		{"reply_stat 2", "00000007 00000001 00000002", "reply_stat", ErrValue},
		{"reject_stat 2", "00000007 00000001 00000001 00000002", "reject_stat", ErrValue},
		{"verifier of 401 octets", "00000007 00000001 00000000 00000006 00000191 00000000", "verf", ErrBound},
		{"verifier of 4 GiB", "00000007 00000001 00000000 00000006 ffffffff 00000000", "verf", ErrBound},
		{"verifier cut", "00000007 00000001 00000000 00000006 00000004 00000000", "accept_stat", ErrShort},
	} {
		var r Reply
		err := ParseReply(testkit.Unhex(t, tt.hex), &r)
		var e *Error
		if !errors.As(err, &e) || e.Field != tt.field || e.XID != 7 || !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want field %s and %v", tt.name, err, tt.field, tt.want)
		}
	}
	// The client judges unknown values, so they are no errors.
	var r Reply
	if err := ParseReply(testkit.Unhex(t, "00000007 00000001 00000000 00000000 00000000 00000063"), &r); err != nil || r.Succeeded() {
		t.Errorf("accept_stat 99: %+v, %v", r, err)
	}
}

func FuzzParseReply(f *testing.F) {
	_, replies := load(f)
	for _, v := range replies {
		f.Add(v.message)
	}
	f.Add(AppendRPCMismatch(nil, 7))
	f.Add(AppendAuthError(nil, 7, AuthBadCredential))
	f.Add(AppendProgramMismatch(nil, 7, 2, 4))
	f.Fuzz(func(t *testing.T, m []byte) {
		var r Reply
		if err := ParseReply(m, &r); err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Position > len(m) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if r.Denied {
			if r.Succeeded() || r.Results != 0 {
				t.Fatalf("denied with results: %+v", r)
			}
			return
		}
		if r.Results < ReplyHeader || r.Results > len(m) || r.Results != r.VerifierPos+xdr.Roundup(r.VerifierLen)+4 {
			t.Fatalf("parsed %+v of %d octets", r, len(m))
		}
	})
}

func TestParseReplyAllocs(t *testing.T) {
	_, replies := load(t)
	var r Reply
	if n := testing.AllocsPerRun(100, func() {
		for i := range replies {
			if ParseReply(replies[i].message, &r) != nil {
				t.Fatal("failed")
			}
		}
	}); n != 0 {
		t.Errorf("ParseReply allocates %v times in %d Replies", n, len(replies))
	}
}

func BenchmarkParseReply(b *testing.B) {
	_, replies := load(b)
	m := replies[2].message
	var r Reply
	b.SetBytes(int64(len(m)))
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseReply(m, &r); err != nil {
			b.Fatal(err)
		}
	}
}
