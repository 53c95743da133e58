package doctor

import (
	"path"
	"strconv"
	"strings"
)

// maxCgroupDepth bounds how many cgroups above a process's own are read.
const maxCgroupDepth = 32

// A CgroupLimit is a limit of the rdma controller that holds for this process.
type CgroupLimit struct {
	Path    string `json:"path"` // of the file rdma.max
	Device  string `json:"device"`
	Handles Amount `json:"hca_handle"` // open devices
	Objects Amount `json:"hca_object"` // queues, registrations and the like

	// In use by the cgroup, if rdma.current says so.
	HandlesUsed Amount `json:"hca_handle_used"`
	ObjectsUsed Amount `json:"hca_object_used"`
}

// examineCgroups reads the limits of the process's cgroup and of those above it, in version 1 and
// version 2 of cgroups. Lines without a limit are left out.
func examineCgroups(t *tree) []CgroupLimit {
	limits := []CgroupLimit{}
	own, err := t.read("/proc/self/cgroup")
	if err != nil {
		return limits
	}
	mounts, _ := t.read("/proc/self/mountinfo")
	for _, dir := range rdmaCgroups(string(own), string(mounts)) {
		for range maxCgroupDepth {
			limits = append(limits, cgroupLimits(t, dir.path)...)
			if dir.path == dir.mount || len(limits) >= maxDevices {
				break
			}
			dir.path = path.Dir(dir.path)
		}
	}
	return limits
}

// A cgroupDir is the directory of a cgroup, and that of the highest cgroup that this process sees.
type cgroupDir struct{ path, mount string }

// rdmaCgroups returns where the process's cgroups are that may have an rdma controller. own is
// /proc/self/cgroup, with lines such as 0::/user.slice (version 2) and 4:rdma:/docker/1 (version 1).
func rdmaCgroups(own, mountinfo string) (dirs []cgroupDir) {
	mounts := cgroupMounts(mountinfo)
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || len(dirs) == 2 {
			continue
		}
		second := f[0] == "0" && f[1] == ""
		if !second && !hasWord(f[1], "rdma") {
			continue
		}
		if m := mounts[second]; m.point != "" {
			dirs = append(dirs, cgroupDir{path.Join(m.point, m.below(f[2])), m.point})
		}
	}
	return dirs
}

// A mountPoint is a line of /proc/self/mountinfo: what is mounted where.
type mountPoint struct{ root, point string }

// below returns where a cgroup is below the mount point. A cgroup that is not in what is mounted there
// shows only the limits of the mount point.
func (m mountPoint) below(cgroup string) string {
	cgroup, root := path.Clean("/"+cgroup), path.Clean("/"+m.root)
	if root == "/" {
		return cgroup
	}
	if rest, ok := strings.CutPrefix(cgroup, root+"/"); ok {
		return rest
	}
	return ""
}

// cgroupMounts finds where cgroups are mounted: with true those of version 2, and with false those
// of version 1 that have the rdma controller.
//
//	30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
func cgroupMounts(mountinfo string) map[bool]mountPoint {
	mounts := make(map[bool]mountPoint)
	for line := range strings.Lines(mountinfo) {
		before, after, found := strings.Cut(line, " - ")
		b, a := strings.Fields(before), strings.Fields(after)
		if !found || len(b) < 5 || len(a) < 3 {
			continue
		}
		second := a[0] == "cgroup2"
		if _, have := mounts[second]; !have && (second || a[0] == "cgroup" && hasWord(a[2], "rdma")) {
			mounts[second] = mountPoint{b[3], path.Clean("/" + b[4])}
		}
	}
	return mounts
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// cgroupLimits reads the limits of one cgroup.
func cgroupLimits(t *tree, dir string) (limits []CgroupLimit) {
	b, err := t.read(dir + "/rdma.max")
	if err != nil {
		return nil
	}
	used := map[string]CgroupLimit{}
	if c, err := t.read(dir + "/rdma.current"); err == nil {
		for _, l := range parseCgroup(string(c)) {
			used[l.Device] = l
		}
	}
	for _, l := range parseCgroup(string(b)) {
		if l.Handles == noLimit && l.Objects == noLimit {
			continue
		}
		l.Path = printable(dir + "/rdma.max")
		l.HandlesUsed, l.ObjectsUsed = used[l.Device].Handles, used[l.Device].Objects
		limits = append(limits, l)
	}
	return limits
}

// parseCgroup parses rdma.max or rdma.current: lines such as
//
//	mlx5_0 hca_handle=2 hca_object=max
//
// Of an entry that is missing or not understood it says that there is no limit.
func parseCgroup(s string) (limits []CgroupLimit) {
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) == 0 || len(limits) == maxDevices {
			continue
		}
		l := CgroupLimit{Device: printable(f[0]), Handles: noLimit, Objects: noLimit}
		for _, entry := range f[1:] {
			key, value, _ := strings.Cut(entry, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue // max
			}
			switch key {
			case "hca_handle":
				l.Handles = Amount(n)
			case "hca_object":
				l.Objects = Amount(n)
			}
		}
		limits = append(limits, l)
	}
	return limits
}
