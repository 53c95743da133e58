// Package nfs holds the upper-layer bindings of NFS versions 2, 3 and 4, RFC
// 8267, and of the programs around them: NFSACL, MOUNT, NLM, NSM, rpcbind and
// rquota, in which nothing is DDP-eligible but whose Replies have bounds.
//
// The tables follow RFC 1094, RFC 1813, RFC 1833, RFC 7531, RFC 5662, RFC 7863, RFC 8276 and,
// where there is no RFC, the messages of Linux. A row has the layout of the arguments, the most
// octets of results, and the effect of a second execution. The results of a failure are never
// longer than the results of success.
package nfs

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// A Bound is a binding with its program and version.
type Bound struct {
	Program, Version uint32
	Binding          ulb.Binding
}

// Bindings returns every binding of this package, the busiest first.
func Bindings() []Bound {
	return []Bound{
		{oncrpc.ProgramNFS, 4, v4},
		{oncrpc.ProgramNFS, 3, v3},
		{oncrpc.ProgramNFS, 2, v2},
		{oncrpc.ProgramNFSACL, 3, acl3},
		{oncrpc.ProgramNFSACL, 2, acl2},
		{oncrpc.ProgramNLM, 4, nlm4},
		{oncrpc.ProgramNLM, 3, nlm3},
		{oncrpc.ProgramNLM, 1, nlm1},
		{oncrpc.ProgramNSM, 1, nsm},
		{oncrpc.ProgramMount, 3, mount3},
		{oncrpc.ProgramMount, 2, mount2},
		{oncrpc.ProgramMount, 1, mount1},
		{oncrpc.ProgramRPCBind, 2, portmap},
		{oncrpc.ProgramRPCBind, 3, rpcbind3},
		{oncrpc.ProgramRPCBind, 4, rpcbind4},
		{oncrpc.ProgramRQuota, 1, rquota1},
		{oncrpc.ProgramRQuota, 2, rquota2},
	}
}

// Register binds all of Bindings.
func Register(reg *ulb.Registry) {
	for _, b := range Bindings() {
		reg.Bind(b.Program, b.Version, b.Binding)
	}
}
