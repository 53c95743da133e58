package nfs

import (
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// NLM, X/Open XNFS Chapter 10 and RFC 1813 Appendix II, versions 1 and 3 with
// offsets of 32 bits, version 4 with 64. Locking again for the same owner
// changes nothing, so all procedures are idempotent, and TEST only reads.
var (
	nlm1 = compileStatus(ulb.LockStatus, nlmVoid, nlmRows("4 4")...)
	nlm3 = compileStatus(ulb.LockStatus, nlmVoid, append(nlmRows("4 4"), nlmRows3("4 4")...)...)
	nlm4 = compileStatus(ulb.LockStatus, nlmVoid, append(nlmRows("8 8"), nlmRows3("8 8")...)...)
)

// nlmVoid are the procedures whose Replies are void.
var nlmVoid = []string{
	"TEST_MSG", "LOCK_MSG", "CANCEL_MSG", "UNLOCK_MSG", "GRANTED_MSG",
	"TEST_RES", "LOCK_RES", "CANCEL_RES", "UNLOCK_RES", "GRANTED_RES", "SM_NOTIFY", "FREE_ALL",
}

// nlmWords replaces the words LOCK and RANGE in layouts. w is the layout of a range.
var nlmWords = func(w string) *strings.Replacer {
	// A lock: caller_name, fh, oh, svid, l_offset, l_len.
	return strings.NewReplacer("LOCK", "O O O 4 "+w, "RANGE", w)
}

// nlmRows are the procedures of every version. The arguments start with a cookie, which
// the answer returns. The peer answers a _MSG procedure by a Call of the _RES
// procedure in the other direction; the Reply to the _MSG Call is void.
func nlmRows(w string) []row {
	lay := nlmWords(w).Replace
	test, lock := lay("O 4 LOCK"), lay("O 4 4 LOCK 4 4")
	cancel, unlock, granted := lay("O 4 4 LOCK"), lay("O LOCK"), lay("O 4 LOCK")
	return []row{
		{number: 1, name: "TEST", class: ro, args: test, size: nlmTest},
		{number: 2, name: "LOCK", class: idm, args: lock, size: nlmStat, keepsIf: sharedLock},
		{number: 3, name: "CANCEL", class: idm, args: cancel, size: nlmStat, keeps: true},
		{number: 4, name: "UNLOCK", class: idm, args: unlock, size: nlmStat, keeps: true},
		{number: 5, name: "GRANTED", class: idm, args: granted, size: nlmStat},
		{number: 6, name: "TEST_MSG", class: idm, args: test},
		{number: 7, name: "LOCK_MSG", class: idm, args: lock},
		{number: 8, name: "CANCEL_MSG", class: idm, args: cancel},
		{number: 9, name: "UNLOCK_MSG", class: idm, args: unlock},
		{number: 10, name: "GRANTED_MSG", class: idm, args: granted},
		{number: 11, name: "TEST_RES", class: idm, args: lay("O {1:4 4 O RANGE|*:}")},
		{number: 12, name: "LOCK_RES", class: idm, args: "O 4"},
		{number: 13, name: "CANCEL_RES", class: idm, args: "O 4"},
		{number: 14, name: "UNLOCK_RES", class: idm, args: "O 4"},
		{number: 15, name: "GRANTED_RES", class: idm, args: "O 4"},
		{number: 16, name: "SM_NOTIFY", class: idm, args: "O 4 16"}, // from statd, private
	}
}

// nlmRows3 are the procedures that version 3 added for PC clients.
func nlmRows3(w string) []row {
	share := "O O O O 4 4 4" // cookie; caller_name, fh, oh, mode, access; reclaim
	return []row{
		{number: 20, name: "SHARE", class: idm, args: share, size: nlmShare},
		{number: 21, name: "UNSHARE", class: idm, args: share, size: nlmShare, keeps: true},
		{number: 22, name: "NM_LOCK", class: idm, args: nlmWords(w).Replace("O 4 4 LOCK 4 4"), size: nlmStat, keepsIf: sharedLock},
		{number: 23, name: "FREE_ALL", class: idm, args: "O 4"},
	}
}

// sharedLock reports whether a LOCK is for reading: cookie, block, exclusive. An exclusive lock
// keeps others from the file and needs the right to write it.
func sharedLock(m []byte, start int) bool { return be(m, after(m, start)+4) == 0 }

// cookie returns the length of the cookie at the start of an NLM Reply. It is the cookie of the
// Call.
func cookie(m []byte, start int) uint32 { return uint32(after(m, start) - start) }

// nlmStat: cookie, stat.
func nlmStat(m []byte, start, _ int, _ *ulb.Limits) (fixed, data uint32) {
	return cookie(m, start) + 4, 0
}

// nlmShare: cookie, stat, sequence.
func nlmShare(m []byte, start, _ int, _ *ulb.Limits) (fixed, data uint32) {
	return cookie(m, start) + 8, 0
}

// nlmTest: cookie, stat, and the holder of a conflicting lock: exclusive, svid,
// oh<1024>, l_offset, l_len.
func nlmTest(m []byte, start, _ int, _ *ulb.Limits) (fixed, data uint32) {
	return cookie(m, start) + 4 + 4 + 4 + (4 + 1024) + 16, 0
}

// NSM version 1, X/Open XNFS Chapter 11.
var nsm = compile(
	row{number: 1, name: "STAT", class: ro, args: "O", results: 8},
	row{number: 2, name: "MON", class: idm, args: "O O 12 16", results: 8},
	row{number: 3, name: "UNMON", class: idm, args: "O O 12", results: 4},
	row{number: 4, name: "UNMON_ALL", class: idm, args: "O 12", results: 4},
	row{number: 5, name: "SIMU_CRASH", class: non},
	row{number: 6, name: "NOTIFY", class: idm, args: "O 4", keeps: true},
)
