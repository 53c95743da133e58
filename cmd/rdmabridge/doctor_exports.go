package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// judgeExports asks storage for the exports that rules of c name.
func judgeExports(ctx context.Context, c *configs.Config, found *doctor.Findings) {
	for i := range c.Listeners {
		l := &c.Listeners[i]
		x := nfs.NewExports(l.RuleExports())
		if len(x.Paths()) == 0 {
			continue
		}
		const deny = "Rules of listener %s that deny match every Call there."
		roots, asked := make(map[string][][]byte), true
		for _, s := range translate.Storage(c, l) {
			all, err := s.Roots(ctx, x.Paths())
			if err != nil {
				asked = false
				found.Add("exports-unknown", doctor.Error, "upstream "+s.Name, fmt.Sprintf("The storage does not say what its exports are: %v. "+deny, err, l.Name),
					"showmount -e "+s.Hosts[0]+"   # must list the exports")
			}
			for p, h := range all {
				roots[p] = append(roots[p], h)
			}
		}
		if formless := x.Know(roots); len(formless) > 0 {
			found.Add("exports-formless", doctor.Error, "listener "+l.Name, fmt.Sprintf("The storage's handles do not say which export they are in (%s). "+deny, strings.Join(formless, ", "), l.Name))
		}
		if !asked {
			continue
		}
		for _, p := range x.Missing(roots) {
			found.Add("exports-missing", doctor.Error, "listener "+l.Name, fmt.Sprintf("Rules name %s, which the storage does not export to this host.", p),
				"cat /etc/exports   # on the storage")
		}
	}
}
