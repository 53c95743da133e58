package metrics

// RDMA connections to upstreams, where the bridge is the Requester.
var (
	UpstreamRDMACalls = counter(Definition{
		Name: "upstream_rdma_calls_total", Labels: upstreamAnd(
			Label{Name: "call", Help: "how the Call travelled", Values: []Value{
				{"inline", "whole, in the RDMA Send"},
				{"read_chunk", "the data by RDMA Read, the rest in the Send"},
				{"long", "whole, by RDMA Read (a Position Zero Read chunk)"},
			}},
			Label{Name: "reply", Help: "what the Call offered for the Reply", Values: []Value{
				{"inline", "nothing: the Reply fits in an RDMA Send"},
				{"write_chunk", "a Write chunk for the data"},
				{"reply_chunk", "a Reply chunk for the whole Reply"},
			}},
		),
		Help: "Calls sent over RDMA, by shape.",
		Like: "xprtrdma (mountstats): read_chunk_count, write_chunk_count, reply_chunk_count",
	})
	UpstreamRDMAChunkBytes = counter(Definition{
		Name: "upstream_rdma_chunk_bytes_total", Labels: upstreamAnd(chunkKind),
		Help: "Bytes that RDMA moved apart from the Sends, by kind of chunk: what Read chunks offered to the server, and what it wrote into Write and Reply chunks.",
		Like: "xprtrdma (mountstats): total_rdma_request, total_rdma_reply",
	})
	UpstreamRDMACallBytes = counter(Definition{
		Name: "upstream_rdma_call_bytes_total", Labels: ofUpstream,
		Help: "Bytes of Calls sent over RDMA, as they would be over TCP.",
		Like: "xprtrdma (mountstats): total_rdma_request",
	})
	UpstreamRDMAReceivedBytes = counter(Definition{
		Name: "upstream_rdma_received_bytes_total", Labels: ofUpstream,
		Help: "Bytes received in RDMA Sends. What the server writes into chunks does not count.",
	})
	UpstreamRDMAFailedCalls = counter(Definition{
		Name: "upstream_rdma_failed_calls_total", Labels: upstreamAnd(Label{Name: "fate", Help: "how far the Call got", Values: []Value{
			{"not_sent", "it was not sent, and may be sent on any connection"},
			{"in_limbo", "the server may have executed it"},
			{"answered", "the server answered with an error, and the Call must not be sent again as it is"},
		}}),
		Help: "Calls that failed without a Reply, by fate.",
		Like: "xprtrdma (mountstats): failed_marshal_count, bad_reply_count",
	})
	UpstreamRDMARefusedReplies = counter(Definition{
		Name: "upstream_rdma_refused_replies_total", Labels: upstreamAnd(Label{Name: "reason", Help: "why", Values: []Value{
			{"chunks", "its chunks do not match those offered"},
			{"payload", "the RPC message, or data that came apart from it, is wrong"},
			{"handle", "it invalidated a handle that is not the Call's"},
			{"credits", "it exceeds the grant"},
			{"unwritten", "it claims bytes in a chunk that were never written there"},
			{"too_long", "it is longer than inline.reply allows, and the connection has ended"},
			{"access", "the server accessed the Call's memory in a way that its handle does not allow, and the connection has ended"},
		}}),
		Help: "Replies that the bridge refused, by reason. The Call fails; its connection ends only for the reasons handle, too_long and access.",
		Like: "xprtrdma (mountstats): bad_reply_count",
	})
	UpstreamRDMAErrors = counter(Definition{
		Name: "upstream_rdma_errors_total", Labels: upstreamAnd(rdmaErrorCode),
		Help: "RDMA_ERROR messages received, by error code.",
	})
	UpstreamRDMADroppedMessages = counter(Definition{
		Name: "upstream_rdma_dropped_messages_total", Labels: upstreamAnd(Label{Name: "reason", Help: "why", Values: []Value{
			{"stray", "it answers no outstanding Call"},
			{"header", "its Transport header cannot be decoded"},
			{"procedure", "its Transport header has a procedure that the bridge does not know"},
			{"reverse", "it is a reverse Call that cannot be handled"},
		}}),
		Help: "Messages from the server that were discarded, by reason.",
		Like: "mountstats: bad xids, for stray",
	})
	UpstreamRDMAMemoryWaits = counter(Definition{
		Name: "upstream_rdma_memory_waits_total", Labels: ofUpstream,
		Help: "Attempts to send a Call that found no memory for the Reply.",
	})
)

// RDMA connections of clients, where the bridge is the Responder.
var (
	ListenerRDMACalls = counter(Definition{
		Name: "listener_rdma_calls_total", Labels: listenerAnd(Label{Name: "call", Help: "how the Call travelled", Values: []Value{
			{"inline", "whole, in the RDMA Send"},
			{"pulled", "in part or whole by RDMA Read"},
		}}),
		Help: "Calls received over RDMA, by shape.",
	})
	ListenerRDMAReplies = counter(Definition{
		Name: "listener_rdma_replies_total", Labels: listenerAnd(Label{Name: "reply", Help: "how the Reply travelled", Values: []Value{
			{"inline", "whole, in the RDMA Send"},
			{"write_chunk", "the data by RDMA Write, the rest in the Send"},
			{"reply_chunk", "whole, by RDMA Write"},
		}}),
		Help: "Replies sent over RDMA, by shape.",
	})
	ListenerRDMAChunkBytes = counter(Definition{
		Name: "listener_rdma_chunk_bytes_total", Labels: listenerAnd(chunkKind),
		Help: "Bytes that RDMA moved apart from the Sends, by kind of chunk: what the bridge read from clients' Read chunks, and wrote into their Write and Reply chunks.",
	})
	ListenerRDMAErrors = counter(Definition{
		Name: "listener_rdma_errors_total", Labels: listenerAnd(rdmaErrorCode),
		Help: "RDMA_ERROR messages sent, by error code.",
	})
	ListenerRDMABadHeaders = counter(Definition{
		Name: "listener_rdma_bad_headers_total", Labels: ofListener,
		Help: "Transport headers that could not be decoded and were answered with RDMA_ERROR.",
	})
	ListenerRDMAGarbageCalls = counter(Definition{
		Name: "listener_rdma_garbage_calls_total", Labels: ofListener,
		Help: "Calls whose chunks do not match their arguments.",
	})
	ListenerRDMADroppedMessages = counter(Definition{
		Name: "listener_rdma_dropped_messages_total", Labels: listenerAnd(Label{Name: "reason", Help: "why", Values: []Value{
			{"reply", "it is a Reply that answers no reverse Call"},
			{"procedure", "its Transport header has a procedure that the bridge does not know"},
			{"header", "its Transport header cannot be decoded, and not be answered either"},
		}}),
		Help: "Messages from clients that were discarded, by reason.",
	})
	ListenerRDMAMemoryWaits = counter(Definition{
		Name: "listener_rdma_memory_waits_total", Labels: ofListener,
		Help: "Calls with chunks that had to wait for memory.",
	})
	ListenerRDMAParkedCalls = counter(Definition{
		Name: "listener_rdma_parked_calls_total", Labels: ofListener,
		Help: "Messages that waited in their Receive buffer until the connection could handle another Call.",
	})
	ListenerRDMAExcessCalls = counter(Definition{
		Name: "listener_rdma_excess_calls_total", Labels: ofListener,
		Help: "Calls beyond the grant, which waited until an earlier Call of their connection was answered. Clients send them when their processes are interrupted.",
	})
	ListenerRDMAOutstandingCalls = gauge(Definition{
		Name: "listener_rdma_outstanding_calls", Labels: ofListener,
		Help: "Calls of RDMA clients that hold a credit: those beyond the grant, which wait, do not count.",
	})
	ListenerRDMAReceives = gauge(Definition{
		Name: "listener_rdma_receives", Labels: ofListener,
		Help: "Receive buffers of all connections, posted or held by a Call.",
	})
	ListenerCreditsGranted = gauge(Definition{
		Name: "listener_credits_granted", Labels: ofListener,
		Help: "Credits granted last to RDMA clients, summed over all connections.",
	})
	ListenerCreditsStarvedConnections = gauge(Definition{
		Name: "listener_credits_starved_connections", Labels: ofListener,
		Help: "RDMA connections that recently used all their credits and get no more because memory for Receives is short.",
	})
	ListenerCreditsExhausted = counter(Definition{
		Name: "listener_credits_exhausted_total", Labels: ofListener,
		Help: "Calls that used the last credit of their connection, so that the client had to wait.",
	})
	ListenerCreditsDenied = counter(Definition{
		Name: "listener_credits_denied_total", Labels: ofListener,
		Help: "Times a connection needed more credits and got none because memory for Receives is short.",
	})
	ListenerCreditsLowered = counter(Definition{
		Name: "listener_credits_lowered_total", Labels: ofListener,
		Help: "Times the grant of a connection was lowered to its share of the memory for Receives.",
	})
	ListenerReverseCalls = counter(Definition{
		Name: "listener_reverse_calls_total", Labels: ofListener,
		Help: "Reverse Calls (callbacks) sent to RDMA clients.",
		Like: "xprtrdma (mountstats of the client): bcall_count",
	})
	ListenerReverseReplies = counter(Definition{
		Name: "listener_reverse_replies_total", Labels: ofListener,
		Help: "Reverse Calls that the RDMA client answered.",
	})
	ListenerReverseUnansweredCalls = counter(Definition{
		Name: "listener_reverse_unanswered_calls_total", Labels: ofListener,
		Help: "Reverse Calls that the RDMA client never answered.",
	})
	ListenerReverseRefusedCalls = counter(Definition{
		Name: "listener_reverse_refused_calls_total", Labels: listenerAnd(Label{Name: "reason", Help: "why", Values: []Value{
			{"too_long", "the Call does not fit inline"},
			{"busy", "too many reverse Calls are waiting"},
			{"xid", "another reverse Call has its XID"},
			{"memory", "there is no memory for the Call or its answer"},
			{"malformed", "the client's answer is no RPC Reply"},
			{"rdma_error", "the client's answer is RDMA_ERROR"},
		}}),
		Help: "Reverse Calls that were not sent, or not answered with a Reply, by reason.",
	})
)

var rdmaErrorCode = Label{Name: "code", Help: "the error code of RFC 8166", Values: []Value{
	{"err_chunk", "the chunks, or the size of the Reply, do not fit"},
	{"err_vers", "the version of RPC-over-RDMA is not supported"},
}}

// What RDMA devices report.
var (
	ListenerDeviceEvents = counter(Definition{
		Name: "listener_device_events_total", Labels: listenerAnd(deviceEvent),
		Help: "Events of RDMA devices that the listener uses, by kind of event.",
	})
	UpstreamDeviceEvents = counter(Definition{
		Name: "upstream_device_events_total", Labels: upstreamAnd(deviceEvent),
		Help: "Events of RDMA devices that the upstream uses, by kind of event.",
	})
)

var deviceEvent = Label{Name: "event", Help: "kind of event, such as port_down, qp_fatal, cq_error or device_fatal: docs/ibverbs.md"}

// chunkKind is the label of what RDMA moved apart from the Sends.
var chunkKind = Label{Name: "chunk", Help: "kind of chunk", Values: []Value{
	{"read", "data of a Call, such as a WRITE's"},
	{"position_zero", "a whole Call that is too long for a Send (a Position Zero Read chunk)"},
	{"write", "data of a Reply, such as a READ's"},
	{"reply", "a whole Reply that is too long for a Send"},
}}
