package nfs

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// NFS version 2, RFC 1094 Section 2.2: fhandle 32, fattr 68, sattr 32. In every union,
// the results of an error are the status alone.
//
// DDP-eligible in versions 2 and 3, RFC 8267 Section 4: "the opaque file data
// argument in the NFS WRITE procedure", "the pathname argument in the NFS SYMLINK
// procedure", "the opaque file data result in the NFS READ procedure", "the
// pathname result in the NFS READLINK procedure". Nothing else is.
var v2 = compileStatus(ulb.FirstStatus, []string{"ROOT", "WRITECACHE"},
	row{number: 1, name: "GETATTR", class: ro, args: "32", results: 72},
	row{number: 2, name: "SETATTR", class: non, args: "32 32", results: 72},
	row{number: 3, name: "ROOT", class: ro},
	row{number: 4, name: "LOOKUP", class: ro, args: "32 O", results: 104},
	row{number: 5, name: "READLINK", class: ro, args: "32", size: readlink2, item: "{0:D|*:}"},
	row{number: 6, name: "READ", class: ro, args: "32 4 4 4", size: read2, asks: []number{{at: -8}}, item: "{0:68 D|*:}", offer: offerResult},
	row{number: 7, name: "WRITECACHE", class: ro},
	row{number: 8, name: "WRITE", class: idm, args: "32 4 4 4 D", results: 72, offer: offerArgument},
	row{number: 9, name: "CREATE", class: non, args: "32 O 32", results: 104},
	row{number: 10, name: "REMOVE", class: non, args: "32 O", results: 4},
	row{number: 11, name: "RENAME", class: non, args: "32 O 32 O", results: 4},
	row{number: 12, name: "LINK", class: non, args: "32 32 O", results: 4},
	row{number: 13, name: "SYMLINK", class: non, args: "32 O D 32", results: 4},
	row{number: 14, name: "MKDIR", class: non, args: "32 O 32", results: 104},
	row{number: 15, name: "RMDIR", class: non, args: "32 O", results: 4},
	row{number: 16, name: "READDIR", class: ro, args: "32 4 4", size: readdir2, asks: []number{{at: -4}}},
	row{number: 17, name: "STATFS", class: ro, args: "32", results: 24, says: statfs2, saying: "{0:20|*:}"},
)

// statfs2: tsize, "The optimum transfer size of the server in bytes", and four counts of blocks.
var statfs2 = []number{{at: -20, of: dataRead}, {at: -20, of: dataWritten}}

// readlink2: status, path<MAXPATHLEN>, and MAXPATHLEN is 1024.
func readlink2([]byte, int, int, *ulb.Limits) (fixed, data uint32) { return 8, 1024 }

// read2: status, fattr, data<>. RFC 1094 has MAXDATA of 8192; servers use
// count, which follows fhandle and offset.
func read2(m []byte, start, _ int, l *ulb.Limits) (fixed, data uint32) {
	return 4 + 68 + 4, min(be(m, start+36), l.MaxIO)
}

// readdir2: status, end of list, eof, and count octets of entries. count follows
// fhandle and cookie.
func readdir2(m []byte, start, _ int, _ *ulb.Limits) (fixed, data uint32) {
	return 12 + count(be(m, start+36)), 0
}
