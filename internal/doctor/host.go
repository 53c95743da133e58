package doctor

import (
	"context"
	"errors"
	"fmt"
)

// A Host is what Examine found.
type Host struct {
	Kernel   string        `json:"kernel"`
	Process  Process       `json:"-"`
	Modules  []Module      `json:"modules"`
	Devices  []Device      `json:"devices"`
	Adapters []Adapter     `json:"adapters"`
	Cgroups  []CgroupLimit `json:"cgroup_limits"`

	cmFile     bool // /dev/infiniband/rdma_cm is there
	unshared   bool // devices belong to single network namespaces
	inventory  bool // RDMA netlink answered
	incomplete bool // the examination was given up
	found      Findings
}

// Sources says where Examine reads. The zero value reads nothing but files.
type Sources struct {
	// Inventory asks RDMA netlink; nil does not.
	Inventory func() (*Inventory, error)
	// Limits asks the driver of the device with a file below /dev/infiniband; nil does not.
	Limits func(file string) (*Limits, error)
}

// KernelSources asks this host's kernel.
var KernelSources = Sources{kernelInventory, deviceLimits}

// Examine reads the host whose files are below root, which is / except in tests. If ctx reaches its
// deadline first, the result is a Host that says what it waits for and has nothing else.
func Examine(ctx context.Context, root string, s Sources) (*Host, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	result := make(chan *Host, 1)
	go func() {
		defer t.close()
		result <- examine(t, s)
	}()
	select {
	case h := <-result:
		return h, nil
	case <-ctx.Done():
	}
	if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	h := &Host{incomplete: true, Modules: []Module{}, Devices: []Device{}, Adapters: []Adapter{}, Cgroups: []CgroupLimit{}}
	h.found.Add("slow", Error, t.reading(),
		"The kernel has not answered in time, so that nothing is known of this host's devices. The driver of an RDMA device may hang.",
		"dmesg | tail -50")
	return h, nil
}

// examine reads the host.
func examine(t *tree, s Sources) *Host {
	h := &Host{}
	h.Kernel = t.text("/proc/sys/kernel/osrelease")
	h.Process = examineProcess(t, &h.found)
	h.Modules = examineModules(t)
	h.Devices = examineDevices(t)
	h.Adapters = examineAdapters(t)
	h.Cgroups = examineCgroups(t)
	h.cmFile = t.exists(filesDir + "/rdma_cm")
	if s.Inventory != nil {
		h.complete(t, s.Inventory)
	}
	for i := range h.Devices {
		h.Devices[i].learn(t, s.Limits)
	}
	return h
}

// complete takes from RDMA netlink what sysfs does not have.
func (h *Host) complete(t *tree, ask func() (*Inventory, error)) {
	name := "RDMA netlink"
	t.now.Store(&name)
	v, err := ask()
	if err != nil {
		return // old kernels, and those without RDMA, have none
	}
	h.inventory, h.unshared = true, !v.shared
	for _, n := range v.devices {
		for i := range h.Devices {
			if h.Devices[i].Name == n.name {
				h.Devices[i].complete(t, n)
			}
		}
	}
}

// protocols has our names of protocols by netlink's.
var protocols = map[string]string{"ib": ProtocolIB, "opa": ProtocolIB, "roce": ProtocolRoCE, "iw": ProtocolIWARP}

// complete takes from netlink what sysfs does not have.
func (d *Device) complete(t *tree, n nlDevice) {
	if d.Protocol == "" {
		d.Protocol = protocols[n.protocol]
	}
	if d.Firmware == "" {
		d.Firmware = n.firmware
	}
	d.InUse = n.resources
	for _, np := range n.ports {
		for i := range d.Ports {
			if uint64(d.Ports[i].Number) == np.number {
				d.Ports[i].complete(t, np, d.Protocol == ProtocolIWARP)
			}
		}
	}
}

// learn asks the driver for the limits of d. ask may be nil.
func (d *Device) learn(t *tree, ask func(file string) (*Limits, error)) {
	for i := range d.Ports {
		// What the kernel derives itself, until the driver says more.
		if p := &d.Ports[i]; d.Protocol == ProtocolRoCE && p.Netdev != nil {
			p.MTU = roceMTU(p.Netdev.MTU)
		}
	}
	if ask == nil || d.File == "" {
		return
	}
	name := filesDir + "/" + d.File
	t.now.Store(&name)
	if d.Limits, d.limitsErr = ask(d.File); d.Limits == nil {
		return
	}
	for _, l := range d.Limits.ports {
		for i := range d.Ports {
			if p := &d.Ports[i]; p.Number == l.number {
				p.MTU, p.MaxMTU = l.mtu, l.maxMTU
			}
		}
	}
}
