package translate

import (
	"os"
	"path/filepath"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/nlm"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
)

// NLM translates the settings of the lock manager of the bridge that has this identity.
func NLM(c *configs.NLM, bridge string) nlm.Options {
	return nlm.Options{
		Address: c.Address, Server: c.Server, ServerPort: uint16(c.ServerPort), Name: c.Name, State: LockDirectory(c),
		Key: identity.NewBridge(bridge), Mount: c.OffersMount(), Allow: Prefixes(c.Allow),
	}
}

// LockDirectory returns nlm.state, or "" if nothing is to be written.
func LockDirectory(c *configs.NLM) string {
	switch {
	case !c.Enabled(), c.InMemory():
		return ""
	case c.State != "":
		return c.State
	}
	// systemd.exec(5): the directories of StateDirectory, with colons between them.
	if dirs := filepath.SplitList(os.Getenv("STATE_DIRECTORY")); len(dirs) > 0 {
		return dirs[0]
	}
	return ""
}
