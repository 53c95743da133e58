package doctor

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Print writes the report as text for people.
func (r *Report) Print(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s, kernel %s\n", r.Build, cmp.Or(r.Host.Kernel, "unknown"))
	r.Host.printDevices(b)
	r.printLimits(b)
	r.printEndpoints(b)
	r.Findings.print(b)
	return b.Flush()
}

func (h *Host) printDevices(b *bufio.Writer) {
	fmt.Fprintf(b, "\nDevices\n")
	if len(h.Devices) == 0 {
		fmt.Fprintf(b, "  none\n")
	}
	for i := range h.Devices {
		d := &h.Devices[i]
		fmt.Fprintf(b, "  %s: %s, driver %s, firmware %s, file %s\n", d.Name, cmp.Or(d.Protocol, "unknown protocol"),
			cmp.Or(d.Driver, "unknown"), cmp.Or(d.Firmware, "unknown"), cmp.Or(d.File, "none"))
		if l := d.Limits; l != nil {
			fmt.Fprintf(b, "    limits: max_qp %d, max_qp_wr %d, max_cq %d, max_cqe %d, max_sge %d, max_sge_rd %d, max_mr %d, max_mr_size %s, max_mw %d, max_qp_rd_atom %d, max_qp_init_rd_atom %d\n",
				l.QueuePairs, l.WorkRequests, l.CompletionQueues, l.Completions, l.Parts, l.ReadParts, l.Regions, l.RegionSize.octets(), l.Windows, l.ReadsIn, l.ReadsOut)
		}
		if len(d.InUse) > 0 {
			var used []string
			for _, kind := range slices.Sorted(maps.Keys(d.InUse)) {
				used = append(used, fmt.Sprintf("%s %d", kind, d.InUse[kind]))
			}
			fmt.Fprintf(b, "    in use: %s\n", strings.Join(used, ", "))
		}
		for j := range d.Ports {
			d.Ports[j].print(b, d.Protocol == ProtocolIWARP)
		}
	}
	for _, a := range h.Adapters {
		if a.Device == "" {
			fmt.Fprintf(b, "  %s: driver %s, no RDMA device\n", a.Netdev, a.Driver)
		}
	}
}

func (p *Port) print(b *bufio.Writer, iwarp bool) {
	fmt.Fprintf(b, "    port %d: %s, %s, %s, %s", p.Number, cmp.Or(p.State, "unknown state"), cmp.Or(p.Physical, "unknown"), p.LinkLayer, p.Rate)
	if p.LID != "" {
		fmt.Fprintf(b, ", LID %s", p.LID)
	}
	if p.Netdev != nil {
		fmt.Fprintf(b, ", %s is %s with MTU %d", p.Netdev.Name, p.Netdev.State, p.Netdev.MTU)
	}
	if p.MTU > 0 && !iwarp {
		fmt.Fprintf(b, ", RDMA MTU %d", p.MTU)
	}
	fmt.Fprintf(b, "\n")
	if iwarp {
		fmt.Fprintf(b, "      GIDs have no part in iWARP, which connects by IP address alone\n")
		return
	}
	for _, g := range p.GIDs {
		fmt.Fprintf(b, "      GID %d: %s, %s", g.Index, g.IP(), g.Type)
		if g.Netdev != "" {
			fmt.Fprintf(b, ", %s", g.Netdev)
		}
		if p.Choice != nil && p.Choice.Index == g.Index {
			fmt.Fprintf(b, " <- %s", p.Choice.Why)
		}
		fmt.Fprintf(b, "\n")
	}
	if len(p.GIDs) == 0 {
		fmt.Fprintf(b, "      the port has no GID\n")
	}
}

func (r *Report) printLimits(b *bufio.Writer) {
	p := &r.Host.Process
	fmt.Fprintf(b, "\nLimits\n")
	if p.known {
		fmt.Fprintf(b, "  locked memory: %s, at most %s; %s registered; CAP_IPC_LOCK %s\n",
			p.LockedMemory.Soft.octets(), p.LockedMemory.Hard.octets(), size(p.Pinned), yesNo(p.can(capIPCLock)))
		fmt.Fprintf(b, "  descriptors: %s, at most %s\n", p.Descriptors.Soft, p.Descriptors.Hard)
	}
	for _, m := range r.Host.Modules {
		if !m.Loaded {
			fmt.Fprintf(b, "  module %s: not loaded\n", m.Name)
		}
	}
	for _, l := range r.Host.Cgroups {
		fmt.Fprintf(b, "  %s: %s hca_handle=%s hca_object=%s\n", l.Path, l.Device, l.Handles, l.Objects)
	}
}

func yesNo(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func (r *Report) printEndpoints(b *bufio.Writer) {
	if len(r.Endpoints) == 0 {
		return
	}
	fmt.Fprintf(b, "\nEndpoints\n")
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		fmt.Fprintf(b, "  %s %s: %s", e.Upstream, e.Address, e.Transport)
		if e.Provider != "" {
			fmt.Fprintf(b, " by %s", e.Provider)
		}
		if e.TLS {
			fmt.Fprintf(b, " with TLS")
		}
		if !e.Connected {
			fmt.Fprintf(b, ", no connection\n")
			continue
		}
		fmt.Fprintf(b, ", connected in %.1f ms from %s\n", e.Setup, e.Local)
		for _, a := range e.Answers {
			fmt.Fprintf(b, "    NULL of %s: %s in %.1f ms\n", a.Program, a.Answer, a.Time)
		}
		if e.Transport != "rdma" {
			continue
		}
		if p := e.PrivateData; p != nil {
			fmt.Fprintf(b, "    private data %s: sends %d, receives %d, remote invalidation %s\n", p.Hex, p.SendSize, p.ReceiveSize, yesNo(p.RemoteInvalidation))
		} else {
			fmt.Fprintf(b, "    no private data of RFC 8797\n")
		}
		fmt.Fprintf(b, "    inline thresholds %d for Calls and %d for Replies, %d credits\n", e.CallInline, e.ReplyInline, e.Credits)
	}
}

func (fs Findings) print(b *bufio.Writer) {
	fmt.Fprintf(b, "\nFindings\n")
	if len(fs) == 0 {
		fmt.Fprintf(b, "  none\n")
	}
	for i := range fs {
		f := &fs[i]
		fmt.Fprintf(b, "  %s %s: %s: %s\n", f.Severity, f.Code, f.Subject, f.Text)
		for _, line := range f.Fix {
			fmt.Fprintf(b, "      %s\n", line)
		}
	}
}
