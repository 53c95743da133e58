package nfs4test

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// Numbers of operations. RFC 8881 Sections 18 and 20.
const (
	opGetattr         = 9
	opPutrootfh       = 24
	opRead            = 25
	opBindConn        = 41
	opExchangeID      = 42
	opCreateSession   = 43
	opDestroySession  = 44
	opSequence        = 53
	opDestroyClientID = 57
	opReclaimComplete = 58

	cbRecall   = 4
	cbSequence = 11
)

// A Status is an nfsstat4.
type Status uint32

// The statuses that this package uses. RFC 8881 Section 15.1.
const (
	OK                  Status = 0
	errTooSmall         Status = 10005
	errDelay            Status = 10008
	errClientInUse      Status = 10017
	errMinorVersion     Status = 10021
	errStaleClientID    Status = 10022
	errBadXDR           Status = 10036
	errIllegal          Status = 10044
	errBadSession       Status = 10052
	errBadSlot          Status = 10053
	errCompleteAlready  Status = 10054
	errConnNotBound     Status = 10055
	errSeqMisordered    Status = 10063
	errSequencePosition Status = 10064
	errRetryUncached    Status = 10068
	errOpNotInSession   Status = 10071
	errClientIDBusy     Status = 10074
	errNotOnlyOp        Status = 10081
)

// Flags of the results of SEQUENCE. RFC 8881 Section 18.46.
const (
	flagCallbackPathDown        = 0x1
	flagCallbackPathDownSession = 0x200
	flagBackChannelFault        = 0x400
)

// Flags of CREATE_SESSION, and values of channel_dir_from_client4. RFC 8881 Sections 18.34 and
// 18.36.
const (
	createPersist  = 1
	createBackChan = 2

	bindFore       = 1
	bindBack       = 2
	bindForeOrBoth = 3
	bindBackOrBoth = 7
)

// exchangeConfirmed is EXCHGID4_FLAG_CONFIRMED_R, exchangeNonPNFS EXCHGID4_FLAG_USE_NON_PNFS.
const (
	exchangeNonPNFS   = 0x10000
	exchangeConfirmed = 0x80000000
)

// callbackProgram is RFC 8881's NFS4_CALLBACK, which Linux clients ask for.
const callbackProgram = 0x40000000

// A SessionID is a sessionid4.
type SessionID [16]byte

func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

// callHeader is the header of a Call with AUTH_SYS.
func callHeader(xid, program, version, procedure uint32) []byte {
	b := testkit.AppendWords(make([]byte, 0, 256), xid, oncrpc.TypeCall, oncrpc.RPCVersion, program, version, procedure)
	cred := testkit.AppendOpaque(testkit.Words(0), []byte("nfs4test"))
	cred = testkit.AppendWords(cred, 0, 0, 0)
	b = testkit.AppendOpaque(testkit.AppendWords(b, oncrpc.FlavorSys), cred)
	return testkit.AppendWords(b, 0, 0)
}

// compoundCall is the head of a COMPOUND of count operations.
func compoundCall(xid, minor, count uint32) []byte {
	return testkit.AppendWords(callHeader(xid, oncrpc.ProgramNFS, 4, 1), 0, minor, count)
}

// attributesOf is the fileid that a Server returns to the GETATTR in the COMPOUND with that slot
// and sequence number.
func attributesOf(slot, sequence uint32) uint64 { return uint64(sequence)<<32 | uint64(slot) }

// tokenState is the stateid that a CB_RECALL with the token is for.
func tokenState(token uint64) []byte {
	b := binary.BigEndian.AppendUint64(testkit.Words(1), token)
	return testkit.AppendWords(b, 0)
}
