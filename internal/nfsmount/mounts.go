package nfsmount

import (
	"strconv"
	"strings"
)

// A Mounted is an NFS mount from a bridge of this host.
type Mounted struct {
	Source, Dir string
	Port        uint16 // of the bridge
}

// Mounts returns the NFS mounts from bridges of this host that a table has, which is /proc/self/mountinfo.
func Mounts(table string) (all []Mounted) {
	for line := range strings.Lines(table) {
		// proc_pid_mountinfo(5): 36 35 98:0 /root /dir rw,noatime shared:1 - nfs4 10.1.0.5:/export rw,vers=4.2,...
		before, after, _ := strings.Cut(line, " - ")
		f, s := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(s) < 3 || s[0] != "nfs" && s[0] != "nfs4" {
			continue
		}
		m := Mounted{Source: unescape(s[1]), Dir: unescape(f[4])}
		here := false
		for option := range strings.SplitSeq(s[2], ",") {
			here = here || option == "addr="+loopback
			if v, ok := strings.CutPrefix(option, "port="); ok {
				n, _ := strconv.ParseUint(v, 10, 16) // the kernel writes no other
				m.Port = uint16(n)
			}
		}
		if here && m.Port != 0 {
			all = append(all, m)
		}
	}
	return all
}

// unescape undoes what the kernel does to white space and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(s)
}
