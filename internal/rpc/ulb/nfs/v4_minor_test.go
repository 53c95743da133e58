package nfs_test

import (
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

func TestMinorVersion(t *testing.T) {
	seen := 0
	for _, v := range loadVectors(t) {
		c := parse(t, v.Call)
		minor, ok := nfs.MinorVersion(c)
		_, of, named := strings.Cut(v.ID, "-nfs4")
		if !named {
			if ok && (v.Prog != oncrpc.ProgramNFS || v.Vers != 4 || v.Proc != 1) {
				t.Errorf("%s: minor version %d", v.ID, minor)
			}
			continue
		}
		seen++
		if want := uint32(of[0] - '0'); !ok || minor != want {
			t.Errorf("%s: MinorVersion = %d, %v; want %d", v.ID, minor, ok, want)
		}
		// tag<>, minorversion: the tags of the vectors have one or two units.
		for n := c.Args; n < c.Args+8; n++ {
			if minor, ok := nfs.MinorVersion(parse(t, v.Call[:n:n])); ok {
				t.Errorf("%s cut to %d octets: minor version %d", v.ID, n, minor)
			}
		}
		whole := *c
		for _, p := range []oncrpc.Protection{oncrpc.ProtectPrivacy, oncrpc.ProtectControl, oncrpc.ProtectUnknown} {
			whole.Protection = p
			if _, ok := nfs.MinorVersion(&whole); ok {
				t.Errorf("%s: read through %v", v.ID, p)
			}
		}
		if n := testing.AllocsPerRun(10, func() { nfs.MinorVersion(c) }); n != 0 {
			t.Errorf("MinorVersion allocates %v times", n)
		}
	}
	if seen < 15 {
		t.Errorf("%d vectors of NFSv4", seen)
	}
	for _, c := range []oncrpc.Call{
		{Program: oncrpc.ProgramNFS, Version: 4, Procedure: 0},
		{Program: oncrpc.ProgramNFS, Version: 3, Procedure: 1},
		{Program: oncrpc.ProgramCallbacks, Version: 4, Procedure: 1},
	} {
		c.Message, c.Args = make([]byte, 52), 40
		if _, ok := nfs.MinorVersion(&c); ok {
			t.Errorf("%d.%d.%d has a minor version", c.Program, c.Version, c.Procedure)
		}
	}
}
