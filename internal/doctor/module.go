package doctor

import "strings"

// A Module is a part of the kernel that RDMA in user space needs.
type Module struct {
	Name   string `json:"name"`
	Loaded bool   `json:"loaded"` // or built in
	For    string `json:"for"`
}

// modules are the modules that every provider over verbs needs.
var modules = []Module{
	{Name: "ib_core", For: "RDMA devices"},
	{Name: "ib_uverbs", For: "RDMA devices in user space"},
	{Name: "rdma_cm", For: "connections by IP address"},
	{Name: "rdma_ucm", For: "connections by IP address in user space"},
}

// examineModules says which modules are loaded or built in.
func examineModules(t *tree) []Module {
	builtin := map[string]bool{}
	if version := t.text("/proc/sys/kernel/osrelease"); version != "" && !strings.Contains(version, "/") {
		if b, err := t.read("/lib/modules/" + version + "/modules.builtin"); err == nil {
			for line := range strings.Lines(string(b)) {
				name := strings.TrimSuffix(strings.TrimSpace(line[strings.LastIndexByte(line, '/')+1:]), ".ko")
				builtin[strings.ReplaceAll(name, "-", "_")] = true
			}
		}
	}
	found := make([]Module, len(modules))
	for i, m := range modules {
		m.Loaded = t.exists("/sys/module/"+m.Name) || builtin[m.Name]
		found[i] = m
	}
	return found
}
