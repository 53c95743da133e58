package proxy_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// answeredSoon checks that all Calls are answered within the patience of tests.
func answeredSoon(t *testing.T, what string, replies []<-chan []byte) {
	t.Helper()
	late := time.After(testkit.Patience)
	for _, ch := range replies {
		select {
		case _, ok := <-ch:
			if !ok {
				t.Fatalf("%s: the connection has ended", what)
			}
		case <-late:
			t.Fatalf("%s: no Reply", what)
		}
	}
}

// TestTenantReloadInDebt: a client that waits because of its tenant's rate, and belongs to another tenant or to none
// after a reload, waits for the old rate no more, and for that of its new tenant from then on.
func TestTenantReloadInDebt(t *testing.T) {
	t.Parallel()
	slow := gates.Rate{Octets: 100} // a READ of 64 KiB takes eleven minutes
	greedy := []netip.Prefix{netip.MustParsePrefix("127.0.1.0/29")}
	for limit, limits := range map[string]admit.TenantOptions{
		"total_rate":   {Total: admit.TenantLimits{Rate: slow}},
		"address_rate": {Address: admit.TenantLimits{Rate: slow}},
	} {
		tenant := func(name string, clients []netip.Prefix) admit.TenantOptions {
			o := limits
			o.Name, o.Clients = name, clients
			return o
		}
		changed := admit.TenantOptions{Name: "greedy", Clients: greedy, Total: admit.TenantLimits{Rate: gates.Rate{Octets: 1000}}}
		for name, next := range map[string][]admit.TenantOptions{
			"removed": nil,
			"renamed": {tenant("new", greedy)},
			"moved":   {tenant("new", []netip.Prefix{netip.MustParsePrefix("127.0.1.1/32")}), tenant("greedy", greedy)},
			"changed": {changed},
		} {
			t.Run(limit+" "+name, func(t *testing.T) {
				eachTenantBench(t, admit.TenantOptions{}, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
					x.release()
					c, other := x.client(1), x.client(2)
					x.set(limits, admit.TenantOptions{})
					answeredSoon(t, "a READ", x.read(c, 10, 1, 64<<10))
					replies := x.read(c, 11, 1, 100)
					x.Eventually("the client waits", func() bool { return x.tenant("greedy").Waiting[limit] == 1 })
					if limit == "total_rate" && name == "moved" { // one that stays waits behind it
						answeredSoon(t, "a READ of another", x.read(other, 10, 1, 100))
						x.read(other, 11, 1, 100)
						x.Eventually("both wait", func() bool { return x.tenant("greedy").Waiting[limit] == 2 })
					}
					set := func(all []admit.TenantOptions) {
						t.Helper()
						if err := x.p.SetTenants(all); err != nil {
							t.Fatal(err)
						}
					}
					set(next)
					answeredSoon(t, "after the reload", replies)
					if name == "renamed" || name == "moved" {
						answeredSoon(t, "the next READ", x.read(c, 20, 1, 64<<10))
						replies = x.read(c, 21, 1, 100)
						x.Eventually("the client waits for its new tenant", func() bool { return x.tenant("new").Waiting[limit] == 1 })
						if name == "moved" && limit == "total_rate" {
							if n := x.tenant("greedy").Waiting[limit]; n != 1 {
								t.Errorf("%d clients wait at the old tenant, want the one that stays", n)
							}
						}
						set(nil)
						answeredSoon(t, "after another reload", replies)
					}
					if r, err := c.Call(proxytest.GetattrCall(30)); err != nil {
						t.Errorf("%x, %v", r, err)
					}
				})
			})
		}
	}
}
