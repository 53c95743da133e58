package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/rdmabridge/rdmabridge/configs"
)

// printRoutes prints where the Calls of each listener go, as a tree: listeners, what they route, upstreams.
func printRoutes(w io.Writer, c *configs.Config) {
	upstreams := make(map[string]string)
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		upstreams[u.Name] = fmt.Sprintf("%s, %s %s", u.Name, u.Transport, strings.Join(u.Endpoints, " "))
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		var branches [][2]string // what goes, and where
		for n, r := range l.Rules {
			if r.Action == configs.ActionUpstream && r.DryRun != configs.On {
				branches = append(branches, [2]string{strings.TrimSpace(fmt.Sprintf("rules[%d] %s", n, r.Name)), upstreams[r.Upstream]})
			}
		}
		for _, r := range l.Routes {
			what := string(r.Program)
			if len(r.Versions) > 0 {
				what += " " + strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Versions), " ", ", "), "[]")
			}
			branches = append(branches, [2]string{what, upstreams[r.Upstream]})
		}
		rest := "all"
		if len(branches) > 0 {
			rest = "all else"
		}
		to := "refused: PROG_UNAVAIL"
		if l.Upstream != "" {
			to = upstreams[l.Upstream]
		}
		branches = append(branches, [2]string{rest, to})
		width := 0
		for _, b := range branches {
			width = max(width, len(b[0]))
		}
		fmt.Fprintf(w, "%s, %s %s\n", l.Name, l.Transport, l.Address)
		for _, b := range branches {
			fmt.Fprintf(w, "  %-*s -> %s\n", width, b[0], b[1])
		}
	}
}
