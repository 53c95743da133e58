package observe

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A Class is the class of a Reply.
type Class uint8

// The classes: status.ClassOK, and so on.
const (
	ClassOK Class = iota
	ClassEncrypted
	ClassNoEnt
	ClassExist
	ClassLocked
	ClassAccess
	ClassStale
	ClassDelay
	ClassNoSpace
	ClassIO
	ClassInvalid
	ClassNotSupp
	ClassGrace
	ClassState
	ClassSession
	ClassFault
	ClassOther
	ClassProgUnavail
	ClassProgMismatch
	ClassProcUnavail
	ClassGarbageArgs
	ClassSystemErr
	ClassAuthError
	ClassRPCMismatch
	ClassMalformed
	Classes
)

var classNames = [Classes]string{
	status.ClassOK, status.ClassEncrypted, status.ClassNoEnt, status.ClassExist, status.ClassLocked, status.ClassAccess,
	status.ClassStale, status.ClassDelay, status.ClassNoSpace, status.ClassIO, status.ClassInvalid, status.ClassNotSupp,
	status.ClassGrace, status.ClassState, status.ClassSession, status.ClassFault, status.ClassOther,
	status.ClassProgUnavail, status.ClassProgMismatch, status.ClassProcUnavail, status.ClassGarbageArgs,
	status.ClassSystemErr, status.ClassAuthError, status.ClassRPCMismatch, status.ClassMalformed,
}

// String is the class as package status names it.
func (c Class) String() string { return classNames[c] }

// Fails is status.Failure of the class.
func (c Class) Fails() bool { return classFails[c] }

// classFails is status.Failure for each class.
var classFails = func() (fails [Classes]bool) {
	for c, name := range classNames {
		fails[c] = status.Failure(name)
	}
	return fails
}()

// ClassOf classifies the Reply that begins with m, to a Call whose arguments have the protection p.
// kind says where the results have a status. Of that number ok is true if there is one.
func ClassOf(m []byte, p oncrpc.Protection, kind ulb.StatusKind) (c Class, number uint32, ok bool) {
	word := func(at int) uint32 { return binary.BigEndian.Uint32(m[at:]) }
	at := noVerifier
	if len(m) < at || word(8)|word(16)|word(20) != 0 {
		if at, c = accepted(m); at == 0 {
			return c, 0, false
		}
	}
	switch {
	case p == oncrpc.ProtectPrivacy:
		return ClassEncrypted, 0, false
	case p > oncrpc.ProtectPrivacy, kind == ulb.NoStatus:
		return ClassOK, 0, false
	case p == oncrpc.ProtectIntegrity:
		at += 8 // the length of the body, and the sequence number
	}
	if kind == ulb.LockStatus && at+4 <= len(m) {
		at += 4 + xdr.Roundup(int(min(word(at), uint32(len(m)))))
	}
	if at+4 > len(m) {
		return ClassMalformed, 0, false
	}
	number = word(at)
	if kind == ulb.LockStatus {
		return lockClass(number), number, true
	}
	return statusClass(number), number, true
}

// A latestClass is the class of the Reply that was classified last, for the next one, which mostly begins as that did.
type latestClass struct {
	first      [3]uint64 // octets of the Reply, from behind its XID to the status
	protection oncrpc.Protection
	kind       ulb.StatusKind
	class      Class
	set        bool
}

// classOf returns what ClassOf does.
func (l *latestClass) classOf(m []byte, p oncrpc.Protection, kind ulb.StatusKind) Class {
	if len(m) < noVerifier+4 {
		c, _, _ := ClassOf(m, p, kind)
		return c
	}
	first := [...]uint64{binary.BigEndian.Uint64(m[4:]), binary.BigEndian.Uint64(m[12:]), binary.BigEndian.Uint64(m[20:])}
	if l.set && first == l.first && p == l.protection && kind == l.kind {
		return l.class
	}
	c, _, _ := ClassOf(m, p, kind)
	// Without protection, and with a verifier that has no body, only those octets decide, except about locks.
	plain := p == oncrpc.ProtectNone && kind != ulb.LockStatus && uint32(first[1]) == 0
	*l = latestClass{first, p, kind, c, plain}
	return c
}

// noVerifier is where the results of an accepted Call begin whose Reply has a verifier without a body: behind
// the XID, the type, reply_stat, flavor and length of the verifier, and accept_stat.
const noVerifier = 24

// accepted returns where the results of a Call begin that the server has executed. For other Replies it returns 0
// and their class.
func accepted(m []byte) (at int, c Class) {
	if len(m) < oncrpc.MinReply {
		return 0, ClassMalformed
	}
	word := func(at int) uint32 { return binary.BigEndian.Uint32(m[at:]) }
	if word(8) != 0 {
		if word(12) == oncrpc.RPCMismatch {
			return 0, ClassRPCMismatch
		}
		return 0, ClassAuthError
	}
	n := word(16)
	if n > oncrpc.MaxAuth {
		return 0, ClassMalformed
	}
	at = 20 + xdr.Roundup(int(n))
	if at+4 > len(m) {
		return 0, ClassMalformed
	}
	if accept := word(at); accept != oncrpc.Success {
		if accept > oncrpc.SystemError {
			return 0, ClassMalformed
		}
		return 0, ClassProgUnavail + Class(accept) - oncrpc.ProgramUnavailable
	}
	return at + 4, ClassOK
}

// lockClasses are the classes of nlm4_stats: RFC 1813 Section 6.1.3.
var lockClasses = [...]Class{
	ClassOK, ClassLocked, ClassFault, ClassLocked, ClassGrace, ClassLocked, ClassAccess, ClassStale, ClassInvalid, ClassFault,
}

func lockClass(n uint32) Class {
	if n < uint32(len(lockClasses)) {
		return lockClasses[n]
	}
	return ClassOther
}

// statusClass is the class of an nfsstat of any version of NFS, of a MOUNT status, or of an NFSACL status:
// they have the same numbers for the same errors. RFC 1094 Section 2.3.1, RFC 1813 Section 2.6, RFC 8881
// Section 15.1.
func statusClass(n uint32) Class {
	switch {
	case n < uint32(len(lowClasses)):
		return lowClasses[n]
	case n-firstHigh < uint32(len(highClasses)):
		return highClasses[n-firstHigh]
	}
	return ClassOther
}

// firstHigh is the first number of the statuses that version 3 and later have added.
const firstHigh = 10001

var lowClasses, highClasses = func() (low [100]Class, high [100]Class) {
	for i := range low {
		low[i], high[i] = ClassOther, ClassOther
	}
	low[0] = ClassOK
	for c, numbers := range statusesOf {
		for _, n := range numbers {
			if n < firstHigh {
				low[n] = c
			} else {
				high[n-firstHigh] = c
			}
		}
	}
	return low, high
}()

var statusesOf = map[Class][]int{
	ClassNoEnt:   {2, 10095},                                 // NOENT, NOXATTR
	ClassExist:   {17, 66},                                   // EXIST, NOTEMPTY
	ClassLocked:  {10010, 10012, 10015, 10037, 10045, 10046}, // DENIED, LOCKED, SHARE_DENIED, LOCKS_HELD, DEADLOCK, FILE_OPEN
	ClassAccess:  {1, 13, 30, 10016, 10038, 10082},           // PERM, ACCES, ROFS, WRONGSEC, OPENMODE, WRONG_CRED
	ClassStale:   {70, 10001, 10014},                         // STALE, BADHANDLE, FHEXPIRED
	ClassDelay:   {10008, 10057, 10058, 10061, 10074},        // JUKEBOX and DELAY, BACK_CHAN_BUSY, LAYOUTTRYLATER, RECALLCONFLICT, CLIENTID_BUSY
	ClassNoSpace: {28, 69},                                   // NOSPC, DQUOT
	ClassIO:      {5, 6, 19, 99},                             // IO, NXIO, NODEV, WFLUSH
	// XDEV, NOTDIR, ISDIR, INVAL, FBIG, MLINK, NAMETOOLONG; NOT_SYNC, BAD_COOKIE, TOOSMALL, BADTYPE, SAME,
	// NOFILEHANDLE, NOT_SAME, LOCK_RANGE, SYMLINK, RESTOREFH, BADXDR, BADOWNER, BADCHAR, BADNAME, BAD_RANGE,
	// WRONG_TYPE, XATTR2BIG
	ClassInvalid: {18, 20, 21, 22, 27, 31, 63, 10002, 10003, 10005, 10007, 10009, 10020, 10027, 10028, 10029, 10030, 10036, 10039, 10040, 10041, 10042, 10083, 10096},
	// NOTSUPP, MINOR_VERS_MISMATCH, ATTRNOTSUPP, LOCK_NOTSUPP, OP_ILLEGAL, LAYOUTUNAVAILABLE,
	// UNKNOWN_LAYOUTTYPE, DIRDELEG_UNAVAIL, PARTNER_NOTSUPP, UNION_NOTSUPP
	ClassNotSupp: {10004, 10021, 10032, 10043, 10044, 10059, 10062, 10084, 10088, 10090},
	ClassGrace:   {10013, 10033, 10034, 10035}, // GRACE, NO_GRACE, RECLAIM_BAD, RECLAIM_CONFLICT
	// EXPIRED, CLID_INUSE, MOVED, STALE_CLIENTID, STALE_STATEID, OLD_STATEID, BAD_STATEID, BAD_SEQID,
	// LEASE_MOVED, ADMIN_REVOKED, CB_PATH_DOWN, COMPLETE_ALREADY, DELEG_REVOKED
	ClassState: {10011, 10017, 10019, 10022, 10023, 10024, 10025, 10026, 10031, 10047, 10048, 10054, 10087},
	// BAD_SESSION_DIGEST, BADSESSION, BADSLOT, CONN_NOT_BOUND_TO_SESSION, SEQ_MISORDERED, SEQUENCE_POS,
	// RETRY_UNCACHED_REP, OP_NOT_IN_SESSION, SEQ_FALSE_RETRY, BAD_HIGH_SLOT, DEADSESSION, NOT_ONLY_OP
	ClassSession: {10051, 10052, 10053, 10055, 10063, 10064, 10068, 10071, 10076, 10077, 10078, 10081},
	// SERVERFAULT, RESOURCE, REQ_TOO_BIG, REP_TOO_BIG, REP_TOO_BIG_TO_CACHE, TOO_MANY_OPS
	ClassFault: {10006, 10018, 10065, 10066, 10067, 10070},
}
