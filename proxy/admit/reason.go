package admit

// A Reason says why the bridge does not read from a client at present. The first are those of gates.
type Reason uint8

const (
	gateSlowStart         Reason = iota // the slow start of the upstream has no room: slow_start.go
	gateClient                          // the client's address is over its rate: bucket.go
	gateListener                        // the listener is over its rate: bucket.go
	gateTenantAddressRate               // the client's address is over its rate in the tenant: bucket.go
	gateTenantRate                      // the tenant is over its rate: bucket.go
	gateTenantAddress                   // the client's address has as much under way as it may in the tenant: quota.go
	gateTenant                          // the tenant has as much under way as it may: quota.go
	waitCalls                           // the client has as many Calls under way as it may: client.go
	waitReplies                         // it is owed as many octets of Replies as it may be: client.go
	WaitUnread                          // it does not read the Replies that are queued for it
	WaitMemory                          // there is no memory for its Call: memory.go
	WaitDraining                        // its connection is to be closed when no Call is under way
	Reasons

	gates = waitCalls
)

// ReasonNames are the names of the reasons in metrics and in the status document.
var ReasonNames = [Reasons]string{
	"slow_start", "client_rate", "listener_rate", "tenant_address_rate", "tenant_rate", "tenant_address", "tenant",
	"calls", "replies", "unread", "memory", "draining",
}

const (
	gateBits = 1<<gates - 1

	// tenantGates are the gates of a tenant and of its addresses, a bit for each.
	tenantGates = gateBits &^ (1<<gateTenantAddressRate - 1)

	// CallReasons are those for which no Call begins, a bit for each. The others keep the bridge from reading alone.
	CallReasons = gateBits | 1<<waitCalls | 1<<waitReplies | 1<<WaitDraining
)
