package doctor

import (
	"path"
	"strconv"
	"strings"
)

// The states of a port that the doctor compares: enum ib_port_state.
const (
	stateDown   = "DOWN"
	stateInit   = "INIT"
	stateArmed  = "ARMED"
	stateActive = "ACTIVE"
)

// portStates has the names that sysfs has, by number.
var portStates = [...]string{0: "NOP", 1: stateDown, 2: stateInit, 3: stateArmed, 4: stateActive, 5: "ACTIVE_DEFER"}

// physStates has the names that sysfs has for enum ib_port_phys_state, by number.
var physStates = [...]string{
	1: "Sleep", 2: "Polling", 3: "Disabled", 4: "PortConfigurationTraining", 5: "LinkUp", 6: "LinkErrorRecovery", 7: "Phy Test",
}

// nameOf returns the name of n in a table, or the number.
func nameOf(table []string, n uint64) string {
	if n < uint64(len(table)) && table[n] != "" {
		return table[n]
	}
	return strconv.FormatUint(n, 10)
}

// A Port is a port of a device.
type Port struct {
	Number    int        `json:"number"`
	State     string     `json:"state"`
	Physical  string     `json:"physical_state"`
	LinkLayer string     `json:"link_layer"`
	Rate      string     `json:"rate"`
	LID       string     `json:"lid,omitempty"` // InfiniBand
	Netdev    *Netdev    `json:"netdev"`        // the network interface; nil if it is not known
	GIDs      []GID      `json:"gids"`
	Choice    *GIDChoice `json:"choice"` // nil if no GID can be used
	MTU       int        `json:"mtu"`    // of RDMA packets; 0 if it is not known
	MaxMTU    int        `json:"max_mtu"`

	defaultType string // of GIDs, by rdma_cm's configuration; "" if that has none
}

// Active reports whether messages can pass.
func (p *Port) Active() bool { return p.State == stateActive || p.State == "ACTIVE_DEFER" }

// protocol returns what the port speaks. iwarp is a property of its device.
func (p *Port) protocol(iwarp bool) string {
	switch {
	case iwarp:
		return ProtocolIWARP
	case p.LinkLayer == "Ethernet":
		return ProtocolRoCE
	case p.LinkLayer == "InfiniBand":
		return ProtocolIB
	}
	return ""
}

// examinePort reads the port of d whose directory is dir.
func examinePort(t *tree, dir, number string, d *Device, iwarp bool) (p Port, ok bool) {
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil {
		return p, false
	}
	p = Port{
		Number: int(n), State: afterNumber(t.text(dir + "/state")), Physical: afterNumber(t.text(dir + "/phys_state")),
		LinkLayer: t.text(dir + "/link_layer"), Rate: t.text(dir + "/rate"),
	}
	p.defaultType = t.text(path.Join("/sys/kernel/config/rdma_cm", d.Name, "ports", number, "default_roce_mode"))
	if p.protocol(iwarp) == ProtocolIB {
		p.LID = t.text(dir + "/lid")
	}
	p.GIDs = examineGIDs(t, dir)
	for _, g := range p.GIDs {
		if g.Netdev != "" && p.Netdev == nil {
			p.Netdev = examineNetdev(t, g.Netdev)
		}
	}
	if p.Netdev == nil && d.parent != "" {
		p.Netdev = examineNetdev(t, d.parent)
	}
	p.choose(iwarp)
	return p, true
}

// afterNumber returns the word of a file such as state, which contains "4: ACTIVE".
func afterNumber(s string) string {
	if _, word, ok := strings.Cut(s, ":"); ok {
		return strings.TrimSpace(word)
	}
	return s
}

// complete takes from netlink what sysfs does not have.
func (p *Port) complete(t *tree, n nlPort, iwarp bool) {
	if p.Netdev == nil && n.netdev != "" {
		p.Netdev = examineNetdev(t, n.netdev)
	}
	if p.State == "" && n.state != 0 {
		p.State = nameOf(portStates[:], n.state)
	}
	if p.Physical == "" && n.physical != 0 {
		p.Physical = nameOf(physStates[:], n.physical)
	}
	p.choose(iwarp)
}
