package nfs

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// TestFixed: the Analysis that a Registry keeps for a procedure is the one that its arguments give, for arguments that
// fit and for others.
func TestFixed(t *testing.T) {
	reg := ulb.NewRegistry(ulb.Limits{})
	for _, b := range Bindings() {
		reg.Bind(b.Program, b.Version, b.Binding)
	}
	kept := 0
	for _, b := range Bindings() {
		p, ok := b.Binding.(*program)
		if !ok {
			continue
		}
		for n := range *p {
			if _, ok := p.Fixed(uint32(n), new(ulb.Analysis)); ok {
				kept++
			}
			for octets := range 80 {
				m := make([]byte, oncrpc.CallHeaderMin+octets)
				binary.BigEndian.PutUint32(m[8:], oncrpc.RPCVersion)
				binary.BigEndian.PutUint32(m[12:], b.Program)
				binary.BigEndian.PutUint32(m[16:], b.Version)
				binary.BigEndian.PutUint32(m[20:], uint32(n))
				for at := oncrpc.CallHeaderMin + octets%4; at+4 <= len(m) && octets%3 == 0; at += 8 {
					m[at+3] = 4 // an opaque of four octets, here and there
				}
				var h oncrpc.Call
				if err := oncrpc.ParseCall(m, &h); err != nil {
					t.Fatal(err)
				}
				var got, want ulb.Analysis
				binding := reg.Analyse(&h, &got)
				h.Flavor = oncrpc.FlavorDH // no procedure is fixed for it; its Replies are bounded like those of AUTH_SYS
				if reg.Analyse(&h, &want) != binding || !reflect.DeepEqual(got, want) {
					t.Fatalf("%d, %d, %d with %d octets: %+v, want %+v", b.Program, b.Version, n, octets, got, want)
				}
			}
		}
	}
	if kept < 20 {
		t.Errorf("%d procedures are fixed", kept)
	}
}
