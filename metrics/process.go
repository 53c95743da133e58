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

var transportLabel = Label{Name: "transport", Help: "how it came", Values: []Value{{"tcp", ""}, {"udp", ""}}}

// The access log and the traces.
var (
	AccessLogLines = counter(Definition{
		Name: "access_log_lines_total",
		Help: "Lines of the access log that were written.",
	})
	AccessLogDroppedLines = counter(Definition{
		Name: "access_log_dropped_lines_total",
		Help: "Lines of the access log that were lost, because it did not keep up or could not be written.",
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
