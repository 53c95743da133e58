package nfs

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// MOUNT, RFC 1094 Appendix A and RFC 1813 Appendix I. Nothing is DDP-eligible:
// RFC 8267 Section 5.1.
var (
	mount1 = compileStatus(ulb.FirstStatus, mountVoid, mountRows...)

	mount2 = compileStatus(ulb.FirstStatus, mountVoid, append([]row{
		{number: 7, name: "PATHCONF", class: ro, args: "O", results: 64},
	}, mountRows...)...)

	mount3 = compileStatus(ulb.FirstStatus, mountVoid,
		row{number: 1, name: "MNT", class: idm, args: "O", size: mnt3, keeps: true},
		row{number: 2, name: "DUMP", class: ro, results: unbounded},
		row{number: 3, name: "UMNT", class: idm, args: "O", keeps: true},
		row{number: 4, name: "UMNTALL", class: idm, keeps: true},
		row{number: 5, name: "EXPORT", class: ro, results: unbounded},
	)
)

// mountVoid are the procedures whose results have no status.
var mountVoid = []string{"DUMP", "UMNT", "UMNTALL", "EXPORT", "EXPORTALL", "PATHCONF"}

var mountRows = []row{
	{number: 1, name: "MNT", class: idm, args: "O", results: 4 + 32, keeps: true},
	{number: 2, name: "DUMP", class: ro, results: unbounded},
	{number: 3, name: "UMNT", class: idm, args: "O", keeps: true},
	{number: 4, name: "UMNTALL", class: idm, keeps: true},
	{number: 5, name: "EXPORT", class: ro, results: unbounded},
	{number: 6, name: "EXPORTALL", class: ro, results: unbounded},
}

// mnt3: status, fhandle3, auth_flavors<>.
func mnt3(_ []byte, _, _ int, l *ulb.Limits) (fixed, data uint32) {
	return 4 + fh3 + 4 + 4*l.Flavors, 0
}
