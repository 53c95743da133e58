package translate

import (
	"net"
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/exports"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// Storage returns who is asked for the exports that rules of l name: the storage of each upstream that l may send Calls
// of NFS to.
func Storage(c *configs.Config, l *configs.Listener) (all []exports.Storage) {
	var names []string
	other := true // Calls of NFS may go where those go that have no route
	for _, r := range l.Routes {
		if p, err := Known.ResolveProgram(r.Program); err == nil && p == oncrpc.ProgramNFS {
			names = append(names, r.Upstream)
			other = other && len(r.Versions) > 0
		}
	}
	if other && l.Upstream != "" {
		names = append(names, l.Upstream)
	}
	for i := range l.Rules {
		if u := l.Rules[i].Upstream; u != "" {
			names = append(names, u)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		i := slices.IndexFunc(c.Upstreams, func(u configs.Upstream) bool { return u.Name == name })
		if i < 0 {
			continue
		}
		u := &c.Upstreams[i]
		s := exports.Storage{Name: name, Port: uint16(u.Mount.Port), Paths: u.Mount.Paths}
		s.From, _ = netip.ParseAddr(u.Source.Address) // which configs has checked; "" is none
		if u.Mount.Server != "" {
			s.Hosts = []string{u.Mount.Server}
		} else {
			for _, e := range u.Endpoints {
				if host, _, err := net.SplitHostPort(e); err == nil && !slices.Contains(s.Hosts, host) {
					s.Hosts = append(s.Hosts, host)
				}
			}
		}
		all = append(all, s)
	}
	return all
}
