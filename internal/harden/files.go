package harden

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

const (
	readFile  = ll.AccessFSReadFile
	readDir   = readFile | ll.AccessFSReadDir
	writeDir  = readDir | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRemoveFile | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeDir
	deviceDir = readDir | ll.AccessFSWriteFile | ll.AccessFSIoctlDev
	execute   = readFile | ll.AccessFSExecute
)

// errVerbs is why the files of a process with RDMA devices are not restricted. Each thread applies a ruleset by
// itself and has credentials of its own from then on. The kernel's rdma_cm refuses commands with EACCES
// unless the thread that gives them has the very credentials with which its file was opened.
var errVerbs = errors.New("each thread would have credentials of its own, and RDMA devices take commands only from threads that share them")

// restrictFiles makes everything but n unreachable. Files that are open stay so. Connections, to Unix
// sockets too, are not restricted.
func restrictFiles(n *Needs) error {
	if n.Verbs {
		return errVerbs
	}
	version, err := ll.LandlockGetABIVersion()
	if err != nil || version < 1 {
		return errors.New("the kernel has no Landlock, or it is off")
	}
	var rules []landlock.Rule
	add := func(access landlock.AccessFSSet, path string) {
		info, err := os.Stat(path)
		if err != nil {
			return
		}
		if !info.IsDir() {
			access &= readFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSExecute | ll.AccessFSIoctlDev
		}
		rules = append(rules, landlock.PathAccess(access, path).IgnoreIfMissing())
	}
	for _, path := range n.Read {
		add(readDir, path)
	}
	for _, path := range n.Write {
		add(writeDir, existing(path))
	}
	for _, path := range n.Devices {
		add(deviceDir, existing(path))
	}
	if n.Program != "" {
		add(execute, filepath.Dir(n.Program)) // the file may be replaced
		if loader := interpreter("/proc/self/exe"); loader != "" {
			add(execute, loader)
		}
	}
	err = landlock.V5.BestEffort().RestrictPaths(rules...)
	if errors.Is(err, syscall.E2BIG) {
		return nil // the restrictions of the processes that led to this one fill the kernel's table
	}
	return err
}

// interpreter returns the program that the kernel starts to load the shared objects of another, or "".
func interpreter(program string) string {
	f, err := elf.Open(program)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			path := make([]byte, min(p.Filesz, 4096))
			if _, err := p.ReadAt(path, 0); err != nil {
				return ""
			}
			return strings.TrimRight(string(path), "\x00")
		}
	}
	return ""
}
