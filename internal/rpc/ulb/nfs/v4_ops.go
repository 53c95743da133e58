package nfs

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// Numbers of the operations that the code treats specially.
const (
	opAccess            = 3
	opCreate            = 6
	opGetattr           = 9
	opGetFH             = 10
	opLink              = 11
	opLookup            = 15
	opLookupp           = 16
	opNverify           = 17
	opOpen              = 18
	opOpenattr          = 19
	opPutFH             = 22
	opPutPubFH          = 23
	opPutRootFH         = 24
	opRead              = 25
	opReadlink          = 27
	opRename            = 29
	opRestoreFH         = 31
	opSaveFH            = 32
	opSecinfo           = 33
	opSetattr           = 34
	opVerify            = 37
	opWrite             = 38
	opBindConnToSession = 41
	opExchangeID        = 42
	opCreateSession     = 43
	opDestroySession    = 44
	opLayoutget         = 50
	opSecinfoNoName     = 52
	opSequence          = 53
	opCopy              = 60
	opClone             = 71
	opIllegal           = 10044
)

// lastOp is the highest operation of each minor version: RFC 7530 Section 16,
// RFC 8881 Section 18, RFC 7862 Section 15 with RFC 8276. A server of that
// minor version answers ILLEGAL to every operation above it.
var lastOp = [...]uint32{39, 58, 75}

// seq is the class of the v4.0 operations that carry a seqid of a state owner. By the
// seqid the server recognises a retransmission and repeats its answer. RFC 7530
// Section 9.1.7.
const seq = ulb.Sequenced

// Weights of operations. A COMPOUND has the name of its first operation of the greatest
// weight.
const (
	plumbing = iota // sets or saves filehandles
	looking         // reads attributes, mostly for another operation
	lookup
	acting // changes something, or is the purpose of a COMPOUND
	moving // moves data
)

// Parts of layouts that several operations share. RFC 5662 and RFC 7863 have
// the XDR.
const (
	nfsace4  = "4 4 4 O"
	chan4    = " 24 [4] "                     // channel_attrs4
	secparms = "[{0:|1:4 O 4 4 [4]|6:4 O O}]" // callback_sec_parms4<>
	protect4 = "{0:|1:B B|2:B B "             // state_protect, up to the rest of SP4_SSV
	denied4  = "8 8 4 8 O"                    // LOCK4denied
	secinfo4 = "[{6:O 4 4|*:}]"
	written4 = "[16] 8 4 8" // write_response4

	// open_delegation4, with the types 4 and 5 that RFC 9754 adds to 1 and 2.
	deleg4 = "{0:|1,4:16 4 " + nfsace4 + "|2,5:16 4 {1:8|2:8} " + nfsace4 + "|3:{1,2:4|*:}}"
)

// An op4Row is an operation before its layouts are compiled.
//
// The longest result, operation number and status included, has most octets, and beside
// them the given number of bitmaps and identities, of the lengths in Limits, and the
// octets that size returns. The results of an error are never longer.
type op4Row struct {
	number     uint32
	name       string
	class      ulb.Class
	weight     uint8
	args       string
	results    string // of success, after the status
	failed     uint32 // the status whose results have the layout failure
	failure    string
	most       uint32
	bitmaps    uint8
	identities uint8
	size       bound4

	// asks are the numbers in arguments that must not exceed what the path carries.
	asks []number

	// keeps is set for an operation that changes no file although its class is not ReadOnly. keepsIf
	// reports whether an operation with the arguments at pos changes none.
	keeps   bool
	keepsIf func(m []byte, pos int) bool
}

// anyStatus in op4Row.failed stands for every status but success.
const anyStatus = 0xffffffff

// The operations of NFSv4.0, 4.1 and 4.2. The letter D marks DDP-eligible items: RFC
// 8267 Section 6.1. READ_PLUS, extended attributes and layouts have none.
var op4Rows = []op4Row{
	{number: 3, name: "ACCESS", class: ro, weight: lookup, args: "4", results: "8", most: 16},
	{number: 4, name: "CLOSE", class: seq, keeps: true, weight: acting, args: "4 16", results: "16", most: 24},
	{number: 5, name: "COMMIT", class: idm, weight: acting, args: "8 4", results: "8", most: 16},
	{number: 6, name: "CREATE", class: non, weight: acting, args: "{5:D|3,4:8|*:} O F", results: "20 B", most: 28, bitmaps: 1},
	{number: 7, name: "DELEGPURGE", class: idm, keeps: true, weight: acting, args: "8", most: 8},
	{number: 8, name: "DELEGRETURN", class: non, keeps: true, weight: acting, args: "16", most: 8},
	{number: 9, name: "GETATTR", class: ro, weight: looking, args: "B", results: "F", most: 8, size: getattr4},
	{number: 10, name: "GETFH", class: ro, weight: plumbing, results: "O", most: 8 + fh4},
	{number: 11, name: "LINK", class: non, weight: acting, args: "O", results: "20", most: 28},
	{
		number: 12, name: "LOCK", class: seq, keepsIf: lockToRead, weight: acting, args: "4 4 8 8 {1:4 16 4 8 O|0:16 4}", results: "16",
		failed: 10010, failure: denied4, most: 8 + 28 + 4 + 1024,
	},
	{number: 13, name: "LOCKT", class: ro, weight: acting, args: "4 8 8 8 O", failed: 10010, failure: denied4, most: 8 + 28 + 4 + 1024},
	{number: 14, name: "LOCKU", class: seq, keeps: true, weight: acting, args: "4 4 16 8 8", results: "16", most: 24},
	{number: 15, name: "LOOKUP", class: ro, weight: lookup, args: "O", most: 8},
	{number: 16, name: "LOOKUPP", class: ro, weight: lookup, most: 8},
	{number: 17, name: "NVERIFY", class: ro, weight: looking, args: "F", most: 8},
	{
		number: 18, name: "OPEN", class: seq, keepsIf: openToRead, weight: acting,
		args:    "4 4 4 8 O {1:{0,1:F|2:8|3:8 F}|*:} {0,3:O|1:4|2:16 O|4,6:|5:16}",
		results: "16 20 4 B " + deleg4, most: 48 + deleg4Most, bitmaps: 1, identities: 1,
	},
	{number: 19, name: "OPENATTR", class: idm, keepsIf: createsNothing, weight: acting, args: "4", most: 8},
	{number: 20, name: "OPEN_CONFIRM", class: seq, keeps: true, weight: acting, args: "16 4", results: "16", most: 24},
	{number: 21, name: "OPEN_DOWNGRADE", class: seq, keeps: true, weight: acting, args: "16 4 4 4", results: "16", most: 24},
	{number: 22, name: "PUTFH", class: ro, weight: plumbing, args: "O", most: 8},
	{number: 23, name: "PUTPUBFH", class: ro, weight: plumbing, most: 8},
	{number: 24, name: "PUTROOTFH", class: ro, weight: plumbing, most: 8},
	{number: 25, name: "READ", class: ro, weight: moving, args: "16 8 4", results: "4 D", most: 16, size: read4, asks: []number{{at: 24}}},
	{number: 26, name: "READDIR", class: ro, weight: acting, args: "8 8 4 4 B", results: "8 *(8 O F) 4", most: 24, size: readdir4, asks: []number{{at: 16}, {at: 20}}},
	{number: 27, name: "READLINK", class: ro, weight: acting, results: "D", most: 12, size: readlink4},
	{number: 28, name: "REMOVE", class: non, weight: acting, args: "O", results: "20", most: 28},
	{number: 29, name: "RENAME", class: non, weight: acting, args: "O O", results: "40", most: 48},
	{number: 30, name: "RENEW", class: idm, keeps: true, weight: acting, args: "8", most: 8},
	{number: 31, name: "RESTOREFH", class: ro, weight: plumbing, most: 8},
	{number: 32, name: "SAVEFH", class: ro, weight: plumbing, most: 8},
	{number: 33, name: "SECINFO", class: ro, weight: acting, args: "O", results: secinfo4, most: 12, size: secinfo4Most},
	// The bitmap follows any status.
	{
		number: 34, name: "SETATTR", class: non, weight: acting, args: "16 F", results: "B",
		failed: anyStatus, failure: "B", most: 8, bitmaps: 1,
	},
	{
		number: 35, name: "SETCLIENTID", class: idm, keeps: true, weight: acting, args: "8 O 4 O O 4", results: "16",
		failed: 10017, failure: "O O", most: 264, // NFS4ERR_CLID_INUSE: a netid and an address
	},
	{number: 36, name: "SETCLIENTID_CONFIRM", class: idm, keeps: true, weight: acting, args: "8 8", most: 8},
	{number: 37, name: "VERIFY", class: ro, weight: looking, args: "F", most: 8},
	{number: 38, name: "WRITE", class: idm, weight: moving, args: "16 8 4 D", results: "16", most: 24},
	{number: 39, name: "RELEASE_LOCKOWNER", class: idm, keeps: true, weight: acting, args: "8 O", most: 8},

	// Minor version 1.
	{number: 40, name: "BACKCHANNEL_CTL", class: idm, keeps: true, weight: acting, args: "4 " + secparms, most: 8},
	{number: 41, name: "BIND_CONN_TO_SESSION", class: idm, keeps: true, weight: acting, args: "16 4 4", results: "24", most: 32},
	{
		number: 42, name: "EXCHANGE_ID", class: idm, keeps: true, weight: acting,
		args: "8 O 4 " + protect4 + "[O] [O] 4 4} [O O 12]", results: "16 " + protect4 + "16 [O]} 8 O O [O O 12]",
		// clientid, sequence, flags; protection; server owner; scope; one name.
		most: 8 + 16 + 4 + 8 + (4 + 1024) + (4 + 1024) + 4 + 2*(4+1024) + 12, bitmaps: 2, size: exchangeID,
	},
	{
		number: 43, name: "CREATE_SESSION", class: seq, keeps: true, weight: acting,
		args: "8 4 4" + chan4 + chan4 + "4 " + secparms, results: "16 4 4" + chan4 + chan4, most: 8 + 24 + 2*32,
		// csa_fore_chan_attrs: ca_headerpadsize, ca_maxrequestsize, ca_maxresponsesize, ca_maxresponsesize_cached, ...
		asks: []number{{at: 20, of: wholeCall}, {at: 24, of: wholeReply}, {at: 28, of: wholeReply}},
	},
	{number: 44, name: "DESTROY_SESSION", class: idm, keeps: true, weight: acting, args: "16", most: 8},
	{number: 45, name: "FREE_STATEID", class: non, keeps: true, weight: acting, args: "16", most: 8},
	{number: 46, name: "GET_DIR_DELEGATION", class: non, keeps: true, weight: acting, args: "4 B 12 12 B B", results: "{0:8 16 B B B|1:4}", most: 36, bitmaps: 3},
	{number: 47, name: "GETDEVICEINFO", class: ro, weight: acting, args: "16 4 4 B", results: "4 O B", failed: 10005, failure: "4", most: 8, size: getdeviceinfo},
	{number: 48, name: "GETDEVICELIST", class: ro, weight: acting, args: "4 4 8 8", results: "8 8 [16] 4", most: 32, size: getdevicelist},
	{number: 49, name: "LAYOUTCOMMIT", class: idm, weight: acting, args: "8 8 4 16 ?(8) ?(12) 4 O", results: "?(8)", most: 20},
	{number: 50, name: "LAYOUTGET", class: non, weight: acting, args: "4 4 4 8 8 8 16 4", results: "4 16 [8 8 4 4 O]", failed: 10058, failure: "4", most: 32, size: layoutget},
	{number: 51, name: "LAYOUTRETURN", class: non, keeps: true, weight: acting, args: "4 4 4 {1:8 8 16 O|*:}", results: "?(16)", most: 28},
	{number: 52, name: "SECINFO_NO_NAME", class: ro, weight: acting, args: "4", results: secinfo4, most: 12, size: secinfo4Most},
	{number: 53, name: "SEQUENCE", class: seq, keeps: true, weight: plumbing, args: "32", results: "36", most: 44},
	{number: 54, name: "SET_SSV", class: non, keeps: true, weight: acting, args: "O O", results: "O", most: 12, size: setSSV},
	{number: 55, name: "TEST_STATEID", class: ro, weight: acting, args: "[16]", results: "[4]", most: 12, size: testStateID},
	{number: 56, name: "WANT_DELEGATION", class: non, weight: acting, args: "4 {1:4|4,6:}", results: deleg4, most: 8 + deleg4Most, identities: 1},
	{number: 57, name: "DESTROY_CLIENTID", class: idm, keeps: true, weight: acting, args: "8", most: 8},
	{number: 58, name: "RECLAIM_COMPLETE", class: idm, keeps: true, weight: acting, args: "4", most: 8},

	// Minor version 2.
	{number: 59, name: "ALLOCATE", class: idm, weight: acting, args: "16 8 8", most: 8},
	{number: 60, name: "COPY", class: non, weight: acting, args: "16 16 8 8 8 4 4 [L]", results: written4 + " 8", failed: 10094, failure: "8", most: 56},
	{number: 61, name: "COPY_NOTIFY", class: non, keeps: true, weight: acting, args: "16 L", results: "12 16 [L]", most: 8 + 32 + 4*1048},
	{number: 62, name: "DEALLOCATE", class: idm, weight: acting, args: "16 8 8", most: 8},
	{number: 63, name: "IO_ADVISE", class: ro, weight: acting, args: "16 8 8 B", results: "B", most: 8, bitmaps: 1},
	{number: 64, name: "LAYOUTERROR", class: idm, weight: acting, args: "8 8 16 [16 4 4]", most: 8},
	{number: 65, name: "LAYOUTSTATS", class: idm, weight: acting, args: "8 8 16 16 16 16 4 O", most: 8},
	{number: 66, name: "OFFLOAD_CANCEL", class: idm, weight: acting, args: "16", most: 8},
	{number: 67, name: "OFFLOAD_STATUS", class: ro, weight: acting, args: "16", results: "8 [4]", most: 24},
	{number: 68, name: "READ_PLUS", class: ro, weight: moving, args: "16 8 4", results: "4 [{0:8 O|1:16|*:}]", most: 16, size: readPlus, asks: []number{{at: 24}}},
	{number: 69, name: "SEEK", class: ro, weight: acting, args: "16 8 4", results: "12", most: 20},
	{number: 70, name: "WRITE_SAME", class: idm, weight: acting, args: "16 4 8 8 8 8 4 8 O", results: written4, most: 48},
	{number: 71, name: "CLONE", class: idm, weight: acting, args: "16 16 8 8 8", most: 8},
	{number: 72, name: "GETXATTR", class: ro, weight: acting, args: "O", results: "O", most: 12, size: getxattr},
	{number: 73, name: "SETXATTR", class: non, weight: acting, args: "4 O O", results: "20", most: 28},
	{number: 74, name: "LISTXATTRS", class: ro, weight: acting, args: "8 4", results: "8 [O] 4", most: 24, size: listxattrs, asks: []number{{at: 8}}},
	{number: 75, name: "REMOVEXATTR", class: non, weight: acting, args: "O", results: "20", most: 28},
}

const (
	fh4 = 4 + 128 // nfs_fh4

	// open_delegation4: type, stateid, recall, space limit, and an ACE without its
	// field who.
	deleg4Most = 4 + 16 + 4 + 12 + 12 + 4
)

// An op4 is an op4Row with its layouts compiled.
type op4 struct {
	name       string // of a COMPOUND that is named after it: "COMPOUND/READ"
	class      ulb.Class
	weight     uint8
	bitmaps    uint8
	identities uint8
	most       uint32
	sessionOp  ulb.SessionOps
	size       bound4
	asks       []number
	args       ulb.Layout
	results    ulb.Layout
	failed     uint32
	failure    ulb.Layout
	keeps      bool
	keepsIf    func(m []byte, pos int) bool
}

// sessionOps are the operations that are members of [ulb.SessionOps].
var sessionOps = map[uint32]ulb.SessionOps{
	opBindConnToSession: ulb.BindConnToSession,
	opExchangeID:        ulb.ExchangeID,
	opCreateSession:     ulb.CreateSession,
	opDestroySession:    ulb.DestroySession,
}

// ops4 is op4Rows by operation number.
var ops4 = compile4(op4Rows)

func compile4(rows []op4Row) (ops [76]op4) {
	for _, r := range rows {
		o := &ops[r.number]
		if o.name != "" {
			panic("BUG: nfs: two rows for " + r.name)
		}
		*o = op4{
			name: "COMPOUND/" + r.name, class: r.class, weight: r.weight, bitmaps: r.bitmaps,
			identities: r.identities, most: r.most, size: r.size, asks: r.asks, failed: r.failed,
			sessionOp: sessionOps[r.number], args: ulb.Compile(r.args), results: ulb.Compile(r.results), failure: ulb.Compile(r.failure),
			keeps: r.keeps || r.class == ro, keepsIf: r.keepsIf,
		}
	}
	return ops
}

// illegal4 is ILLEGAL, the operation that no server executes: "OP_ILLEGAL: void", RFC 7530 Section 16.33.
var illegal4 = &op4{name: "COMPOUND", keeps: true, most: 8}

// op returns an operation of a minor version, or nil when that has no operation of this
// number.
func op(minor, number uint32) *op4 {
	if number == opIllegal {
		return illegal4
	}
	if minor >= uint32(len(lastOp)) || number > lastOp[minor] || ops4[number].name == "" {
		return nil
	}
	return &ops4[number]
}
