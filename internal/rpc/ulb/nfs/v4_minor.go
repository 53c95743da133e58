package nfs

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// compoundProc is the number of COMPOUND, the only procedure of NFSv4 beside
// NULL. RFC 8881 Section 16.
const compoundProc = 1

// MinorVersion returns the minor version of c when c is an NFSv4 COMPOUND whose
// arguments can be read: plain, or under RPCSEC_GSS without a service or with integrity.
// It reads no further than the minor version, so ok says nothing about the
// operations that follow. It does not allocate.
//
// COMPOUND4args: tag<>, minorversion, argarray<>. RFC 8881 Section 16.2.
func MinorVersion(c *oncrpc.Call) (minor uint32, ok bool) {
	if c.Program != oncrpc.ProgramNFS || c.Version != 4 || c.Procedure != compoundProc {
		return 0, false
	}
	start, end, ok := c.Arguments()
	if !ok {
		return 0, false
	}
	x := xdr.NewCursor(c.Message[:end], start)
	x.Opaque()
	minor = x.Uint32()
	return minor, x.OK()
}
