package status

import "testing"

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"tcpframe: dial tcp 10.1.0.5:2049: connect: connection refused":                              "dial tcp 10.1.0.5:2049: connect: connection refused",
		"rdmaside: iwarp: dial tcp 10.1.0.5:20049: i/o timeout":                                      "dial tcp 10.1.0.5:20049: i/o timeout",
		"proxy: listener nfs: tcpframe: listen tcp: address already in use\nproxy/reach: no address": "listener nfs: listen tcp: address already in use\nno address",
		"site.yaml:3: upstreams[0].iwarp: write settings, not 3":                                     "site.yaml:3: upstreams[0].iwarp: write settings, not 3",
		"rdmaside: iwarp: closed": "closed",
		"":                        "",
	} {
		if got := Plain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	d := Document{Upstreams: []Upstream{{LastError: "proxy: a", Endpoints: []Endpoint{{Reason: "pool: b; iwarp: c"}}, Connections: []Connection{{LastError: "ulb/nfs: d"}}}}}
	d.PlainErrors()
	u := &d.Upstreams[0]
	if u.LastError != "a" || u.Endpoints[0].Reason != "pool: b; c" || u.Connections[0].LastError != "d" {
		t.Errorf("%+v", u)
	}
}
