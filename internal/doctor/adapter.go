package doctor

// An Adapter is a network interface whose driver has a sibling for RDMA.
type Adapter struct {
	Netdev string `json:"netdev"`
	Driver string `json:"driver"` // of the network interface
	Module string `json:"module"` // of the RDMA device
	Device string `json:"device"` // the RDMA device; "" if there is none
}

// rdmaModules has the module of the RDMA devices by the driver of the network interface: the
// auxiliary drivers below drivers/infiniband/hw.
var rdmaModules = map[string]string{
	"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "mlx4_en": "mlx4_ib", "bnxt_en": "bnxt_re",
	"ice": "irdma", "i40e": "irdma", "cxgb4": "iw_cxgb4", "qede": "qedr", "hns3": "hns_roce_hw_v2", "mana": "mana_ib",
}

// examineAdapters finds the network interfaces whose adapters can do RDMA.
func examineAdapters(t *tree) []Adapter {
	adapters := []Adapter{}
	for _, name := range t.list("/sys/class/net") {
		dir := "/sys/class/net/" + name + "/device"
		driver := t.linkBase(dir + "/driver")
		module := rdmaModules[driver]
		if module == "" || len(adapters) == maxDevices {
			continue
		}
		a := Adapter{Netdev: printable(name), Driver: driver, Module: module}
		if devices := t.list(dir + "/infiniband"); len(devices) > 0 {
			a.Device = printable(devices[0])
		}
		adapters = append(adapters, a)
	}
	return adapters
}
