package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
)

// judgeLocks looks at what the lock manager of c needs: a directory that this process may write to, and the lock manager of
// the storage, which has its rpcbind at rpcbindPort.
func judgeLocks(ctx context.Context, c *configs.NLM, rpcbindPort int, found *doctor.Findings) {
	if !c.Enabled() {
		return
	}
	if dir := translate.LockDirectory(c); dir != "" {
		if err := unix.Access(existing(dir), unix.W_OK|unix.X_OK); err != nil {
			found.Add("nlm-state", doctor.Error, "nlm.state", fmt.Sprintf("This process may not write to %s: %v. A restart of the bridge would forget who has which locks.", dir, err),
				"install -d -o rdmabridge -m 700 "+dir)
		}
	}
	if err := reachLocks(ctx, c, rpcbindPort); err != nil {
		found.Add("nlm-server", doctor.Error, "nlm.server "+c.Server, fmt.Sprintf("The lock manager of the storage cannot be reached: %v. Clients of NFSv3 cannot lock.", err),
			"rpcinfo "+c.Server+"   # must list nlockmgr with tcp")
	}
}

// reachLocks connects to the lock manager of the storage.
func reachLocks(ctx context.Context, c *configs.NLM, rpcbindPort int) error {
	port := c.ServerPort
	if port == 0 {
		p, err := rpcbind.Ask(ctx, net.JoinHostPort(c.Server, strconv.Itoa(rpcbindPort)), oncrpc.ProgramNLM, 4)
		if err != nil {
			return fmt.Errorf("its rpcbind: %w", err)
		}
		if p == 0 {
			return errors.New("its rpcbind knows no NLM, version 4, over TCP")
		}
		port = int(p)
	}
	d := net.Dialer{Timeout: doctorLocks}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(c.Server, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return conn.Close()
}

// doctorLocks bounds how long doctor waits for a connection to the storage's lock manager.
const doctorLocks = 5 * time.Second

// existing returns dir, or the directory in which it, or a directory above it, would be made.
func existing(dir string) string {
	for {
		_, err := os.Stat(dir)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
