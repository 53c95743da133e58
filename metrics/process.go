package metrics

// ofTLSSide says which connections a series about TLS handshakes counts.
var ofTLSSide = []Label{{Name: "side", Help: "whose connections", Values: []Value{
	{"listeners", "clients'"},
	{"upstreams", "the bridge's own, to servers"},
}}}

// The process, its configuration and its other servers.
var (
	BuildInfo = gauge(Definition{
		Name: "build_info", Labels: []Label{
			{Name: "version", Help: "version of the binary"},
			{Name: "revision", Help: "commit that it was built from"},
			{Name: "goversion", Help: "Go release that built it"},
		},
		Help: "Always 1; the labels name the version, revision and Go release of the binary.",
	})
	State = gauge(Definition{
		Name: "state", Labels: []Label{{Name: "state", Help: "state of the bridge", Values: []Value{
			{"ready", "it serves clients"},
			{"not_ready", "it cannot serve some clients: /readyz says why"},
			{"draining", "it is about to end"},
		}}},
		Help: "1 for the state that the bridge is in, 0 for the others.",
		Like: "Envoy: server.state",
	})
	ConfigReloads = counter(Definition{
		Name: "config_reloads_total", Labels: []Label{{Name: "result", Help: "what became of the reload", Values: []Value{
			{"applied", "the new settings are in force"},
			{"unchanged", "the file has the settings that are in force"},
			{"refused", "the file has an error, and the settings in force stay"},
		}}},
		Help: "Reloads of the configuration file by result.",
		Like: "HAProxy: FailedReloads of the master; Envoy: listener_manager.lds.update_success and update_rejected",
	})
	ConfigLastReloadSuccess = gauge(Definition{
		Name: "config_last_reload_success_timestamp_seconds",
		Help: "Unix time of the last successful load of the configuration.",
	})
	ConfigRefused = gauge(Definition{
		Name: "config_refused",
		Help: "1 if the configuration file as it is now was refused, so that the one before it is in force, else 0.",
	})
	ConfigRestartNeeded = gauge(Definition{
		Name: "config_restart_needed",
		Help: "1 if the file has settings that take effect only after a restart, else 0.",
	})
	TLSRunningHandshakes = gauge(Definition{
		Name: "tls_running_handshakes", Labels: ofTLSSide,
		Help: "TLS handshakes that are being done. At tls.handshakes, others wait.",
		Like: "HAProxy: SslRate against maxsslrate",
	})
	TLSWaitingHandshakes = gauge(Definition{
		Name: "tls_waiting_handshakes", Labels: ofTLSSide,
		Help: "TLS handshakes that wait for one of tls.handshakes. At tls.waiting, connections are closed with reason busy.",
	})
	TLSHandshakeWaits = counter(Definition{
		Name: "tls_handshake_waits_total", Labels: ofTLSSide,
		Help: "TLS handshakes that had to wait, because tls.handshakes were being done.",
	})
	AdminClosedConnections = counter(Definition{
		Name: "admin_closed_connections_total",
		Help: "Connections of the admin server that were closed because there were too many.",
	})
	RPCBindCalls = counter(Definition{
		Name: "rpcbind_calls_total", Labels: []Label{
			{Name: "procedure", Help: "procedure of rpcbind or portmap, such as getaddr, getport or dump"},
			transportLabel,
		},
		Help: "Calls to rpcbind, by procedure.",
	})
	RPCBindRefusedCalls = counter(Definition{
		Name: "rpcbind_refused_calls_total", Labels: []Label{
			{Name: "reason", Help: "why", Values: []Value{
				{"malformed", "it is no RPC Call"},
				{"auth", "it is under RPCSEC_GSS, or under AUTH_TLS and not NULL, or its credential or verifier is too long"},
				{"version", "the version of RPC or of rpcbind is not supported"},
				{"program", "it is for another program"},
				{"procedure", "there is no such procedure"},
				{"arguments", "its arguments or its header cannot be decoded"},
				{"registration", "it is SET or UNSET, which are not allowed"},
				{"call", "it is CALLIT or BCAST, which are not allowed"},
				{"indirect", "it is INDIRECT, which is not supported"},
				{"long", "a datagram, or its Reply, is too long"},
				{"denied", "a datagram of an address that is not allowed"},
				{"group", "a datagram to a broadcast or multicast address"},
				{"rate", "too many datagrams"},
			}},
			transportLabel,
		},
		Help: "Calls to rpcbind that were refused or not answered, by reason.",
	})
)

// The lock manager.
var (
	NLMCalls = counter(Definition{
		Name: "nlm_calls_total", Labels: []Label{
			{Name: "procedure", Help: "what the client asked for", Values: []Value{
				{"test", ""}, {"lock", ""}, {"cancel", ""}, {"unlock", ""}, {"nm_lock", ""}, {"share", ""}, {"unshare", ""},
			}},
			{Name: "result", Help: "what it was answered", Values: []Value{
				{"granted", ""},
				{"denied", "another owner has a lock"},
				{"no_locks", "the server, or the bridge's table, has no room"},
				{"blocked", "the client waits for GRANTED"},
				{"grace_period", "ask again: the server has just restarted, or did not answer in time"},
				{"deadlock", ""},
				{"read_only", ""},
				{"stale_handle", ""},
				{"too_large", ""},
				{"failed", ""},
				{"other", "a number that NLM does not have"},
				{"refused", "the server refused the Call itself"},
			}},
		},
		Help: "Calls of clients about locks of NFSv3, by procedure and result.",
	})
	NLMGrants = counter(Definition{
		Name: "nlm_grants_total", Labels: []Label{{Name: "result", Help: "what became of it", Values: []Value{
			{"taken", "the client took the lock"},
			{"refused", "the client did not want it any more"},
			{"unknown", "no client has this owner"},
			{"repeated", "the client had taken it before"},
			{"unanswered", "the client did not answer: the server tries again"},
		}}},
		Help: "Locks that the server granted to clients that waited, by result.",
	})
	NLMNotices = counter(Definition{
		Name: "nlm_notices_total", Labels: []Label{{Name: "notice", Help: "of whom, and what became of it", Values: []Value{
			{"server", "the server has restarted"},
			{"client", "a client has restarted, and its locks are freed"},
			{"repeated", "it was known"},
			{"stranger", "of a host that has no locks"},
			{"told", "a client was told of the server's restart"},
			{"untold", "a client was not told in five minutes"},
		}}},
		Help: "Notices of status monitors that a host has restarted.",
	})
	NLMRefusedMessages = counter(Definition{
		Name: "nlm_refused_messages_total", Labels: []Label{{Name: "reason", Help: "why", Values: []Value{
			{"malformed", "its header cannot be read"},
			{"auth", "it is under RPCSEC_GSS, or under AUTH_TLS and not NULL"},
			{"program", "it is for another program"},
			{"version", "the version is not supported"},
			{"procedure", "there is no such procedure, or it is not for other hosts"},
			{"arguments", "its arguments cannot be decoded"},
			{"long", "it is too long"},
			{"denied", "of an address that is not allowed"},
			{"connections", "too many connections"},
			{"group", "a datagram to a broadcast or multicast address"},
			{"rate", "too many datagrams"},
			{"busy", "too many Calls under way"},
			{"table", "too many locks"},
			{"stranger", "GRANTED of a host that is not the server, or an answer that nobody waits for"},
		}}},
		Help: "Connections and messages to the lock manager that were refused or not answered, by reason.",
	})
	NLMHeldLocks = gauge(Definition{
		Name: "nlm_held_locks",
		Help: "Ranges of files that clients have locked, as far as the bridge knows.",
	})
	NLMWaitingLocks = gauge(Definition{
		Name: "nlm_waiting_locks",
		Help: "Ranges of files that clients wait for.",
	})
	NLMClients = gauge(Definition{
		Name: "nlm_clients",
		Help: "Addresses of clients that have locks or wait for some.",
	})
)

var transportLabel = Label{Name: "transport", Help: "how it came", Values: []Value{{"tcp", ""}, {"udp", ""}}}

// ofExport labels the metrics of exports. The configuration bounds its values.
var ofExport = []Label{listenerLabel, {Name: "export", Help: "the export's path in names.metrics"}}

// The access log, the audit log, names and the traces.
var (
	AccessLogLines = counter(Definition{
		Name: "access_log_lines_total",
		Help: "Lines of the access log that were written.",
	})
	AccessLogDroppedLines = counter(Definition{
		Name: "access_log_dropped_lines_total",
		Help: "Lines of the access log that were lost, because it did not keep up or could not be written.",
	})
	AuditLines = counter(Definition{
		Name: "audit_lines_total",
		Help: "Lines of the audit log that were written.",
	})
	AuditDroppedLines = counter(Definition{
		Name: "audit_dropped_lines_total",
		Help: "Lines that are missing in the audit log, because it did not keep up or could not be written. It says so itself.",
	})
	AuditRefusedCalls = counter(Definition{
		Name: "audit_refused_calls_total",
		Help: "Calls that clients were told to send again later, because the audit log cannot be written and log.audit.on_failure is deny.",
	})
	NamesMissedCalls = counter(Definition{
		Name: "names_missed_calls_total",
		Help: "Calls that names.mode did not look at, because they came faster than it does.",
	})
	ListenerExportCalls = counter(Definition{
		Name: "listener_export_calls_total", Labels: ofExport,
		Help: "Calls about files of an export in names.metrics, as far as names.mode has learned that they are there; scaled by its sample.",
	})
	ListenerExportReadBytes = counter(Definition{
		Name: "listener_export_read_bytes_total", Labels: ofExport,
		Help: "Data of READ from an export in names.metrics, scaled by the sample.",
	})
	ListenerExportWrittenBytes = counter(Definition{
		Name: "listener_export_written_bytes_total", Labels: ofExport,
		Help: "Data of WRITE to an export in names.metrics, scaled by the sample.",
	})
	TraceCalls = counter(Definition{
		Name: "trace_calls_total",
		Help: "Calls whose spans the collector has taken.",
	})
	TraceDroppedCalls = counter(Definition{
		Name: "trace_dropped_calls_total",
		Help: "Calls whose spans were lost, because the collector did not keep up or did not take them.",
	})
)
