package gates

// A Reason says why the bridge does not read from a client at present. The first are those of gates.
type Reason uint8

const (
	GateSlowStart         Reason = iota // the slow start of the upstream has no room: proxy/admit/slow_start.go
	GateClient                          // the client's address is over its rate: bucket.go
	GateListener                        // the listener is over its rate: bucket.go
	GateRule                            // the client's latest Call is over the rate of a rule: bucket.go
	GateTenantAddressRate               // the client's address is over its rate in the tenant: bucket.go
	GateTenantRate                      // the tenant is over its rate: bucket.go
	GateTenantAddress                   // the client's address has as much under way as it may in the tenant: proxy/admit/quota.go
	GateTenant                          // the tenant has as much under way as it may: proxy/admit/quota.go
	WaitCalls                           // the client has as many Calls under way as it may: proxy/admit/client.go
	WaitReplies                         // it is owed as many octets of Replies as it may be: proxy/admit/client.go
	WaitUnread                          // it does not read the Replies that are queued for it
	WaitMemory                          // there is no memory for its Call: proxy/admit/memory.go
	WaitDraining                        // its connection is to be closed when no Call is under way
	Reasons

	// Gates is how many reasons are those of gates.
	Gates = WaitCalls
)

// ReasonNames are the names of the reasons in metrics and in the status document.
var ReasonNames = [Reasons]string{
	"slow_start", "client_rate", "listener_rate", "rule_rate", "tenant_address_rate", "tenant_rate", "tenant_address", "tenant",
	"calls", "replies", "unread", "memory", "draining",
}

const (
	gateBits = 1<<Gates - 1

	// TenantGates are the gates of a tenant and of its addresses, a bit for each.
	TenantGates = gateBits &^ (1<<GateTenantAddressRate - 1)

	// CallReasons are those for which no Call begins, a bit for each. The others keep the bridge from reading alone.
	CallReasons = gateBits | 1<<WaitCalls | 1<<WaitReplies | 1<<WaitDraining
)
