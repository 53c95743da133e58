package doctor

import (
	"path"
	"strings"
)

// The protocols of devices.
const (
	ProtocolIB    = "InfiniBand"
	ProtocolRoCE  = "RoCE"
	ProtocolIWARP = "iWARP"
)

const (
	// maxDevices bounds the devices of a report.
	maxDevices = 64
	// maxPorts bounds the ports of a device.
	maxPorts = 16
)

// A Device is an RDMA device: an adapter, or one in software over a network interface.
type Device struct {
	Name     string  `json:"name"`
	Protocol string  `json:"protocol"` // InfiniBand, RoCE or iWARP; of a device with both, that of its first port
	Driver   string  `json:"driver"`   // of the adapter; siw and rxe for those in software
	Firmware string  `json:"firmware"`
	GUID     string  `json:"guid"`
	File     string  `json:"file"` // below /dev/infiniband, for programs; "" if there is none
	Ports    []Port  `json:"ports"`
	Limits   *Limits `json:"limits"` // nil if the kernel did not tell them

	// InUse counts the objects of all programs by kind: qp, mr, pd, ...
	InUse map[string]uint64 `json:"in_use"`

	software  bool   // without an adapter
	parent    string // the network interface of one in software, if sysfs knows it
	limitsErr error  // why Limits is nil
}

// classDir has a link for each RDMA device.
const classDir = "/sys/class/infiniband"

// examineDevices reads all devices from sysfs.
func examineDevices(t *tree) []Device {
	files := verbsFiles(t)
	var devices []Device
	for _, name := range t.list(classDir) {
		if len(devices) == maxDevices {
			break
		}
		devices = append(devices, examineDevice(t, name, files[name]))
	}
	return devices
}

func examineDevice(t *tree, name, file string) Device {
	dir := path.Join(classDir, name)
	d := Device{
		Name: printable(name), File: file, Driver: t.linkBase(dir + "/device/driver"), Ports: []Port{},
		Firmware: t.text(dir + "/fw_ver"), GUID: t.text(dir + "/node_guid"), parent: t.text(dir + "/parent"),
	}
	d.software = !t.exists(dir + "/device")
	nodeType, _, _ := strings.Cut(t.text(dir+"/node_type"), ":")
	iwarp := nodeType == "4" // RNIC
	if d.software && d.Driver == "" {
		d.Driver = "rxe"
		if iwarp {
			d.Driver = "siw"
		}
	}
	for _, number := range t.list(dir + "/ports") {
		if p, ok := examinePort(t, dir+"/ports/"+number, number, &d, iwarp); ok && len(d.Ports) < maxPorts {
			d.Ports = append(d.Ports, p)
		}
	}
	switch {
	case iwarp:
		d.Protocol = ProtocolIWARP
	case len(d.Ports) > 0:
		d.Protocol = d.Ports[0].protocol(iwarp)
	}
	return d
}

// verbsFiles returns the name of the file of each device below /dev/infiniband.
func verbsFiles(t *tree) map[string]string {
	const dir = "/sys/class/infiniband_verbs/"
	files := make(map[string]string)
	for _, name := range t.list(dir) {
		if device := t.text(dir + name + "/ibdev"); device != "" {
			files[device] = printable(name)
		}
	}
	return files
}

// active reports whether a port of d is active.
func (d *Device) active() bool {
	for i := range d.Ports {
		if d.Ports[i].Active() {
			return true
		}
	}
	return false
}
