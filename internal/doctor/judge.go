package doctor

import (
	"fmt"
)

// Judge compares the host with what is needed.
func (h *Host) Judge(n Need) Findings {
	fs := append(Findings(nil), h.found...)
	if h.incomplete {
		return fs
	}
	h.judgeModules(n, &fs)
	h.judgeDevices(n, &fs)
	h.judgeAdapters(n, &fs)
	h.judgeLockedMemory(n, &fs)
	h.judgeCgroups(n, &fs)
	return fs
}

// judgeModules reports modules that are missing on a host with devices or with a need for them.
func (h *Host) judgeModules(n Need, fs *Findings) {
	if len(h.Devices) == 0 && !n.Verbs {
		return // no-device says what matters
	}
	for _, m := range h.Modules {
		if m.Loaded {
			continue
		}
		fs.Add("module", n.severity(), m.Name,
			fmt.Sprintf("The kernel module %s, for %s, is not loaded.", m.Name, m.For),
			"modprobe "+m.Name, fmt.Sprintf("echo %s > /etc/modules-load.d/%s.conf", m.Name, m.Name))
	}
}

func (h *Host) judgeDevices(n Need, fs *Findings) {
	if len(h.Devices) == 0 {
		h.judgeNoDevice(n, fs)
		return
	}
	active := false
	for i := range h.Devices {
		d := &h.Devices[i]
		active = active || d.active()
		d.judge(n, fs)
		for j := range d.Ports {
			d.judgePort(&d.Ports[j], n, fs)
		}
	}
	if !active {
		fs.addf("no-active-port", n.severity(), "RDMA devices", "No port of the %d RDMA devices is active, so that no provider over verbs can connect.", len(h.Devices))
	}
	if !h.cmFile {
		fs.Add("device-file", n.severity(), filesDir+"/rdma_cm",
			"The file is missing, without which programs cannot connect by IP address. In a container it must be passed in.",
			"modprobe rdma_ucm", "docker run --device=/dev/infiniband/rdma_cm ...")
	}
}

func (h *Host) judgeNoDevice(n Need, fs *Findings) {
	text := "This host has no RDMA device. The provider iwarp needs none."
	severity := Note
	if n.Verbs {
		severity, text = Error, "This host has no RDMA device, and the configuration has a provider that needs one."
	}
	if h.unshared {
		text += " The kernel gives each device to one network namespace (rdma system show): there may be one in another."
	}
	fs.Add("no-device", severity, "RDMA devices", text,
		"lspci | grep -iE 'mellanox|infiniband|ethernet'",
		"modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0   # RoCE in software, for tests")
}

// judge reports what is wrong with d besides its ports.
func (d *Device) judge(n Need, fs *Findings) {
	if d.File == "" {
		fs.Add("device-file", n.severity(), d.Name,
			fmt.Sprintf("There is no file below %s for the device, through which programs use it.", filesDir),
			"modprobe ib_uverbs")
		return
	}
	if d.limitsErr == nil {
		return
	}
	switch problem := limitsProblem(d.limitsErr); problem {
	case limitsOwnLibrary:
		fs.Add("limits-unknown", Note, d.Name,
			fmt.Sprintf("The driver %s tells its limits only to its own library (%v).", d.Driver, d.limitsErr),
			"ibv_devinfo -v -d "+shellWord(d.Name))
	case limitsFile:
		fs.Add("device-file", n.severity(), d.Name,
			fmt.Sprintf("This process cannot use the device: %v. The file must be there, and readable and writable for the bridge's user. In a container it must be passed in.", d.limitsErr),
			"ls -l "+filesDir, "docker run --device="+shellWord(filesDir+"/"+d.File)+" ...")
	case limitsCgroup:
		fs.Add("cgroup-rdma", n.severity(), d.Name,
			fmt.Sprintf("A cgroup does not let this process open the device: %v.", d.limitsErr),
			"cat /proc/self/cgroup", "grep . /sys/fs/cgroup/*/rdma.max")
	default:
		fs.addf("limits-unknown", Note, d.Name, "The limits of the device are not known: %v.", d.limitsErr)
	}
}

// judgeAdapters reports adapters that could do RDMA and have no device.
func (h *Host) judgeAdapters(n Need, fs *Findings) {
	severity := Note
	if n.Verbs && len(h.Devices) == 0 {
		severity = Warning
	}
	for _, a := range h.Adapters {
		if a.Device != "" {
			continue
		}
		fix := []string{"modprobe " + a.Module, "rdma link show", "dmesg | grep -iE " + shellWord(a.Module+"|"+a.Driver)}
		fs.Add("adapter-without-device", severity, a.Netdev,
			fmt.Sprintf("Adapters with the driver %s can do RDMA, with the module %s, and %s has no RDMA device.", a.Driver, a.Module, a.Netdev), fix...)
	}
}

func (h *Host) judgeCgroups(n Need, fs *Findings) {
	for _, l := range h.Cgroups {
		// A connection has a queue pair, completion queues and a channel; each device a
		// protection domain and registrations.
		const perConnection, perDevice = 4, 16
		severity, what := Note, "limits"
		switch {
		case l.Handles <= l.HandlesUsed || l.Objects <= l.ObjectsUsed:
			severity, what = n.severity(), "leaves nothing of"
		case n.Verbs && uint64(l.Objects-l.ObjectsUsed) < perDevice+perConnection*n.Connections:
			severity = Warning
		}
		fs.Add("cgroup-rdma", severity, l.Path,
			fmt.Sprintf("The cgroup %s what this process may use of %s: hca_handle is %s (%s in use), hca_object is %s (%s in use).",
				what, l.Device, l.Handles, l.HandlesUsed, l.Objects, l.ObjectsUsed),
			fmt.Sprintf("echo %s > %s", shellWord(l.Device+" hca_handle=max hca_object=max"), shellWord(l.Path)))
	}
}
