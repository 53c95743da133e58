package metrics

// Clients and their connections to the listeners.
var (
	ListenerClients = gauge(Definition{
		Name: "listener_clients", Labels: ofListener,
		Help: "Client connections.",
		Like: "HAProxy: current sessions (scur) of a frontend; Envoy: downstream_cx_active",
	})
	ListenerUp = gauge(Definition{
		Name: "listener_up", Labels: ofListener,
		Help: "1 if the listener accepts connections, else 0.",
		Like: "HAProxy: status of a frontend (OPEN)",
	})
	ListenerClientsLimit = gauge(Definition{
		Name: "listener_clients_limit", Labels: ofListener,
		Help: "Most client connections that the listener may have (limits.connections).",
		Like: "HAProxy: session limit (slim) of a frontend",
	})
	ListenerPausedClients = gauge(Definition{
		Name: "listener_paused_clients", Labels: listenerAnd(pauseReason),
		Help: "Client connections that the bridge does not read from at present, by reason. A connection may have several.",
	})
	ListenerPausedSeconds = nanoseconds(Definition{
		Name: "listener_paused_seconds_total", Labels: listenerAnd(pauseReason),
		Help: "Time in which the bridge did not read from client connections, by reason, summed over the connections.",
	})
	ListenerPauses = counter(Definition{
		Name: "listener_pauses_total", Labels: listenerAnd(pauseReason),
		Help: "Times that the bridge stopped reading from a client connection, by reason.",
	})
	ListenerAcceptedConnections = counter(Definition{
		Name: "listener_accepted_connections_total", Labels: ofListener,
		Help: "Connections that the listener has accepted.",
		Like: "HAProxy: total sessions (stot) of a frontend; Envoy: downstream_cx_total",
	})
	ListenerRefusedConnections = counter(Definition{
		Name: "listener_refused_connections_total", Labels: listenerAnd(refusedReason),
		Help: "Connections that the bridge refused, or closed because of what the client did or did not do, by reason.",
		Like: "HAProxy: denied and failed requests (dreq, ereq) of a frontend; Envoy: downstream_cx_overload_reject and others",
	})
	ListenerEvictedClients = counter(Definition{
		Name: "listener_evicted_clients_total", Labels: ofListener,
		Help: "Clients closed because no more connections were allowed, their address had the most, and another address wanted one.",
	})
	ClosedClients = counter(Definition{
		Name: "closed_clients_total", Labels: []Label{{Name: "reason", Help: "why", Values: []Value{
			{"slow_reader", "the client did not read its Replies, and no memory was left for Replies"},
			{"slow_sender", "the client sent a Call too slowly, and no memory was left for Calls"},
		}}},
		Help: "Clients closed because memory was short and they held much of it, by reason.",
	})
	ClientSockets = gauge(Definition{
		Name: "client_sockets",
		Help: "Sockets of clients of all listeners, connections that are being set up included.",
	})
	ClientSocketsLimit = gauge(Definition{
		Name: "client_sockets_limit",
		Help: "Most sockets of clients that RLIMIT_NOFILE allows.",
		Like: "HAProxy: Maxconn",
	})
)

// pauseReason labels the metrics of pauses.
var pauseReason = Label{Name: "reason", Help: "why", Values: []Value{
	{"slow_start", "the slow start of the upstream has no room for another Call"},
	{"client_rate", "the client's address is over its rate limit"},
	{"listener_rate", "the listener is over its rate limit"},
	{"rule_rate", "the client has sent a Call that is over the rate limit of a rule"},
	{"calls", "the client has as many Calls under way as it may"},
	{"replies", "the client is owed as many bytes of Replies as it may be"},
	{"unread", "the client does not read the Replies that are queued for it"},
	{"memory", "there is no memory for the client's Call, or its tenant may not have more"},
	{"tenant_address_rate", "the client's address is over its rate limit in its tenant"},
	{"tenant_rate", "the client's tenant is over its rate limit"},
	{"tenant_address", "the client's address has as many Calls under way, or as much memory, as it may have in its tenant"},
	{"tenant", "the client's tenant has as many Calls under way, or as much memory, as it may"},
	{"draining", "the connection is to be closed when no Call is under way"},
}}

// refusedReason labels ListenerRefusedConnections. TCP and RDMA have the same reasons.
var refusedReason = Label{Name: "reason", Help: "why", Values: []Value{
	{"address", "the listener's access list does not have the address"},
	{"port", "the client's port is not privileged"},
	{"connections", "the listener has as many connections as it may"},
	{"connections_per_address", "the address has as many connections as it may"},
	{"sockets", "the process has as many sockets of clients as it may"},
	{"connection_rate", "too many new connections came to an RDMA listener in a second"},
	{"connection_rate_per_address", "too many new connections came from the address in a second"},
	{"tenant_connections", "the client's tenant has as many connections as it may"},
	{"tenant_connections_per_address", "the address has as many connections as it may have in its tenant"},
	{"tenant_connection_rate", "too many new connections of the client's tenant came in a second"},
	{"tenant_connection_rate_per_address", "too many new connections of the address came in a second, for its tenant"},
	{"proxy_missing", "the connection of a proxy does not begin with a PROXY header"},
	{"proxy_v1", "the PROXY header is of version 1"},
	{"proxy_header", "the PROXY header is malformed, or the connection ended inside it"},
	{"proxy_timeout", "the PROXY header did not come in time"},
	{"proxy_starting", "too many connections of the proxy have sent no PROXY header yet"},
	{"draining", "the bridge is about to end"},
	{"memory", "there is no memory: for Receives of an RDMA client, or for a record that a TCP client has begun"},
	{"setup", "the connection ended, or could not be used, while it was being set up"},
	{"starting", "too many connections were being set up"},
	{"starting_per_address", "too many connections of the address were being set up"},
	{"timeout", "the client did not finish the set-up in time"},
	{"request", "the client's request for a connection cannot be answered"},
	{"device", "the RDMA device has no resources for another connection, or is gone"},
	{"idle", "the idle timeout passed; this is no fault"},
	{"hoarding", "the connection was idle, and new clients needed its Receives"},
	{"silent", "the client's host acknowledged nothing any more"},
	{"stalled", "the client sent a record, or served RDMA Reads, too slowly"},
	{"request_timeout", "the client began a record and had not sent all of it within timeouts.request"},
	{"unread", "the client did not read its Replies"},
	{"outbound", "too many bytes of Replies waited for the client to read"},
	{"too_long", "a record was longer than limits.record"},
	{"too_short", "a record was too short for an RPC message"},
	{"fragments", "the fragments of a record had more octets of record marks than a record may have of its own"},
	{"chunks", "the chunks of an RDMA message were not valid"},
	{"payload", "the RPC message of an RDMA message was not valid"},
	{"handle", "an RDMA message invalidated a handle that was not its own"},
	{"credits", "the client sent more Calls than its credits"},
	{"unwritten", "an RDMA message claimed data that were not written"},
	{"other", "another reason of the RDMA device"},
}}

// Calls of clients.
var (
	ListenerReceivedCalls = counter(Definition{
		Name: "listener_received_calls_total", Labels: ofListener,
		Help: "Calls read from clients. The difference to listener_calls_total is under way, or its Reply waits until the kernel takes it.",
		Like: "nfsiostat: ops/s is its rate; Envoy: downstream_rq_total",
	})
	ListenerCalls = counter(Definition{
		Name: "listener_calls_total", Labels: listenerAnd(Label{Name: "result", Help: "what became of the Call", Values: []Value{
			{"replied", "the client got the upstream's Reply"},
			{"local", "the bridge answered the Call itself"},
			{"absorbed", "the Call repeated one that was under way, and was not sent again"},
			{"abandoned", "the bridge could not have the Call answered, and closed the client's connection so that the client retransmits"},
			{"client_gone", "the client's connection ended before the client had the Reply"},
			{"malformed", "the message was no RPC Call"},
		}}),
		Help: "Calls of clients that have ended, by result.",
		Like: "HAProxy: hrsp_*; Envoy: downstream_rq_xx",
	})
	ListenerRefusedCalls = counter(Definition{
		Name: "listener_refused_calls_total", Labels: listenerAnd(Label{Name: "reason", Help: "what is wrong with the header, and the Reply", Values: []Value{
			{"rpc_version", "it is not RPC version 2: RPC_MISMATCH"},
			{"credential", "the credential is longer than RPC allows: AUTH_BADCRED"},
			{"verifier", "the verifier is longer than RPC allows: AUTH_BADVERF"},
			{"short", "the message ends inside the header: GARBAGE_ARGS, or AUTH_BADCRED under RPCSEC_GSS"},
		}}),
		Help: "Calls whose RPC header is not valid, by reason. The bridge answers them itself, and their connection goes on.",
	})
	ListenerOutstandingCalls = gauge(Definition{
		Name: "listener_outstanding_calls", Labels: ofListener,
		Help: "Calls that were read and are not answered yet.",
		Like: "HAProxy: rq_cur; Envoy: downstream_rq_active",
	})
	ListenerStrayReplies = counter(Definition{
		Name: "listener_stray_replies_total", Labels: ofListener,
		Help: "Replies of clients that answer no reverse Call.",
	})
	ListenerRuleCalls = counter(Definition{
		Name: "listener_rule_calls_total", Labels: listenerAnd(
			Label{Name: "rule", Help: "name of the rule"},
			Label{Name: "verdict", Help: "what the rule does", Values: []Value{
				{"allow", "the Call goes where the routes send it"},
				{"deny", "the Call is refused"},
				{"upstream", "the Call goes to the upstream of the rule"},
				{"limit", "the Call counts for the rate of the rule, and the next rules decide"},
				{"dry_run", "nothing, because the rule only counts"},
			}}),
		Help: "Calls that matched a rule, and no earlier one that has an effect, by rule.",
		Like: "HAProxy: denied requests (dreq) of a frontend; Envoy: http.rbac.allowed, denied, shadow_allowed, shadow_denied",
	})
	ListenerSquashedCalls = counter(Definition{
		Name: "listener_squashed_calls_total", Labels: ofListener,
		Help: "Calls with a user or a group of AUTH_SYS that the listener has mapped to another one (squash).",
	})
	ListenerRateLimitWaits = counter(Definition{
		Name: "listener_rate_limit_waits_total", Labels: listenerAnd(Label{Name: "limit", Help: "which limit", Values: []Value{
			{"listener", "the rate of all clients of the listener"},
			{"client", "the rate of one address"},
			{"rule", "the rate of a rule"},
		}}),
		Help: "Times that the bridge stopped reading from a client because of a rate limit.",
		Like: "Envoy: ratelimit.over_limit",
	})
)

// TCP connections of clients.
var (
	ListenerTCPConnections = gauge(Definition{
		Name: "listener_tcp_connections", Labels: ofListener,
		Help: "Open TCP connections of a TCP listener, those that are not admitted yet included.",
	})
	ListenerProxyConnections = counter(Definition{
		Name: "listener_proxy_connections_total", Labels: listenerAnd(Label{Name: "address", Help: "whose", Values: []Value{
			{"client", "the PROXY header names the client"},
			{"proxy", "it names none: the proxy's own, such as health checks"},
		}}),
		Help: "Connections of proxies whose PROXY header the bridge has read and which it has admitted, by whose address counts.",
		Like: "HAProxy: sessions of a bind line with accept-proxy",
	})
	ListenerProxyStarting = gauge(Definition{
		Name: "listener_proxy_starting_connections", Labels: ofListener,
		Help: "Connections of proxies that have not sent a PROXY header yet.",
	})
	ListenerTLSConnections = gauge(Definition{
		Name: "listener_tls_connections", Labels: ofListener,
		Help: "Open TCP connections of clients whose TLS handshake is done.",
	})
	ListenerTLSStarting = gauge(Definition{
		Name: "listener_tls_starting_connections", Labels: ofListener,
		Help: "TCP connections of clients that are in a TLS handshake, or wait for their turn.",
	})
	ListenerTLSHandshakes = counter(Definition{
		Name: "listener_tls_handshakes_total", Labels: listenerAnd(tlsHandshake),
		Help: "TLS handshakes with clients that are done, by kind.",
		Like: "HAProxy: SslFrontendSessionReuse_pct; Envoy: ssl.handshake, ssl.session_reused",
	})
	ListenerTLSFailures = counter(Definition{
		Name: "listener_tls_failures_total", Labels: listenerAnd(tlsFailure),
		Help: "TCP connections of clients that ended because of their TLS, in the handshake or later, by reason.",
		Like: "HAProxy: failed handshakes (ereq) of a frontend; Envoy: ssl.connection_error, ssl.fail_verify_*",
	})
	ListenerTLSRefusedCalls = counter(Definition{
		Name: "listener_tls_refused_calls_total", Labels: ofListener,
		Help: "Calls that the bridge refused with AUTH_TOOWEAK, because they came without TLS and the listener requires it.",
	})
	ListenerTLSExpiry = gauge(Definition{
		Name: "listener_tls_expiry_timestamp_seconds", Labels: listenerAnd(tlsExpiring),
		Help: "When TLS of the listener fails because a file has expired, in seconds since 1970; 0 without such a file.",
		Like: "Envoy: ssl.certificate.expiration_unix_time_seconds",
	})
	ListenerTLSRenewBy = gauge(Definition{
		Name: "listener_tls_renew_by_timestamp_seconds", Labels: listenerAnd(tlsRenewed),
		Help: "From when the bridge warns that a file of the listener's TLS was not renewed, in seconds since 1970; 0 without such a file.",
	})
	ListenerTLSFilesRefused = gauge(Definition{
		Name: "listener_tls_files_refused", Labels: ofListener,
		Help: "1 while the files of the listener's TLS cannot be used as they are now, so that what they had before is in force; otherwise 0.",
	})
	ListenerTLSReloads = counter(Definition{
		Name: "listener_tls_reloads_total", Labels: listenerAnd(tlsReload),
		Help: "Times that the bridge found other content in the files of the listener's TLS, by what it did.",
	})
	ListenerTCPReceivedBytes = counter(Definition{
		Name: "listener_tcp_received_bytes_total", Labels: ofListener,
		Help: "Bytes read from TCP connections of clients, record marks and TLS included.",
		Like: "mountstats: bytes sent (xprt bytes_sent of the client); HAProxy: bin",
	})
	ListenerTCPSentBytes = counter(Definition{
		Name: "listener_tcp_sent_bytes_total", Labels: ofListener,
		Help: "Bytes written to TCP connections of clients, record marks and TLS included.",
		Like: "mountstats: bytes received; HAProxy: bout",
	})
	ListenerTCPInboundBufferedBytes = gauge(Definition{
		Name: "listener_tcp_inbound_buffered_bytes", Labels: ofListener,
		Help: "Bytes that were read and belong to an incomplete record or to a TCP connection from which the bridge does not read.",
	})
	ListenerTCPOutboundBufferedBytes = gauge(Definition{
		Name: "listener_tcp_outbound_buffered_bytes", Labels: ofListener,
		Help: "Bytes of Replies that wait for TCP clients to read.",
		Like: "Envoy: downstream_cx_tx_bytes_buffered",
	})
	ListenerTCPPausedConnections = gauge(Definition{
		Name: "listener_tcp_paused_connections", Labels: ofListener,
		Help: "TCP connections of clients from which the bridge does not read at present, because of backpressure.",
	})
	ListenerTCPPausedSeconds = counter(Definition{
		Name: "listener_tcp_paused_seconds_total", Labels: ofListener,
		Help: "Time in which the bridge did not read from TCP connections of clients, summed over all connections.",
	})
)

// Bytes that are copied within the process: those of messages, from their first place in memory to
// another. Copies by the kernel, from and to sockets, do not count. No stage copies long payload,
// except for the payload bytes that a read returns together with other bytes. The sum of these
// counters, divided by the payload carried, therefore shows how far the path is from being free of
// copies.
var (
	ListenerCopiedBytes = counter(Definition{
		Name: "listener_copied_bytes_total", Labels: listenerAnd(Label{Name: "stage", Help: "who copied", Values: []Value{
			{"tcp", "the TCP side"},
			{"responder", "the RDMA side"},
			{"iwarp", "the RDMA provider iwarp"},
			{"ibverbs", "the RDMA provider ibverbs"},
		}}),
		Help: "Bytes of messages that were copied within the process for a listener. Copies by the kernel do not count.",
	})
	UpstreamCopiedBytes = counter(Definition{
		Name: "upstream_copied_bytes_total", Labels: upstreamAnd(Label{Name: "stage", Help: "who copied", Values: []Value{
			{"tcp", "the TCP side"},
			{"requester", "the RDMA side"},
			{"iwarp", "the RDMA provider iwarp"},
			{"ibverbs", "the RDMA provider ibverbs"},
		}}),
		Help: "Bytes of messages that were copied within the process for an upstream. Copies by the kernel do not count.",
	})
)
