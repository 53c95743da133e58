package metrics

// Operations, as they came through one listener to one upstream. An operation has series when it has
// been used. Programs that the bridge does not know share a few.
var (
	OperationCalls = counter(Definition{
		Name: "operation_calls_total", Labels: operationAnd(replyStatus),
		Help: "Calls that were answered, by the class of status of their Replies.",
		Like: "nfsiostat: ops/s is its rate; mountstats: ops and errors of each operation",
	})
	OperationReceivedBytes = counter(Definition{
		Name: "operation_received_bytes_total", Labels: ofOperation,
		Help: "Bytes of the Calls that were answered.",
		Like: "mountstats: avg bytes sent per op, times ops; nfsiostat: kB/s of write",
	})
	OperationSentBytes = counter(Definition{
		Name: "operation_sent_bytes_total", Labels: ofOperation,
		Help: "Bytes of the Replies that clients have.",
		Like: "mountstats: avg bytes received per op, times ops; nfsiostat: kB/s of read",
	})
	OperationPhaseSeconds = nanoseconds(Definition{
		Name: "operation_phase_seconds_total", Labels: operationAnd(phaseLabel),
		Help: "Time of answered Calls, by phase. The time of a Call is the sum of its phases.",
		Like: "mountstats: queue, RTT and execute times, cumulative; HAProxy: qtime, ctime, rtime, ttime",
	})
	OperationSeconds = duration(Definition{
		Name: "operation_seconds", Labels: ofOperation,
		Help: "Time from reading a Call until the client's connection had taken its Reply.",
		Like: "nfsiostat: avg exe, without the client's own part; Envoy: downstream_rq_time",
	})
	OperationCompoundOperations = counter(Definition{
		Name: "operation_compound_operations_total", Labels: ofOperation,
		Help: "Operations in the NFSv4 COMPOUNDs that were answered. The label operation is the one that the client wants most.",
	})
	UpstreamPhaseSeconds = duration(Definition{
		Name: "upstream_phase_seconds", Labels: upstreamAnd(phaseLabel),
		Help: "Time of the Calls that the upstream answered, by phase. The time of a Call is the sum of its phases.",
		Like: "nfsiostat: avg queue and avg RTT; HAProxy: qtime, rtime; Envoy: upstream_rq_time",
	})
)

var ofOperation = operationAnd()

// operationAnd returns the labels of a metric of operations that has more.
func operationAnd(more ...Label) []Label {
	return append([]Label{
		listenerLabel,
		{Name: "upstream", Help: "the upstream's name in the configuration; empty for Calls that the bridge answers itself"},
		{Name: "program", Help: "RPC program: nfs, nfsacl, nlm, nsm, mount, rpcbind, rquota, a number, or other"},
		{Name: "version", Help: "version of the program"},
		{Name: "operation", Help: "such as READ; of an NFSv4 COMPOUND, the operation that the client wants most; other for what the bridge does not know"},
	}, more...)
}

// phaseLabel is status.Phases as a label.
var phaseLabel = Label{Name: "phase", Help: "part of the time of a Call", Values: []Value{
	{"admission", "from reading the Call until it asked for a credit: rate limits, slow start, memory, and Calls that must go first"},
	{"credit", "until a connection had a credit for it"},
	{"server", "from sending it until its Reply had come: the network and the storage"},
	{"client", "until the client's connection had taken the Reply"},
}}

var replyStatus = Label{Name: "status", Help: "class of the status in the Reply", Values: []Value{
	{"ok", "success"},
	{"encrypted", "RPC has succeeded, and krb5p hides the rest"},
	{"noent", "there is no such file"},
	{"exist", "there is such a file, or the directory is not empty"},
	{"locked", "somebody else has a lock or has denied a share"},
	{"access", "permission denied, read-only, or another security flavor is wanted"},
	{"stale", "the server does not know the filehandle any more (ESTALE)"},
	{"delay", "try again later (NFS4ERR_DELAY, NFS3ERR_JUKEBOX)"},
	{"nospc", "no space, or no quota"},
	{"io", "the server cannot reach its storage"},
	{"inval", "the arguments make no sense for this file"},
	{"notsupp", "the server does not know the operation or the attribute"},
	{"grace", "the server has restarted, and locks can only be reclaimed, or no longer"},
	{"state", "the server does not know, or has ended, the client's open, lock or lease"},
	{"session", "a session or its slot is not as the client believes"},
	{"fault", "the server has an error of its own or lacks resources"},
	{"other", "another status"},
	{"prog_unavail", "RPC: no such program"},
	{"prog_mismatch", "RPC: no such version of the program"},
	{"proc_unavail", "RPC: no such procedure"},
	{"garbage_args", "RPC: the server cannot decode the arguments"},
	{"system_err", "RPC: an error of the server"},
	{"auth_error", "RPC: the credential is not accepted"},
	{"rpc_mismatch", "RPC: no such version of RPC"},
	{"malformed", "the Reply is none"},
}}
