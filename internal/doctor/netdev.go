package doctor

import (
	"path"
	"strings"
)

// A Netdev is a network interface.
type Netdev struct {
	Name  string `json:"name"`
	State string `json:"state"` // up, down, unknown and others
	MTU   int    `json:"mtu"`   // 0 if it is not known
}

// examineNetdev reads the network interface with a name.
func examineNetdev(t *tree, name string) *Netdev {
	if name == "" || name != path.Base(name) || strings.HasPrefix(name, ".") {
		return nil
	}
	dir := "/sys/class/net/" + name
	n := &Netdev{Name: name, State: t.text(dir + "/operstate")}
	if mtu, ok := number(t.text(dir + "/mtu")); ok && mtu < 1<<20 {
		n.MTU = int(mtu)
	}
	return n
}

// rdmaMTUs are the lengths of payload that RDMA packets can have: enum ib_mtu.
var rdmaMTUs = [...]int{256, 512, 1024, 2048, 4096}

// roceMTU returns the longest payload of RoCE packets on an interface with an MTU, as the kernel's
// iboe_get_mtu (rdma/ib_addr.h) computes it.
func roceMTU(mtu int) (most int) {
	// GRH, UDP, BTH, the longest extended headers, ICRC.
	const headers = 40 + 8 + 12 + 4 + 28 + 4
	for _, m := range rdmaMTUs {
		if m+headers <= mtu {
			most = m
		}
	}
	return most
}
