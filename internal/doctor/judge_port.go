package doctor

import "fmt"

// judgePort reports what is wrong with a port of d.
func (d *Device) judgePort(p *Port, n Need, fs *Findings) {
	subject := fmt.Sprintf("%s port %d", d.Name, p.Number)
	if !p.Active() {
		d.judgeInactive(p, subject, n, fs)
		return
	}
	if d.Protocol != ProtocolRoCE {
		return
	}
	d.judgeGIDs(p, subject, n, fs)
	if p.Netdev != nil && p.Netdev.MTU > 0 && p.MTU > 0 && p.MTU < 4096 {
		fs.Add("mtu", Note, subject,
			fmt.Sprintf("RDMA packets carry %d octets, because the MTU of %s is %d. With an MTU of 4200 or more on all hosts and switches of the path they carry 4096.", p.MTU, p.Netdev.Name, p.Netdev.MTU),
			"ip link set "+shellWord(p.Netdev.Name)+" mtu 9000")
	}
}

// judgeInactive reports a port that is down, or waits for a subnet manager.
func (d *Device) judgeInactive(p *Port, subject string, n Need, fs *Findings) {
	// Other ports may do the work, so that this one is no error: no-active-port says when
	// there are none.
	severity := Warning
	if n.Configured && !n.Verbs {
		severity = Note
	}
	if d.Protocol == ProtocolIB && (p.State == stateInit || p.State == stateArmed) {
		fs.Add("port-not-managed", severity, subject,
			fmt.Sprintf("The link is up and the port is in state %s: it waits for a subnet manager, which runs on a switch or on a host.", p.State),
			"sminfo", "systemctl enable --now opensm   # on one host of the subnet, if no switch has one")
		return
	}
	state := p.State
	if state == "" {
		state = "unknown"
	}
	text := fmt.Sprintf("The port is not active: its state is %s and its physical state %s.", state, p.Physical)
	if p.Netdev == nil {
		fs.Add("port-down", severity, subject, text+" Look at the cable and at the switch.", "rdma link show", "ibstat "+shellWord(d.Name))
		return
	}
	text += fmt.Sprintf(" The state of its network interface %s is %s.", p.Netdev.Name, p.Netdev.State)
	fs.Add("port-down", severity, subject, text, "ip link set "+shellWord(p.Netdev.Name)+" up", "rdma link show")
}

// judgeGIDs reports what keeps connections from an active RoCE port, or from RoCE v2.
func (d *Device) judgeGIDs(p *Port, subject string, n Need, fs *Findings) {
	netdev := "DEV"
	if p.Netdev != nil {
		netdev = p.Netdev.Name
	}
	routable := false
	for _, g := range p.GIDs {
		routable = routable || !g.IP().IsLinkLocalUnicast()
	}
	if !routable {
		fs.Add("gid-none", n.severity(), subject,
			fmt.Sprintf("The port has no GID of an IP address, because its network interface %s has no address but link-local ones. Connections need one.", netdev),
			"ip addr add ADDRESS/PREFIX dev "+shellWord(netdev))
		return
	}
	if p.Choice == nil {
		return
	}
	for _, g := range p.GIDs {
		if g.Index == p.Choice.Index && g.Type == gidRoCE1 {
			dir := "/sys/kernel/config/rdma_cm/" + d.Name
			fs.Add("gid-roce-v1", Warning, subject,
				fmt.Sprintf("Connections would use GID %d, which is of RoCE v1: routers do not forward it, and a peer that expects RoCE v2 does not answer.", g.Index),
				"mount -t configfs none /sys/kernel/config 2> /dev/null; mkdir -p "+shellWord(dir),
				fmt.Sprintf("echo 'RoCE v2' > %s", shellWord(fmt.Sprintf("%s/ports/%d/default_roce_mode", dir, p.Number))))
		}
	}
}
