package nfs

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// NFSACL, program 100227. It has no specification; these are the layouts of
// Linux. "no data item in this upper-layer protocol is DDP-eligible": RFC 8267
// Section 5.2.
//
// An ACL is a count and an array of tag, id, permissions. Linux servers hold at most
// 1024 entries, and nothing bounds those of others.
const (
	aclEmpty = 4 + 4
	aclMost  = aclEmpty + 12*1024
)

// aclDefault in the mask of GETACL asks for the entries of the default ACL.
const aclDefault = 4

var acl2 = compileStatus(ulb.FirstStatus, nil,
	row{number: 1, name: "GETACL", class: ro, args: "32 4", size: getacl2, guess: true},
	row{number: 2, name: "SETACL", class: idm, args: "32 4 4 [12] 4 [12]", results: 72},
	row{number: 3, name: "GETATTR", class: ro, args: "32", results: 72},
	row{number: 4, name: "ACCESS", class: ro, args: "32 4", results: 76},
	row{number: 5, name: "GETXATTRDIR", class: non, args: "32 4", results: 104},
)

var acl3 = compileStatus(ulb.FirstStatus, nil,
	row{number: 1, name: "GETACL", class: ro, args: "O 4", size: getacl3, guess: true, failure: 4},
	row{number: 2, name: "SETACL", class: idm, args: "O 4 4 [12] 4 [12]", results: 4 + poa3, failure: 4},
	row{number: 3, name: "GETXATTRDIR", class: non, args: "O 4", results: 4 + fh3 + poa3, failure: 4},
)

// getacl2: status, fattr, mask, ACL, default ACL.
func getacl2(m []byte, _, end int, _ *ulb.Limits) (fixed, data uint32) {
	return 4 + 68 + 4 + acls(be(m, end-4)), 0
}

// getacl3: status, post_op_attr, mask, ACL, default ACL.
func getacl3(m []byte, _, end int, _ *ulb.Limits) (fixed, data uint32) {
	return 4 + poa3 + 4 + acls(be(m, end-4)), 0
}

// acls bounds both ACLs. The mask tells whether the default ACL has entries.
func acls(mask uint32) uint32 {
	if mask&aclDefault == 0 {
		return aclMost + aclEmpty
	}
	return 2 * aclMost
}
