package nfs

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// Lengths of NFS version 3 results, RFC 1813 Section 2.6.
const (
	fh3     = 4 + 64                    // nfs_fh3
	attr3   = 84                        // fattr3
	poa3    = 4 + attr3                 // post_op_attr
	wcc3    = 28 + poa3                 // wcc_data: pre_op_attr, post_op_attr
	postFH3 = 4 + fh3                   // post_op_fh3
	new3    = 4 + postFH3 + poa3 + wcc3 // results of procedures that create a file
)

// sattr3: mode, uid, gid, size, atime, mtime. A time is present when its
// discriminant is SET_TO_CLIENT_TIME, 2.
const sattr3 = " {1:4|*:} {1:4|*:} {1:4|*:} {1:8|*:} {2:8|*:} {2:8|*:} "

// NFS version 3, RFC 1813 Section 3.
//
// The letter D marks DDP-eligible items. CREATE is not idempotent in any mode: GUARDED
// fails with EXIST the second time, UNCHECKED may truncate again.
var v3 = compileStatus(ulb.FirstStatus, nil,
	row{number: 1, name: "GETATTR", class: ro, args: "O", results: 4 + attr3},
	row{number: 2, name: "SETATTR", class: non, args: "O" + sattr3 + "?(8)", results: 4 + wcc3, failure: 8},
	row{number: 3, name: "LOOKUP", class: ro, args: "O O", results: 4 + fh3 + 2*poa3, failure: 4},
	row{number: 4, name: "ACCESS", class: ro, args: "O 4", results: 4 + poa3 + 4, failure: 4},
	row{number: 5, name: "READLINK", class: ro, args: "O", size: readlink3, item: "{0:{1:84|0:} D|*:{1:84|0:}}", failure: 4},
	row{number: 6, name: "READ", class: ro, args: "O 8 4", size: read3, asks: []number{{at: -4}}, item: "{0:{1:84|0:} 8 D|*:{1:84|0:}}", offer: offerResult, failure: 4},
	row{number: 7, name: "WRITE", class: idm, args: "O 8 4 4 D", results: 4 + wcc3 + 16, offer: offerArgument, failure: 8},
	row{number: 8, name: "CREATE", class: non, args: "O O {0,1:" + sattr3 + "|2:8}", results: new3, failure: 8},
	row{number: 9, name: "MKDIR", class: non, args: "O O" + sattr3, results: new3, failure: 8},
	row{number: 10, name: "SYMLINK", class: non, args: "O O" + sattr3 + "D", results: new3, failure: 8},
	row{number: 11, name: "MKNOD", class: non, args: "O O {3,4:" + sattr3 + "8|6,7:" + sattr3 + "|*:}", results: new3, failure: 8},
	row{number: 12, name: "REMOVE", class: non, args: "O O", results: 4 + wcc3, failure: 8},
	row{number: 13, name: "RMDIR", class: non, args: "O O", results: 4 + wcc3, failure: 8},
	row{number: 14, name: "RENAME", class: non, args: "O O O O", results: 4 + 2*wcc3, failure: 16},
	row{number: 15, name: "LINK", class: non, args: "O O O", results: 4 + poa3 + wcc3, failure: 12},
	row{number: 16, name: "READDIR", class: ro, args: "O 8 8 4", size: readdir3, asks: []number{{at: -4}}, failure: 4},
	row{number: 17, name: "READDIRPLUS", class: ro, args: "O 8 8 4 4", size: readdirplus3, asks: []number{{at: -8}, {at: -4}}, failure: 4},
	row{number: 18, name: "FSSTAT", class: ro, args: "O", results: 4 + poa3 + 52, failure: 4},
	row{number: 19, name: "FSINFO", class: ro, args: "O", results: 4 + poa3 + 48, says: fsinfo3, saying: "{0:{1:84|0:} 48|*:{1:84|0:}}", failure: 4},
	row{number: 20, name: "PATHCONF", class: ro, args: "O", results: 4 + poa3 + 24, failure: 4},
	row{number: 21, name: "COMMIT", class: idm, args: "O 8 4", results: 4 + wcc3 + 8, failure: 8},
)

// fsinfo3: rtmax, rtpref, rtmult, wtmax, wtpref, wtmult, dtpref, and 20 octets that count nothing.
var fsinfo3 = []number{
	{at: -48, of: dataRead},
	{at: -44, of: dataRead},
	{at: -40, of: dataRead},
	{at: -36, of: dataWritten},
	{at: -32, of: dataWritten},
	{at: -28, of: dataWritten},
	{at: -24, of: dataRead},
}

// readlink3: status, post_op_attr, data<>.
func readlink3(_ []byte, _, _ int, l *ulb.Limits) (fixed, data uint32) {
	return 4 + poa3 + 4, l.Path
}

// read3: status, post_op_attr, count, eof, data<>. count is the last argument. A
// server returns no more than its rtmax for any count, so read3 clamps count to the
// largest rtmax that Limits assume.
func read3(m []byte, _, end int, l *ulb.Limits) (fixed, data uint32) {
	return 4 + poa3 + 8 + 4, min(be(m, end-4), l.MaxIO)
}

// readdir3: status, post_op_attr, cookieverf, entries. count is the last argument. In
// RFC 1813 it bounds all of READDIR3resok; Linux counts the entries alone. The bound
// holds for both.
func readdir3(m []byte, _, end int, _ *ulb.Limits) (fixed, data uint32) {
	return 4 + poa3 + 8 + count(be(m, end-4)), 0
}

// readdirplus3 is readdir3 with maxcount, the last argument. dircount, before it, bounds
// only the names.
func readdirplus3(m []byte, start, end int, l *ulb.Limits) (fixed, data uint32) {
	return readdir3(m, start, end, l)
}
