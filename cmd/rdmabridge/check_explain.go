package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// An explainedClient is the client that check --explain, or explain --listener, is about.
type explainedClient struct {
	client   string   // address, or address and port; "" where the capture says it
	proxy    string   // the proxy that it comes through; "" for none
	identity []string // names in its certificate
}

// parse returns the client as package rules has it. flag is the flag that names it.
func (x *explainedClient) parse(flag string) (*rules.Client, error) {
	c, err := &rules.Client{}, error(nil)
	if x.client != "" {
		if c, err = rules.ParseClient(x.client); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
	}
	if x.proxy != "" {
		if c.Proxy, err = netip.ParseAddr(x.proxy); err != nil {
			return nil, fmt.Errorf("--proxy: %q is not an address; write one such as 10.0.0.2", x.proxy)
		}
	}
	if len(x.identity) > 0 {
		c.Identity = &tlsconf.Identity{}
		for _, n := range x.identity {
			if a, err := netip.ParseAddr(n); err == nil {
				c.Identity.IPs = append(c.Identity.IPs, a.Unmap())
			} else if strings.Contains(n, ":") {
				c.Identity.URIs = append(c.Identity.URIs, n)
			} else {
				c.Identity.DNS = append(c.Identity.DNS, n)
			}
		}
	}
	return c, nil
}

// explainClient says what the listeners of c do with a client: whether it may connect, and which rule
// matches which of its Calls.
func explainClient(w io.Writer, c *configs.Config, x *explainedClient) error {
	client, err := x.parse("--explain")
	if err != nil {
		return err
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		fmt.Fprintf(w, "listener %s, %s, %s: client %s\n", l.Name, l.Transport, l.Address, x.client)
		if why := refusedAtConnect(l, client); why != "" {
			fmt.Fprintf(w, "  refused when it connects: %s\n", why)
			continue
		}
		all, err := translate.Rules(l)
		if err != nil {
			return err
		}
		s, err := rules.Compile(all)
		if err != nil {
			return err
		}
		decided := false
		for n, v := range s.ExplainClient(client) {
			fmt.Fprintf(w, "  rules[%d] %s: ", n, v.Rule.Name)
			switch {
			case v.Fails != "":
				fmt.Fprintf(w, "never matches: %s\n", v.Fails)
			case v.Matches():
				fmt.Fprintf(w, "matches all Calls: %s\n", v.Rule.Effect())
				decided = v.Rule.Decides()
			default:
				fmt.Fprintf(w, "matches Calls %s: %s\n", strings.Join(v.Asks, ", "), v.Rule.Effect())
			}
		}
		if !decided {
			fmt.Fprintln(w, "  no rule matches the other Calls: allow")
		}
		if m := l.Squash.Mode; m != configs.SquashOff {
			fmt.Fprintf(w, "  squash: %s, to user %d and group %d, unless a rule says otherwise\n", m, l.Squash.UID, l.Squash.GID)
		}
	}
	return nil
}

// refusedAtConnect says why l does not admit a client; "" if it does. Limits and TLS are another matter.
func refusedAtConnect(l *configs.Listener, c *rules.Client) string {
	allowed := len(l.Allow) == 0
	for _, p := range l.Allow {
		allowed = allowed || p.Contains(c.Address)
	}
	switch {
	case !allowed:
		return "its address is not in allow"
	case l.Privileged == configs.PrivilegedRequired && c.Port == 0:
		return "privileged is required, and the port is not known; give it, as in " + netip.AddrPortFrom(c.Address, 800).String()
	case l.Privileged == configs.PrivilegedRequired && c.Port >= 1024:
		return fmt.Sprintf("privileged is required, and its port is %d", c.Port)
	}
	return ""
}
