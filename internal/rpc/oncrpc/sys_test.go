package oncrpc_test

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// sysCall is a Call of NFSv3 GETATTR with the body of an AUTH_SYS credential.
func sysCall(body []byte) *oncrpc.Call {
	var b []byte
	for _, w := range []uint32{7, 0, 2, 100003, 3, 1, oncrpc.FlavorSys} {
		b = xdr.AppendUint32(b, w)
	}
	b = xdr.AppendOpaque(b, body)
	b = append(b, make([]byte, 8)...)
	var c oncrpc.Call
	if err := oncrpc.ParseCall(b, &c); err != nil {
		panic(err)
	}
	return &c
}

// sysBody is such a body. RFC 5531 Appendix A.
func sysBody(name string, uid, gid uint32, gids ...uint32) []byte {
	b := xdr.AppendOpaque(xdr.AppendUint32(nil, 0x5eed), []byte(name))
	b = xdr.AppendUint32(xdr.AppendUint32(b, uid), gid)
	b = xdr.AppendUint32(b, uint32(len(gids)))
	for _, g := range gids {
		b = xdr.AppendUint32(b, g)
	}
	return b
}

func TestSysCredential(t *testing.T) {
	sixteen := make([]uint32, 16)
	for i := range sixteen {
		sixteen[i] = uint32(100 + i)
	}
	for _, tt := range []struct {
		name string
		gids []uint32
	}{{"", nil}, {"host", []uint32{0}}, {"abc", sixteen}, {string(make([]byte, 255)), []uint32{1, 2}}} {
		c := sysCall(sysBody(tt.name, 1000, 0xfffffffe, tt.gids...))
		s, ok := c.Sys()
		if !ok || s.UID() != 1000 || s.Groups() != 1+len(tt.gids) || s.Group(0) != 0xfffffffe {
			t.Fatalf("%q: %+v, %v", tt.name, s, ok)
		}
		for i, g := range tt.gids {
			if s.Group(1+i) != g {
				t.Errorf("%q: group %d is %d, want %d", tt.name, i, s.Group(1+i), g)
			}
		}
		s.SetUID(65534)
		want := []uint32{7}
		s.SetGroup(0, 7)
		for i := range tt.gids {
			s.SetGroup(1+i, uint32(i))
			want = append(want, uint32(i))
		}
		if got := c.Message; !bytes.Equal(got, sysCall(sysBody(tt.name, 65534, want[0], want[1:]...)).Message) {
			t.Errorf("%q: changed to %x", tt.name, got)
		}
	}
	body := sysBody("host", 1, 2, 3)
	for n := range body {
		if _, ok := sysCall(body[:n]).Sys(); ok {
			t.Errorf("a body of %d octets, of %d, is a credential", n, len(body))
		}
	}
	for name, b := range map[string][]byte{
		"octets behind":    append(sysBody("host", 1, 2, 3), 0, 0, 0, 0),
		"a name too long":  sysBody(string(make([]byte, 256)), 1, 2),
		"17 groups":        sysBody("host", 1, 2, make([]uint32, 17)...),
		"2^32-1 groups":    append(sysBody("host", 1, 2)[:20], 0xff, 0xff, 0xff, 0xff),
		"no groups at all": sysBody("host", 1, 2)[:20],
	} {
		if _, ok := sysCall(b).Sys(); ok {
			t.Errorf("%s: is a credential", name)
		}
	}
	c := sysCall(body)
	c.Flavor = oncrpc.FlavorShort
	if _, ok := c.Sys(); ok {
		t.Error("AUTH_SHORT is AUTH_SYS")
	}
}
