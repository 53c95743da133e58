package nfs_test

import (
	"encoding/binary"
	"slices"
)

// A serverView reads a COMPOUND as a server does: operation by operation, until one is not known or cannot be
// read. It knows nothing of the tables of package nfs. Its field changes tells which of the operations
// that it could read would change a file, in the sense of RFC 8881 and of a server's read-only export. It
// ignores octets behind the last operation, as servers do.
type serverView struct {
	b       []byte
	bad     bool
	numbers []uint32 // of the operations that it could read
	changes int      // index of the first that changes a file; -1: none does
	minor   uint32
}

func (v *serverView) u32() uint32 {
	if v.bad || len(v.b) < 4 {
		v.bad = true
		return 0
	}
	n := binary.BigEndian.Uint32(v.b)
	v.b = v.b[4:]
	return n
}

func (v *serverView) skip(n uint64) {
	if v.bad || n > uint64(len(v.b)) {
		v.bad = true
		return
	}
	v.b = v.b[n:]
}

func (v *serverView) opaque() { n := uint64(v.u32()); v.skip((n + 3) &^ 3) }
func (v *serverView) bitmap() { v.skip(4 * uint64(v.u32())) }
func (v *serverView) attrs()  { v.bitmap(); v.opaque() }

func (v *serverView) optional(n uint64) {
	switch v.u32() {
	case 0:
	case 1:
		v.skip(n)
	default:
		v.bad = true
	}
}

func (v *serverView) oneOf(words ...uint32) uint32 {
	w := v.u32()
	if !slices.Contains(words, w) {
		v.bad = true
	}
	return w
}

func (v *serverView) times(read func()) {
	for n := v.u32(); n > 0 && !v.bad; n-- {
		read()
	}
}

func (v *serverView) callbackSecurity() {
	v.times(func() {
		switch v.oneOf(0, 1, 6) {
		case 1:
			v.skip(4)
			v.opaque()
			v.skip(8)
			v.times(func() { v.skip(4) })
		case 6:
			v.skip(4)
			v.opaque()
			v.opaque()
		}
	})
}

func (v *serverView) netloc() {
	if v.oneOf(1, 2, 3) == 3 {
		v.opaque()
	}
	v.opaque()
}

// readAsServer reads the arguments of COMPOUND.
func readAsServer(args []byte) *serverView {
	v := &serverView{b: args, changes: -1}
	v.opaque()
	v.minor = v.u32()
	if v.minor > 2 {
		v.bad = true
	}
	for n := v.u32(); n > 0 && !v.bad; n-- {
		number := v.u32()
		if last := []uint32{39, 58, 75}[v.minor]; number < 3 || number > last {
			v.bad = true
		}
		if v.bad {
			return v
		}
		if changes := v.operation(number); changes && !v.bad && v.changes < 0 {
			v.changes = len(v.numbers)
		}
		if !v.bad {
			v.numbers = append(v.numbers, number)
		}
	}
	return v
}

// operation reads the arguments of one operation and reports whether it changes a file.
func (v *serverView) operation(number uint32) (changes bool) {
	const stateid = 16
	switch number {
	case 3: // ACCESS
		v.skip(4)
	case 4: // CLOSE
		v.skip(4 + stateid)
	case 5: // COMMIT
		v.skip(12)
		return true
	case 6: // CREATE
		switch v.u32() {
		case 5:
			v.opaque()
		case 3, 4:
			v.skip(8)
		}
		v.opaque()
		v.attrs()
		return true
	case 7, 30: // DELEGPURGE, RENEW
		v.skip(8)
	case 8: // DELEGRETURN
		v.skip(stateid)
	case 9: // GETATTR
		v.bitmap()
	case 10, 16, 23, 24, 27, 31, 32: // GETFH, LOOKUPP, PUTPUBFH, PUTROOTFH, READLINK, RESTOREFH, SAVEFH
	case 11, 28: // LINK, REMOVE
		v.opaque()
		return true
	case 12: // LOCK
		kind := v.u32()
		v.skip(4 + 16)
		if v.oneOf(0, 1) == 1 {
			v.skip(4 + stateid + 4 + 8)
			v.opaque()
		} else {
			v.skip(stateid + 4)
		}
		return kind != 1 && kind != 3 // READ_LT, READW_LT
	case 13: // LOCKT
		v.skip(4 + 16 + 8)
		v.opaque()
	case 14: // LOCKU
		v.skip(8 + stateid + 16)
	case 15, 22, 33, 72: // LOOKUP, PUTFH, SECINFO, GETXATTR
		v.opaque()
	case 17, 37: // NVERIFY, VERIFY
		v.attrs()
	case 18: // OPEN
		return v.open()
	case 19: // OPENATTR
		return v.u32() != 0
	case 20: // OPEN_CONFIRM
		v.skip(stateid + 4)
	case 21: // OPEN_DOWNGRADE
		v.skip(stateid + 12)
	case 25, 68: // READ, READ_PLUS
		v.skip(stateid + 12)
	case 26: // READDIR
		v.skip(24)
		v.bitmap()
	case 29: // RENAME
		v.opaque()
		v.opaque()
		return true
	case 34: // SETATTR
		v.skip(stateid)
		v.attrs()
		return true
	case 35: // SETCLIENTID
		v.skip(8)
		v.opaque()
		v.skip(4)
		v.opaque()
		v.opaque()
		v.skip(4)
	case 36: // SETCLIENTID_CONFIRM
		v.skip(16)
	case 38: // WRITE
		v.skip(stateid + 12)
		v.opaque()
		return true
	case 39: // RELEASE_LOCKOWNER
		v.skip(8)
		v.opaque()
	case 40: // BACKCHANNEL_CTL
		v.skip(4)
		v.callbackSecurity()
	case 41: // BIND_CONN_TO_SESSION
		v.skip(24)
	case 42: // EXCHANGE_ID
		v.skip(8)
		v.opaque()
		v.skip(4)
		switch v.oneOf(0, 1, 2) {
		case 1:
			v.bitmap()
			v.bitmap()
		case 2:
			v.bitmap()
			v.bitmap()
			v.times(v.opaque)
			v.times(v.opaque)
			v.skip(8)
		}
		v.times(func() { v.opaque(); v.opaque(); v.skip(12) })
	case 43: // CREATE_SESSION
		v.skip(16)
		for range 2 {
			v.skip(24)
			v.times(func() { v.skip(4) })
		}
		v.skip(4)
		v.callbackSecurity()
	case 44: // DESTROY_SESSION
		v.skip(16)
	case 45, 66, 67: // FREE_STATEID, OFFLOAD_CANCEL, OFFLOAD_STATUS
		v.skip(stateid)
		return number == 66
	case 46: // GET_DIR_DELEGATION
		v.skip(4)
		v.bitmap()
		v.skip(24)
		v.bitmap()
		v.bitmap()
	case 47: // GETDEVICEINFO
		v.skip(24)
		v.bitmap()
	case 48: // GETDEVICELIST
		v.skip(24)
	case 49: // LAYOUTCOMMIT
		v.skip(20 + stateid)
		v.optional(8)
		v.optional(12)
		v.skip(4)
		v.opaque()
		return true
	case 50: // LAYOUTGET: the client reads and writes elsewhere
		v.skip(12 + 24 + stateid + 4)
		return true
	case 51: // LAYOUTRETURN
		v.skip(12)
		if v.u32() == 1 {
			v.skip(16 + stateid)
			v.opaque()
		}
	case 52: // SECINFO_NO_NAME
		v.skip(4)
	case 53: // SEQUENCE
		v.skip(32)
	case 54: // SET_SSV
		v.opaque()
		v.opaque()
	case 55: // TEST_STATEID
		v.times(func() { v.skip(stateid) })
	case 56: // WANT_DELEGATION
		v.skip(4)
		if v.oneOf(1, 4, 6) == 1 {
			v.skip(4)
		}
		return true
	case 57: // DESTROY_CLIENTID
		v.skip(8)
	case 58: // RECLAIM_COMPLETE
		v.skip(4)
	case 59, 62: // ALLOCATE, DEALLOCATE
		v.skip(stateid + 16)
		return true
	case 60: // COPY
		v.skip(2*stateid + 24 + 8)
		v.times(v.netloc)
		return true
	case 61: // COPY_NOTIFY
		v.skip(stateid)
		v.netloc()
	case 63: // IO_ADVISE
		v.skip(stateid + 16)
		v.bitmap()
	case 64: // LAYOUTERROR
		v.skip(16 + stateid)
		v.times(func() { v.skip(24) })
		return true
	case 65: // LAYOUTSTATS
		v.skip(16 + stateid + 48 + 4)
		v.opaque()
		return true
	case 69: // SEEK
		v.skip(stateid + 12)
	case 70: // WRITE_SAME
		v.skip(stateid + 4 + 32 + 4 + 8)
		v.opaque()
		return true
	case 71: // CLONE
		v.skip(2*stateid + 24)
		return true
	case 73: // SETXATTR
		v.skip(4)
		v.opaque()
		v.opaque()
		return true
	case 74: // LISTXATTRS
		v.skip(12)
	case 75: // REMOVEXATTR
		v.opaque()
		return true
	default:
		v.bad = true
	}
	return false
}

func (v *serverView) open() (changes bool) {
	v.skip(4)
	access, deny := v.u32(), v.u32()
	v.skip(8)
	v.opaque()
	create := v.u32()
	if create == 1 {
		switch v.oneOf(0, 1, 2, 3) {
		case 0, 1:
			v.attrs()
		case 2:
			v.skip(8)
		case 3:
			v.skip(8)
			v.attrs()
		}
	}
	writes := false
	switch v.oneOf(0, 1, 2, 3, 4, 5, 6) {
	case 0, 3:
		v.opaque()
	case 1:
		d := v.u32()
		writes = d == 2 || d == 5
	case 2:
		v.skip(16)
		v.opaque()
	case 5:
		v.skip(16)
	}
	// A server takes everything but OPEN4_NOCREATE for an error or a CREATE, and an access without READ
	// for an error or a WRITE. A client that may only read needs neither.
	return create != 0 || access&3 != 1 || deny&1 != 0 || writes
}
