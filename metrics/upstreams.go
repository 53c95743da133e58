package metrics

// Connections to upstreams.
var (
	UpstreamState = gauge(Definition{
		Name: "upstream_state", Labels: upstreamAnd(Label{Name: "state", Help: "state of the upstream", Values: []Value{
			{"up", "every connection that should be there is"},
			{"degraded", "some connections or endpoints are not there"},
			{"down", "no connection is there, and Calls wait or fail"},
			{"asleep", "no connection is there because no Call needs one"},
		}}),
		Help: "1 for the state that the upstream is in, 0 for the others.",
		Like: "HAProxy: status of a backend; Envoy: membership_healthy",
	})
	UpstreamWantedConnections = gauge(Definition{
		Name: "upstream_wanted_connections", Labels: ofUpstream,
		Help: "Connections that there should be, those that sleep not included.",
	})
	UpstreamConnections = gauge(Definition{
		Name: "upstream_connections", Labels: ofUpstream,
		Help: "Usable connections to the upstream, pinned ones included.",
		Like: "Envoy: upstream_cx_active",
	})
	UpstreamAsleepConnections = gauge(Definition{
		Name: "upstream_asleep_connections", Labels: ofUpstream,
		Help: "Connections that the upstream may have and that no Call needs: they are made when one does.",
	})
	UpstreamStalledConnections = gauge(Definition{
		Name: "upstream_stalled_connections", Labels: ofUpstream,
		Help: "Connections on which the server answers nothing: it hangs, or the network to it is away and timeouts.silent is none.",
	})
	UpstreamPinnedConnections = gauge(Definition{
		Name: "upstream_pinned_connections", Labels: ofUpstream,
		Help: "Pinned connections to the upstream, including those still being dialled.",
	})
	UpstreamConnects = counter(Definition{
		Name: "upstream_connects_total", Labels: ofUpstream,
		Help: "Connections to the upstream that came up.",
		Like: "mountstats: connect count; Envoy: upstream_cx_total",
	})
	UpstreamDialErrors = counter(Definition{
		Name: "upstream_dial_errors_total", Labels: ofUpstream,
		Help: "Attempts to connect to the upstream that failed.",
		Like: "HAProxy: econ; Envoy: upstream_cx_connect_fail",
	})
	UpstreamDisconnects = counter(Definition{
		Name: "upstream_disconnects_total", Labels: upstreamAnd(Label{Name: "reason", Help: "why the connection ended", Values: []Value{
			{"silent", "the server's host is gone"},
			{"deadline", "the server did not answer a Call in time"},
			{"dropped", "the server did not answer a Call in time but answered later ones"},
			{"idle", "the server closed a connection on which no Call was outstanding"},
			{"other", "the server or the network ended it for another reason"},
		}}),
		Help: "Connections to the upstream that ended, by reason.",
		Like: "Envoy: upstream_cx_destroy",
	})
	UpstreamProbes = counter(Definition{
		Name: "upstream_probes_total", Labels: upstreamAnd(Label{Name: "result", Help: "what became of the probe", Values: []Value{
			{"answered", "the server answered"},
			{"failed", "the connection ended first"},
			{"unsent", "there was no credit for the probe"},
		}}),
		Help: "NULL Calls that probe a silent connection, by result.",
		Like: "HAProxy: chkfail and others; Envoy: health_check.attempt",
	})
	UpstreamSourcePortChanges = counter(Definition{
		Name: "upstream_source_port_changes_total", Labels: ofUpstream,
		Help: "Times that a connection could not use the source port of the connection before it. The server's duplicate request cache does not recognise a Call that is sent again from another port.",
	})
	UpstreamEjectedEndpoints = gauge(Definition{
		Name: "upstream_ejected_endpoints", Labels: ofUpstream,
		Help: "Endpoints that are ejected now.",
		Like: "HAProxy: servers that are DOWN; Envoy: outlier_detection.ejections_active",
	})
	UpstreamEndpointEjected = gauge(Definition{
		Name: "upstream_endpoint_ejected", Labels: upstreamAnd(endpointLabel),
		Help: "1 if the endpoint is ejected, else 0.",
		Like: "HAProxy: status of a server (DOWN, MAINT); Envoy: health_flags",
	})
	UpstreamEndpointConnections = gauge(Definition{
		Name: "upstream_endpoint_connections", Labels: upstreamAnd(endpointLabel),
		Help: "Connections to the endpoint that are up.",
	})
	UpstreamEndpointEjections = counter(Definition{
		Name: "upstream_endpoint_ejections_total", Labels: ofUpstream,
		Help: "Times that an endpoint was ejected for a while because it failed, answered no Calls, or its host was gone.",
		Like: "HAProxy: chkdown; Envoy: outlier_detection.ejections_total",
	})
	DialsInProgress = gauge(Definition{
		Name: "dials_in_progress",
		Help: "Attempts to connect to upstreams that are under way now.",
	})
	DialsWaiting = gauge(Definition{
		Name: "dials_waiting",
		Help: "Attempts to connect to upstreams that have to wait, because too many others are under way or have just begun.",
	})
)

// Calls at upstreams.
var (
	UpstreamSentCalls = counter(Definition{
		Name: "upstream_sent_calls_total", Labels: ofUpstream,
		Help: "Calls sent to the upstream, replays included, counted when they are answered or their connection has ended.",
		Like: "mountstats: transmissions (trans) of all operations",
	})
	UpstreamCalls = counter(Definition{
		Name: "upstream_calls_total", Labels: upstreamAnd(Label{Name: "outcome", Help: "how the Call ended at the upstream", Values: []Value{
			{"replied", "the upstream answered"},
			{"error", "the upstream's answer cannot be passed on: RDMA_ERROR, or a Reply that the bridge refuses"},
			{"lost", "the connection ended and the Call was not sent again"},
		}}),
		Help: "Calls by how they ended at the upstream.",
		Like: "Envoy: upstream_rq_completed",
	})
	UpstreamReplays = counter(Definition{
		Name: "upstream_replays_total", Labels: ofUpstream,
		Help: "Calls sent again because their connection was lost.",
		Like: "nfsiostat: retrans; HAProxy: wredis; Envoy: upstream_rq_retry",
	})
	UpstreamRetries = counter(Definition{
		Name: "upstream_retries_total", Labels: ofUpstream,
		Help: "Times that the chosen connection could not send a Call.",
		Like: "HAProxy: wretr",
	})
	UpstreamXIDCollisions = counter(Definition{
		Name: "upstream_xid_collisions_total", Labels: ofUpstream,
		Help: "Times that the chosen connection could not send a Call because another Call outstanding there has its XID.",
	})
	UpstreamStrayReplies = counter(Definition{
		Name: "upstream_stray_replies_total", Labels: ofUpstream,
		Help: "Replies of the upstream that answer no outstanding Call.",
		Like: "mountstats: bad xids",
	})
	UpstreamStuckCalls = gauge(Definition{
		Name: "upstream_stuck_calls", Labels: ofUpstream,
		Help: "Calls that the upstream has not answered for a second or two.",
	})
	UpstreamOldestCallSeconds = gaugeOfNanoseconds(Definition{
		Name: "upstream_oldest_call_seconds", Labels: ofUpstream,
		Help: "Time since the oldest Call that the upstream has not answered was sent; 0 for none.",
	})
	UpstreamFault = gauge(Definition{
		Name: "upstream_fault", Labels: upstreamAnd(Label{Name: "fault", Help: "what, as in the problem of this code", Values: []Value{
			{"upstream_protocol", "it has no connection, because something else listens at its port"},
			{"upstream_tls", "it has no connection, because TLS does not come about, or its server refuses NULL Calls without TLS with AUTH_TOOWEAK"},
		}}),
		Help: "1 while something is wrong with the upstream that the bridge knows by name; otherwise 0.",
	})
	UpstreamGSSHeldCalls = counter(Definition{
		Name: "upstream_gss_held_calls_total", Labels: ofUpstream,
		Help: "Calls under RPCSEC_GSS that waited because pool.gss_window Calls of their context were outstanding.",
	})
)

// Credits of upstreams.
var (
	UpstreamCreditsGranted = gauge(Definition{
		Name: "upstream_credits_granted", Labels: ofUpstream,
		Help: "Credits that the upstream has granted on its usable connections.",
		Like: "xprtrdma: the congestion window (cwnd) of the transport",
	})
	UpstreamCreditsRequested = gauge(Definition{
		Name: "upstream_credits_requested", Labels: ofUpstream,
		Help: "Credits that the bridge asks for on the usable connections to the upstream.",
		Like: "xprtrdma: rdma_slot_table_entries of each connection",
	})
	UpstreamCreditsStarvedSeconds = nanoseconds(Definition{
		Name: "upstream_credits_starved_seconds_total", Labels: ofUpstream,
		Help: "Time in which Calls waited and no credit was free.",
	})
	UpstreamCreditsUsed = gauge(Definition{
		Name: "upstream_credits_used", Labels: ofUpstream,
		Help: "Calls outstanding on the usable connections to the upstream.",
		Like: "Envoy: upstream_rq_active",
	})
	UpstreamQueuedCalls = gauge(Definition{
		Name: "upstream_queued_calls", Labels: ofUpstream,
		Help: "Calls that wait for a credit.",
		Like: "mountstats: backlog queue; HAProxy: qcur; Envoy: upstream_rq_pending_active",
	})
	UpstreamQueueExpiredCalls = counter(Definition{
		Name: "upstream_queue_expired_calls_total", Labels: ofUpstream,
		Help: "Calls that were given up before a connection had a credit for them.",
		Like: "Envoy: upstream_rq_pending_failure_eject",
	})
	UpstreamShareWaits = counter(Definition{
		Name: "upstream_share_waits_total", Labels: ofUpstream,
		Help: "Calls that had to wait although a credit was free, because their address has its share, of the credits or of the pinned Calls.",
	})
	UpstreamLeakedCredits = counter(Definition{
		Name: "upstream_leaked_credits_total", Labels: ofUpstream,
		Help: "Calls past their deadline on a connection that answered later Calls. Each uses up a credit. The bridge replaces the connection, and the other Calls on it are not disturbed. A connection that NFSv4.1 clients share stays while few of its credits are in use so.",
	})
)

// Slow start, and clients that an upstream turns away.
var (
	UpstreamSlowStartCalls = gauge(Definition{
		Name: "upstream_slow_start_calls", Labels: ofUpstream,
		Help: "Calls that may be read from clients and wait for Replies during the slow start of the upstream; 0 when the slow start is over.",
	})
	UpstreamSlowStartWaitingClients = gauge(Definition{
		Name: "upstream_slow_start_waiting_clients", Labels: ofUpstream,
		Help: "Clients that the bridge does not read from because of the slow start of the upstream.",
	})
	UpstreamSlowStartWaits = counter(Definition{
		Name: "upstream_slow_start_waits_total", Labels: ofUpstream,
		Help: "Times that the bridge stopped reading from a client because the slow start of the upstream had no room for another Call.",
	})
	UpstreamSlowStartClosedClients = counter(Definition{
		Name: "upstream_slow_start_closed_clients_total", Labels: ofUpstream,
		Help: "Clients closed because the slow start of the upstream had no room for too long.",
	})
	UpstreamPinnedRefusedClients = counter(Definition{
		Name: "upstream_pinned_refused_clients_total", Labels: ofUpstream,
		Help: "Clients closed because the upstream had as many pinned connections as it may.",
	})
	UpstreamPinnedEvictedClients = counter(Definition{
		Name: "upstream_pinned_evicted_clients_total", Labels: ofUpstream,
		Help: "Clients closed for a client of an address with fewer pinned connections, because the upstream had as many as it may.",
	})
)

var endpointLabel = Label{Name: "endpoint", Help: "address of the endpoint, as in the configuration"}

// TCP connections to upstreams, and those below iWARP: what the kernel knows of them (TCP_INFO).
var (
	UpstreamTCPRTTSeconds = gaugeOfNanoseconds(Definition{
		Name: "upstream_tcp_rtt_seconds", Labels: ofUpstream,
		Help: "Largest smoothed round-trip time of the connections to the upstream.",
		Like: "ss -ti: rtt",
	})
	UpstreamTCPSentSegments = counter(Definition{
		Name: "upstream_tcp_sent_segments_total", Labels: ofUpstream,
		Help: "TCP segments sent to the upstream.",
		Like: "ss -ti: segs_out",
	})
	UpstreamTCPRetransmittedSegments = counter(Definition{
		Name: "upstream_tcp_retransmitted_segments_total", Labels: ofUpstream,
		Help: "TCP segments sent to the upstream again: the wire loses some, or the upstream's host is too slow.",
		Like: "ss -ti: retrans",
	})
	UpstreamTCPNeedlessSegments = counter(Definition{
		Name: "upstream_tcp_needless_segments_total", Labels: ofUpstream,
		Help: "TCP segments sent to the upstream again whose original had arrived: the wire or the peer is slow, and loses nothing.",
		Like: "ss -ti: dsack_dups",
	})
	UpstreamTCPReceivedSegments = counter(Definition{
		Name: "upstream_tcp_received_segments_total", Labels: ofUpstream,
		Help: "TCP segments received from the upstream.",
		Like: "ss -ti: segs_in",
	})
	UpstreamTCPOutOfOrderSegments = counter(Definition{
		Name: "upstream_tcp_out_of_order_segments_total", Labels: ofUpstream,
		Help: "TCP segments of the upstream that came after a gap: one before them was lost or overtaken.",
		Like: "ss -ti: rcv_ooopack",
	})
	UpstreamTCPUnsentBytes = gauge(Definition{
		Name: "upstream_tcp_unsent_bytes", Labels: ofUpstream,
		Help: "Bytes in the kernel's send buffers of the connections to the upstream that were never sent.",
		Like: "ss -ti: notsent",
	})
)

// TCP connections to upstreams.
var (
	UpstreamTCPReceivedBytes = counter(Definition{
		Name: "upstream_tcp_received_bytes_total", Labels: ofUpstream,
		Help: "Bytes read from TCP connections to the upstream, record marks included.",
		Like: "HAProxy: bout of a backend",
	})
	UpstreamTCPSentBytes = counter(Definition{
		Name: "upstream_tcp_sent_bytes_total", Labels: ofUpstream,
		Help: "Bytes written to TCP connections to the upstream, record marks included.",
		Like: "HAProxy: bin of a backend",
	})
	UpstreamTCPInboundBufferedBytes = gauge(Definition{
		Name: "upstream_tcp_inbound_buffered_bytes", Labels: ofUpstream,
		Help: "Bytes that were read and belong to an incomplete record or to a TCP connection from which the bridge does not read.",
	})
	UpstreamTCPOutboundBufferedBytes = gauge(Definition{
		Name: "upstream_tcp_outbound_buffered_bytes", Labels: ofUpstream,
		Help: "Bytes of Calls that wait for the TCP server to read.",
		Like: "Envoy: upstream_cx_tx_bytes_buffered",
	})
	UpstreamTCPPausedConnections = gauge(Definition{
		Name: "upstream_tcp_paused_connections", Labels: ofUpstream,
		Help: "TCP connections to the upstream from which the bridge does not read at present, because of backpressure.",
	})
	UpstreamTCPPausedSeconds = counter(Definition{
		Name: "upstream_tcp_paused_seconds_total", Labels: ofUpstream,
		Help: "Time in which the bridge did not read from TCP connections to the upstream, summed over all connections.",
	})
	UpstreamTLSConnections = gauge(Definition{
		Name: "upstream_tls_connections", Labels: ofUpstream,
		Help: "Open TCP connections to the upstream whose TLS handshake is done.",
	})
	UpstreamTLSStarting = gauge(Definition{
		Name: "upstream_tls_starting_connections", Labels: ofUpstream,
		Help: "TCP connections to the upstream that are in a TLS handshake.",
	})
	UpstreamTLSHandshakes = counter(Definition{
		Name: "upstream_tls_handshakes_total", Labels: upstreamAnd(tlsHandshake),
		Help: "TLS handshakes with the upstream that are done, by kind.",
		Like: "HAProxy: SslBackendKeyRate; Envoy: cluster ssl.handshake",
	})
	UpstreamTLSFailures = counter(Definition{
		Name: "upstream_tls_failures_total", Labels: upstreamAnd(tlsFailure),
		Help: "TCP connections to the upstream that ended because of their TLS, in the handshake or later, by reason.",
		Like: "Envoy: cluster ssl.connection_error, ssl.fail_verify_*",
	})
	UpstreamTLSExpiry = gauge(Definition{
		Name: "upstream_tls_expiry_timestamp_seconds", Labels: upstreamAnd(tlsExpiring),
		Help: "When TLS to the upstream fails because a file has expired, in seconds since 1970; 0 without such a file.",
		Like: "Envoy: ssl.certificate.expiration_unix_time_seconds",
	})
	UpstreamTLSRenewBy = gauge(Definition{
		Name: "upstream_tls_renew_by_timestamp_seconds", Labels: upstreamAnd(tlsRenewed),
		Help: "From when the bridge warns that a file of the upstream's TLS was not renewed, in seconds since 1970; 0 without such a file.",
	})
	UpstreamTLSFilesRefused = gauge(Definition{
		Name: "upstream_tls_files_refused", Labels: ofUpstream,
		Help: "1 while the files of the upstream's TLS cannot be used as they are now, so that what they had before is in force; otherwise 0.",
	})
	UpstreamTLSReloads = counter(Definition{
		Name: "upstream_tls_reloads_total", Labels: upstreamAnd(tlsReload),
		Help: "Times that the bridge found other content in the files of the upstream's TLS, by what it did.",
	})
	UpstreamTLSMissing = counter(Definition{
		Name: "upstream_tls_missing_connections_total", Labels: upstreamAnd(Label{Name: "result", Help: "what the bridge did", Values: []Value{
			{"refused", "it closed the connection, because the upstream requires TLS"},
			{"plain", "it went on without TLS, because TLS is optional"},
		}}),
		Help: "Connections whose server does not offer TLS, by what the bridge did.",
	})
	UpstreamTCPRefusedReplies = counter(Definition{
		Name: "upstream_tcp_refused_replies_total", Labels: upstreamAnd(Label{Name: "reason", Help: "why", Values: []Value{
			{"too_long", "a record was longer than any Reply may be: chunks.reply and 64 KiB"},
			{"too_short", "a record was too short for an RPC message"},
			{"fragments", "the fragments of a record had more octets of record marks than a record may have of its own"},
			{"memory", "an incomplete record waited too long for memory"},
			{"malformed", "the header of an RPC Reply could not be read"},
		}}),
		Help: "Messages of a TCP server that the bridge refused, by reason. The Call that one answers fails, or is sent again after the reason memory; its connection goes on.",
	})
	UpstreamTCPClosedConnections = counter(Definition{
		Name: "upstream_tcp_closed_connections_total", Labels: upstreamAnd(Label{Name: "reason", Help: "why", Values: []Value{
			{"too_long", "a record that answers no Call was four times as long as any Reply may be, or longer: the stream is out of step"},
			{"fragments", "a record that answers no Call had as many octets of record marks"},
			{"stalled", "the server stopped inside a record"},
			{"outbound", "too many bytes of Calls waited for the server to read"},
			{"unread", "the server did not read its Calls"},
			{"idle", "the idle timeout passed"},
			{"silent", "the server's host acknowledged nothing any more"},
		}}),
		Help: "TCP connections to the upstream that the bridge closed because of what the server sent or did not read, by reason. upstream_disconnects_total counts them too.",
	})
)

// tlsHandshake labels the handshakes of a listener or upstream.
var tlsHandshake = Label{Name: "kind", Help: "how", Values: []Value{
	{"full", "with certificates"},
	{"resumed", "with the ticket of an earlier session"},
}}

// tlsReload labels the changes of files.
var tlsReload = Label{Name: "result", Help: "what the bridge did", Values: []Value{
	{"loaded", "later connections use the files"},
	{"refused", "the files cannot be used, and what they had before stays in force"},
}}

// tlsExpiring labels the files whose end is the end of TLS.
var tlsExpiring = Label{Name: "file", Help: "which of the files", Values: []Value{
	{"certificate", "the bridge's own certificate and those of its issuers, of which the first counts that expires"},
	{"ca", "the CAs that sign the certificates of the other side, of which the last counts that expires"},
}}

// tlsRenewed labels the files that must be renewed.
var tlsRenewed = Label{Name: "file", Help: "which of the files", Values: []Value{
	{"certificate", "the bridge's own certificate and those of its issuers: 14 days before the first expires, or a fifth of its life if that is less"},
	{"ca", "the CAs that sign the certificates of the other side: 30 days before the first expires that has no successor in the file, or a fifth of its life if that is less"},
	{"crl", "the lists of revoked certificates: when the first successor is due that is not there"},
}}

// tlsFailure labels the failures of TLS of a listener or upstream.
var tlsFailure = Label{Name: "reason", Help: "why", Values: []Value{
	{"no_certificate", "the client sent no certificate, and must"},
	{"expired", "the peer's certificate has expired, or is not valid yet"},
	{"unknown_authority", "no CA that is trusted has signed the peer's certificate"},
	{"wrong_name", "the server's certificate does not have the name"},
	{"bad_certificate", "the peer's certificate has another fault"},
	{"revoked", "the peer's certificate was revoked, or is no longer trusted after a reload"},
	{"forbidden", "the peer is known, and may not connect"},
	{"alpn", "the peer does not name RPC (sunrpc) as its protocol"},
	{"version", "the peer lacks TLS 1.3"},
	{"parameters", "no cipher suite, group or signature is shared"},
	{"timeout", "a stage of the handshake took too long"},
	{"busy", "too many handshakes were under way"},
	{"garbage", "the peer sent something that is not TLS, or a record that does not decrypt"},
	{"injected", "octets in plain text followed the message that ends the plain text, or a Call before it was not answered yet"},
	{"peer_alert", "the peer refused, with an alert that the log has"},
	{"peer_closed", "the peer ended the connection inside the handshake"},
	{"flood", "the peer sent too many TLS records without data"},
	{"failed", "something else, which the log has"},
}}

// Reverse Calls: those of an NFSv4 server to its clients.
var (
	UpstreamSessions = gauge(Definition{
		Name: "upstream_sessions", Labels: ofUpstream,
		Help: "NFSv4.1 sessions that the bridge knows the client of, for callbacks.",
	})
	UpstreamEvictedSessions = counter(Definition{
		Name: "upstream_evicted_sessions_total", Labels: ofUpstream,
		Help: "NFSv4.1 sessions that the bridge has forgotten because it remembers no more than 65,536 of the upstream: of the address with the most.",
	})
	UpstreamReverseCalls = counter(Definition{
		Name: "upstream_reverse_calls_total", Labels: ofUpstream,
		Help: "Reverse Calls (callbacks) that the upstream sent.",
		Like: "xprtrdma: bcall_count",
	})
	UpstreamReverseReplies = counter(Definition{
		Name: "upstream_reverse_replies_total", Labels: ofUpstream,
		Help: "Reverse Calls of the upstream that the client answered.",
	})
	UpstreamReverseUnansweredCalls = counter(Definition{
		Name: "upstream_reverse_unanswered_calls_total", Labels: ofUpstream,
		Help: "Reverse Calls of the upstream that were passed to the client and never answered.",
	})
	UpstreamReverseRefusedCalls = counter(Definition{
		Name: "upstream_reverse_refused_calls_total", Labels: upstreamAnd(Label{Name: "reason", Help: "why", Values: []Value{
			{"program", "no client is called on this connection"},
			{"client", "the client does not take the Call"},
			{"malformed", "the client's answer is no RPC Reply"},
			{"chunks", "RDMA: the Call came with chunks"},
			{"memory", "RDMA: there is no memory for a copy of the Call"},
			{"too_long", "RDMA: the answer does not fit inline"},
		}}),
		Help: "Reverse Calls of the upstream that the bridge answered with an error, by reason.",
	})
	UpstreamReverseDroppedMessages = counter(Definition{
		Name: "upstream_reverse_dropped_messages_total", Labels: ofUpstream,
		Help: "Messages of a TCP server that are no RPC Call, and reverse Calls of a server that does not read its Replies.",
	})
	UpstreamSessionCallbacks = counter(Definition{
		Name: "upstream_session_callbacks_total", Labels: upstreamAnd(Label{Name: "outcome", Help: "what became of the Call", Values: []Value{
			{"answered", "the client answered"},
			{"delayed", "the client is away, and the bridge answered NFS4ERR_DELAY"},
			{"unknown", "the bridge knows no client for the session"},
			{"refused", "the client cannot take the Call"},
			{"unanswered", "the client did not answer in time"},
		}}),
		Help: "Reverse Calls on connections that NFSv4.1 clients share, by outcome.",
	})
)
