package nfsmount

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

const (
	pause   = 200 * time.Millisecond // before a mount looks again whether the storage is there
	attempt = 5 * time.Second        // how long it tries at least: a bridge starts, and connects
)

// Mount mounts, and returns the version of NFS. It tries for as long as the option retry says.
func (r *Request) Mount(ctx context.Context, h *Host) (version string, err error) {
	if info, err := os.Stat(r.Dir); err != nil {
		return "", failf(Failure, "mount point %s does not exist; make the directory, or name another", r.Dir)
	} else if !info.IsDir() {
		return "", failf(Failure, "mount point %s is not a directory; name a directory", r.Dir)
	}
	if r.remount {
		if err := h.Mount("", r.Dir, "", r.flags, ""); err != nil {
			return "", failf(Failure, "cannot change the mount at %s: %v", r.Dir, err)
		}
		return "", nil
	}
	within := max(r.retry, attempt)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var why error // why not yet
	for {
		port, e := r.find(ctx, h)
		if e == nil {
			version, e = r.mount(ctx, h, port)
		}
		var final *Error
		if e == nil || errors.As(e, &final) {
			return version, e
		}
		if ctx.Err() == nil || why == nil {
			why = e
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return "", failf(Failure, "interrupted: %v", why)
			}
			return "", failf(Failure, "%s cannot be mounted within %v (retry=%d): %v", r.Source, within, int(r.retry.Minutes()), why)
		case <-time.After(pause):
		}
	}
}

// find returns the port of the bridge once it is connected to the storage. It starts the bridge if there is none. An Error
// is final.
func (r *Request) find(ctx context.Context, h *Host) (port uint16, err error) {
	if _, err := r.addresses(ctx, h); err != nil {
		return 0, err
	}
	d, err := r.document(ctx, h)
	if err != nil {
		return 0, err
	}
	if d.State != status.Ready {
		return 0, errors.New(notReady(d))
	}
	for i := range d.Listeners {
		if _, s, err := net.SplitHostPort(d.Listeners[i].Address); err == nil {
			n, err := strconv.ParseUint(s, 10, 16)
			return uint16(n), err
		}
	}
	return 0, errors.New("the bridge has no listener")
}

// document asks the bridge how it is, and starts it if there is none.
func (r *Request) document(ctx context.Context, h *Host) (*status.Document, error) {
	if d, err := h.Document(ctx, &r.Bridge); err == nil && d.State != status.Draining {
		return d, nil
	}
	unlock, err := h.Lock()
	if err != nil {
		return nil, failf(System, "cannot lock: %v", err)
	}
	defer unlock()
	if d, err := h.Document(ctx, &r.Bridge); err == nil {
		return d, nil // another mount has started it, or it drains
	}
	if err := r.Bridge.start(ctx, h); err != nil {
		return nil, err
	}
	d, err := h.Document(ctx, &r.Bridge)
	if err != nil {
		return nil, fmt.Errorf("%s does not answer", r.Bridge.Who(h))
	}
	return d, nil
}

// notReady says why a bridge is not ready.
func notReady(d *status.Document) string {
	for i := range d.Upstreams {
		if u := &d.Upstreams[i]; u.LastError != "" {
			return "the storage cannot be reached over RDMA: " + u.LastError
		}
	}
	return "the storage cannot be reached over RDMA: " + d.NotReady
}

// addresses returns those of the storage. A name that does not exist is final.
func (r *Request) addresses(ctx context.Context, h *Host) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(r.Bridge.host); err == nil {
		return []netip.Addr{a}, nil
	}
	all, err := h.Lookup(ctx, r.Bridge.host)
	var unknown *net.DNSError
	if errors.As(err, &unknown) && unknown.IsNotFound {
		return nil, failf(Failure, "there is no host %s: %v", r.Bridge.host, err)
	}
	for i := range all {
		all[i] = all[i].Unmap()
	}
	return all, err
}

// mount mounts from the bridge at a port. An Error is final.
func (r *Request) mount(ctx context.Context, h *Host, port uint16) (version string, err error) {
	for _, version := range r.versions {
		var mountd netip.AddrPort
		if version == "3" {
			if mountd, err = r.mountd(ctx, h); err != nil {
				return "", err
			}
		}
		data := r.kernelOptions(version, port, mountd)
		h.say("mount -i -t nfs -o", data, r.Source, r.Dir)
		if err = h.Mount(r.Source, r.Dir, "nfs", r.flags, data); err == nil {
			return version, nil
		}
		if !errors.Is(err, syscall.EPROTONOSUPPORT) {
			return "", r.explain(err, version, data)
		}
	}
	return "", failf(Failure, "the storage does not serve NFS %s", strings.Join(r.versions, ", "))
}

// mountd returns where the storage serves MOUNT.
func (r *Request) mountd(ctx context.Context, h *Host) (netip.AddrPort, error) {
	all, err := r.addresses(ctx, h)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, a := range all {
		if r.mountPort != 0 {
			return netip.AddrPortFrom(a, r.mountPort), nil
		}
		var port uint16
		if port, err = h.MountPort(ctx, a); err == nil && port != 0 {
			return netip.AddrPortFrom(a, port), nil
		}
	}
	const advice = "say where it is by the option mountport=PORT, or use NFSv4 (vers=4.2)"
	if err == nil {
		return netip.AddrPort{}, failf(Failure, "the rpcbind of %s knows no MOUNT, which NFSv3 needs: %s", r.Bridge.host, advice)
	}
	return netip.AddrPort{}, fmt.Errorf("the rpcbind of %s does not say where MOUNT is, which NFSv3 needs: %w; %s", r.Bridge.host, err, advice)
}

// temporary are the errors of mount(2) that mount.nfs tries again after.
var temporary = []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EAGAIN, syscall.ESTALE}

// explain says what an error of mount(2) means.
func (r *Request) explain(err error, version, data string) error {
	const root = "; NFSv4 calls the export with fsid=0 /"
	said := func(s string) string {
		if version == "3" {
			return ""
		}
		return s
	}
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return failf(Failure, "the storage denies access to %s: its export must allow the address of this host, with the option insecure%s", r.path, said(root))
	case errors.Is(err, syscall.ENOENT):
		return failf(Failure, "the storage has no %s%s", r.path, said(root))
	case errors.Is(err, syscall.EBUSY):
		return failf(Failure, "%s is busy, or %s is mounted there already", r.Dir, r.Source)
	case errors.Is(err, syscall.ENODEV):
		return failf(System, "this kernel has no NFS client: try modprobe nfs")
	case errors.Is(err, syscall.EINVAL):
		return failf(Failure, "the kernel refuses an option, and its log may say which (dmesg): %s", data)
	}
	for _, e := range temporary {
		if errors.Is(err, e) {
			return fmt.Errorf("mount: %w", err)
		}
	}
	return failf(Failure, "mounting %s at %s: %v", r.Source, r.Dir, err)
}

// Unmount ends the mount at dir, which is one from a bridge. Flags are those of umount2(2).
func Unmount(h *Host, dir string, flags int) error {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return failf(System, "%v", err)
	}
	table, err := h.MountTable()
	if err != nil {
		return failf(System, "cannot read which file systems are mounted: %v", err)
	}
	for _, m := range Mounts(table) {
		if m.Dir != absolute {
			continue
		}
		h.say("umount -i", absolute)
		err := h.Unmount(absolute, flags|unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, syscall.EBUSY):
			return failf(Failure, "%s is busy: a process has a file or its working directory there (fuser -vm %s)", dir, dir)
		case err != nil:
			return failf(Failure, "%s: %v", dir, err)
		}
		return nil
	}
	return failf(Failure, "%s is not mounted through a bridge of this host; name the directory of such a mount, which findmnt lists", dir)
}
