package configs

import "slices"

// bounds are what the checks of settings accept. A report collects them from the checks themselves, so that no
// second list of words can differ from the first. Paths have no indices.
type bounds struct {
	allowed map[string][]string
	most    map[string]int
}

func (b *bounds) words(path string, words []string) {
	if b != nil {
		path = index.ReplaceAllString(path, "")
		for _, w := range words {
			if !slices.Contains(b.allowed[path], w) {
				b.allowed[path] = append(b.allowed[path], w)
			}
		}
	}
}

func (b *bounds) maximum(path string, most int) {
	if b != nil {
		path = index.ReplaceAllString(path, "")
		b.most[path] = max(b.most[path], most)
	}
}

// collectBounds checks a configuration that has one of everything.
func collectBounds() *bounds {
	tls := ListenerTLS{Mode: TLSRequired}
	c := &Config{
		Listeners: []Listener{
			{Transport: TransportTCP, TLS: tls, Rules: []Rule{{Flavors: []string{FlavorSys}, Action: ActionDeny}}, Weights: make([]Weight, 1), Routes: make([]Route, 1)},
			{Transport: TransportRDMA},
			{Transport: TransportRDMA, Provider: ProviderIBVerbs},
		},
		Upstreams: []Upstream{
			{Transport: TransportTCP, TLS: UpstreamTLS{Mode: TLSRequired}, Failover: On},
			{Transport: TransportRDMA},
			{Transport: TransportRDMA, Provider: ProviderIBVerbs},
		},
		Tenants: make([]Tenant, 1),
	}
	c.setDefaults()
	r := &report{bounds: &bounds{allowed: make(map[string][]string), most: make(map[string]int)}}
	c.validate(Known{}, r)
	b := r.bounds
	b.words("listeners.provider", []string{ProviderIWARP, ProviderIBVerbs}) // which of them a build has differs
	b.words("upstreams.provider", []string{ProviderIWARP, ProviderIBVerbs})
	return b
}
