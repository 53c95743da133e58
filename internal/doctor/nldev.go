package doctor

// What RDMA netlink is asked for: enum rdma_nldev_command and enum rdma_nldev_attr of
// rdma/rdma_netlink.h.
const (
	nldevClient = 5 << 10 // RDMA_NL_NLDEV, above the command

	nldevGet      = 1
	nldevPortGet  = 5
	nldevSysGet   = 6
	nldevResource = 9

	attrDevIndex      = 1
	attrDevName       = 2
	attrPortIndex     = 3
	attrFirmware      = 5
	attrPortState     = 12
	attrPortPhysical  = 13
	attrSummary       = 15
	attrSummaryEntry  = 16
	attrSummaryName   = 17
	attrSummaryNumber = 18
	attrNetdevName    = 51
	attrNetnsMode     = 66 // 1: all network namespaces share all devices
	attrProtocol      = 67
)

// An nlDevice is what RDMA netlink says of a device.
type nlDevice struct {
	index     uint32
	name      string
	firmware  string
	protocol  string // ib, roce, iw, opa, usnic
	ports     []nlPort
	resources map[string]uint64 // in use, by kind: qp, mr, pd, ...
}

// An nlPort is what RDMA netlink says of a port.
type nlPort struct {
	number, state, physical uint64
	netdev                  string
}

// An Inventory is what RDMA netlink says.
type Inventory struct {
	devices []nlDevice
	shared  bool // devices belong to all network namespaces
}

// An asker sends one request and returns the octets of all answers.
type asker func(request []byte) ([]byte, error)

const (
	nlRequestFlag = 1
	nlDumpFlag    = 0x300
)

// takeInventory asks for all devices and ports.
func takeInventory(ask asker) (*Inventory, error) {
	v := new(Inventory)
	answer, err := ask(nlRequest(nldevClient|nldevGet, nlRequestFlag|nlDumpFlag))
	if err != nil {
		return nil, err
	}
	if v.devices, err = parseNLDevices(answer); err != nil {
		return nil, err
	}
	for i := range v.devices {
		d := &v.devices[i]
		// A device may end at any moment. Its ports and resources are then not known.
		if answer, err = ask(nlRequest(nldevClient|nldevPortGet, nlRequestFlag|nlDumpFlag, [2]uint32{attrDevIndex, d.index})); err == nil {
			d.ports, _ = parseNLPorts(answer)
		}
		if answer, err = ask(nlRequest(nldevClient|nldevResource, nlRequestFlag, [2]uint32{attrDevIndex, d.index})); err == nil {
			d.resources = parseNLResources(answer)
		}
	}
	if answer, err = ask(nlRequest(nldevClient|nldevSysGet, nlRequestFlag)); err == nil {
		v.shared = parseNLShared(answer)
	}
	return v, nil
}

// parseNLDevices parses the answer to nldevGet.
func parseNLDevices(b []byte) (devices []nlDevice, err error) {
	_, err = nlMessages(b, func(_ uint16, body []byte) {
		var d nlDevice
		nlAttrs(body, func(kind uint16, v []byte) {
			switch kind {
			case attrDevIndex:
				d.index = uint32(nlNumber(v))
			case attrDevName:
				d.name = nlText(v)
			case attrFirmware:
				d.firmware = nlText(v)
			case attrProtocol:
				d.protocol = nlText(v)
			}
		})
		if d.name != "" && len(devices) < maxDevices {
			devices = append(devices, d)
		}
	})
	return devices, err
}

// parseNLPorts parses the answer to nldevPortGet.
func parseNLPorts(b []byte) (ports []nlPort, err error) {
	_, err = nlMessages(b, func(_ uint16, body []byte) {
		var p nlPort
		nlAttrs(body, func(kind uint16, v []byte) {
			switch kind {
			case attrPortIndex:
				p.number = nlNumber(v)
			case attrPortState:
				p.state = nlNumber(v)
			case attrPortPhysical:
				p.physical = nlNumber(v)
			case attrNetdevName:
				p.netdev = nlText(v)
			}
		})
		if p.number != 0 && len(ports) < maxPorts {
			ports = append(ports, p)
		}
	})
	return ports, err
}

// maxResources bounds the kinds of resources.
const maxResources = 32

// parseNLResources parses the answer to nldevResource: how many objects of each kind are in use.
func parseNLResources(b []byte) map[string]uint64 {
	used := make(map[string]uint64)
	_, _ = nlMessages(b, func(_ uint16, body []byte) {
		nlAttrs(body, func(kind uint16, summary []byte) {
			if kind != attrSummary {
				return
			}
			nlAttrs(summary, func(kind uint16, entry []byte) {
				if kind != attrSummaryEntry || len(used) == maxResources {
					return
				}
				var name string
				var n uint64
				nlAttrs(entry, func(kind uint16, v []byte) {
					switch kind {
					case attrSummaryName:
						name = nlText(v)
					case attrSummaryNumber:
						n = nlNumber(v)
					}
				})
				if name != "" {
					used[name] = n
				}
			})
		})
	})
	return used
}

// parseNLShared parses the answer to nldevSysGet.
func parseNLShared(b []byte) (shared bool) {
	_, _ = nlMessages(b, func(_ uint16, body []byte) {
		nlAttrs(body, func(kind uint16, v []byte) {
			if kind == attrNetnsMode {
				shared = nlNumber(v) == 1
			}
		})
	})
	return shared
}
