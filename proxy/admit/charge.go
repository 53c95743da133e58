package admit

import "github.com/rdmabridge/rdmabridge/internal/regmem"

// A Charge is what a client, its tenant, the memory and the upstream's slow start count for a Call.
type Charge struct {
	host      *Host  // the client's, for which the memory and the slow start count the Call
	held      int64  // octets that Memory counts for the message of the Call
	Expected  int    // octets that the Reply is expected to have; when lent is set, the memory it takes
	slowStart uint32 // the age in which the upstream's slow start counted the call; 0 if it does not
	counted   bool   // the client counts the Call
	lent      bool   // the client counts the memory of the Reply
	shared    bool   // the quotas of the client's tenant count the Call
	Ordered   bool   // the client's connection counts the Call among those that keep their order
}

// InSlowStart reports whether the upstream's slow start counts the Call.
func (c *Charge) InSlowStart() bool { return c.slowStart != 0 }

// memory is how many octets a Call of size octets takes with its Reply, which is expected or there.
func (c *Charge) memory(size int32) int64 {
	return int64(regmem.BlockSize(int(size))) + int64(c.Expected)
}
