package rpcbind

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A refusal is the reason why a question was refused, and decides its Reply.
type refusal uint8

const (
	refusedNot          refusal = iota
	refusedMalformed            // no RPC Call: no Reply, and a TCP connection is closed
	refusedAuth                 // RPCSEC_GSS, AUTH_TLS on more than NULL, or a credential or verifier too long: AUTH_ERROR
	refusedVersion              // of RPC or of rpcbind: RPC_MISMATCH, PROG_MISMATCH
	refusedProgram              // another program: PROG_UNAVAIL
	refusedProcedure            // PROC_UNAVAIL
	refusedArguments            // GARBAGE_ARGS
	refusedRegistration         // SET and UNSET: FALSE
	refusedCall                 // CALLIT and BCAST: no Reply
	refusedIndirect             // INDIRECT: PROC_UNAVAIL
	refusedLong                 // a datagram too long: no Reply; a Reply too long for a datagram: SYSTEM_ERR
	refusedDenied               // a datagram from an address that is not allowed: no Reply
	refusedGroup                // a datagram to a broadcast or multicast address: no Reply
	refusedRate                 // a datagram over a limit of datagrams.go: no Reply
	refusals                    // how many there are
)

var refusalNames = [refusals]string{
	refusedNot: "none", refusedMalformed: "malformed", refusedAuth: "auth", refusedVersion: "version",
	refusedProgram: "program", refusedProcedure: "procedure", refusedArguments: "arguments",
	refusedRegistration: "registration", refusedCall: "call", refusedIndirect: "indirect",
	refusedLong: "long", refusedDenied: "denied", refusedGroup: "group", refusedRate: "rate",
}

// refusedHeaders are the refusals of Calls whose header cannot be walked.
var refusedHeaders = [oncrpc.Refusals]refusal{
	oncrpc.RefusedNot: refusedMalformed, oncrpc.RefusedVersion: refusedVersion,
	oncrpc.RefusedCredential: refusedAuth, oncrpc.RefusedVerifier: refusedAuth, oncrpc.RefusedShort: refusedArguments,
}

// series are the Server's metrics. The first index is 0 for TCP and 1 for UDP.
type series struct {
	calls   [2]map[string]*metrics.Counter // by procedure; constant
	refused [2][refusals]*metrics.Counter
}

func (x *series) resolve(r *metrics.Registry) {
	for i, transport := range []string{"tcp", "udp"} {
		x.calls[i] = make(map[string]*metrics.Counter)
		for _, procs := range versions {
			for _, p := range procs {
				if x.calls[i][p.name] == nil {
					x.calls[i][p.name] = r.Counter(metrics.RPCBindCalls, p.name, transport)
				}
			}
		}
		for n := refusedNot + 1; n < refusals; n++ {
			x.refused[i][n] = r.Counter(metrics.RPCBindRefusedCalls, refusalNames[n], transport)
		}
	}
}

func transportIndex(datagram bool) int {
	if datagram {
		return 1
	}
	return 0
}

func (x *series) called(procedure string, datagram bool) {
	x.calls[transportIndex(datagram)][procedure].Inc()
}

func (x *series) refuse(r refusal, datagram bool) {
	x.refused[transportIndex(datagram)][r].Inc()
}
