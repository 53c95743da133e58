package nfs

// Operations that change files only with some arguments. Each function reports whether the operation
// with the arguments at pos, which have been walked to their end, changes no file.

// Values of OPEN's and LOCK's arguments. RFC 7531, RFC 5662.
const (
	accessBoth = 3 // OPEN4_SHARE_ACCESS_BOTH: the bits of share_access that say for what
	accessRead = 1 // OPEN4_SHARE_ACCESS_READ
	denyRead   = 1 // OPEN4_SHARE_DENY_READ, a bit of share_deny

	openNoCreate  = 0 // OPEN4_NOCREATE
	claimPrevious = 1 // CLAIM_PREVIOUS, with the type of a delegation
	delegateWrite = 2 // OPEN_DELEGATE_WRITE
	delegateAttrs = 5 // OPEN_DELEGATE_WRITE_ATTRS_DELEG, RFC 9754

	lockRead     = 1 // READ_LT
	lockReadWait = 3 // READW_LT
)

// openToRead is for OPEN:
//
//	seqid, share_access, share_deny, owner{clientid 8, owner<>}, opentype{...}, claim{...}
//
// An OPEN that keeps others from reading needs the right to write at servers, such as Linux's, and is
// treated alike. One that reclaims a delegation for writing belongs to a client that could write.
func openToRead(m []byte, pos int) bool {
	if be(m, pos+4)&accessBoth != accessRead || be(m, pos+8)&denyRead != 0 {
		return false
	}
	o := after(m, pos+20)
	if be(m, o) != openNoCreate {
		return false
	}
	if be(m, o+4) == claimPrevious {
		d := be(m, o+8)
		return d != delegateWrite && d != delegateAttrs
	}
	return true
}

// lockToRead is for LOCK, whose arguments begin with the type of the lock. An exclusive lock keeps
// others from the file and needs the right to write it.
func lockToRead(m []byte, pos int) bool {
	t := be(m, pos)
	return t == lockRead || t == lockReadWait
}

// createsNothing is for OPENATTR, whose argument is whether to create the directory of named attributes.
func createsNothing(m []byte, pos int) bool { return be(m, pos) == 0 }

// Keeps implements ulb.Keeper. The operations of a COMPOUND are in its arguments.
func (compound) Keeps(procedure uint32) bool { return procedure == 0 }
