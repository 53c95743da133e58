package configs

import (
	"fmt"
	"path/filepath"
)

// A ListenerTLS is how the clients of a listener use RPC-with-TLS, RFC 9289.
type ListenerTLS struct {
	Mode        string     `mapstructure:"mode"`        // TLSOff, TLSOptional or TLSRequired
	Certificate string     `mapstructure:"certificate"` // path: PEM, with the certificates of its issuers behind it
	Key         string     `mapstructure:"key"`         // path: PEM; the default is Certificate
	Client      TLSClients `mapstructure:"client"`
}

// TLSClients is what a listener demands of its clients' certificates.
type TLSClients struct {
	Mode  string   `mapstructure:"mode"`  // TLSClientNone, TLSClientRequest or TLSClientRequire
	CA    string   `mapstructure:"ca"`    // path: PEM; who signs the certificates of clients
	CRL   string   `mapstructure:"crl"`   // path: PEM; which of them are revoked
	Names []string `mapstructure:"names"` // patterns of which a client must match one; empty: any name
}

// An UpstreamTLS is how the connections to an upstream use RPC-with-TLS.
type UpstreamTLS struct {
	Mode        string `mapstructure:"mode"`        // TLSOff, TLSOptional or TLSRequired
	CA          string `mapstructure:"ca"`          // path: PEM; who signs the certificates of servers; "": the CAs of the system
	CRL         string `mapstructure:"crl"`         // path: PEM; which certificates are revoked; needs CA
	Certificate string `mapstructure:"certificate"` // path: PEM; what servers are shown; "": nothing
	Key         string `mapstructure:"key"`         // path: PEM; the default is Certificate
	ServerName  string `mapstructure:"server_name"` // in the certificates of servers; "": the host of each endpoint
}

// A TLSBudget bounds the TLS handshakes of all listeners together, and those of all upstreams.
type TLSBudget struct {
	Handshakes int `mapstructure:"handshakes"` // being done at once
	Waiting    int `mapstructure:"waiting"`    // for their turn
}

const (
	maxHandshakes        = 1 << 16
	maxWaitingHandshakes = 1 << 20
)

func (t *TLSBudget) validate(r *report) {
	r.atMost("tls.handshakes", t.Handshakes, maxHandshakes)
	r.atMost("tls.waiting", t.Waiting, maxWaitingHandshakes)
}

// On reports whether there is TLS.
func (t *ListenerTLS) On() bool { return t.Mode == TLSOptional || t.Mode == TLSRequired }

// On reports whether there is TLS.
func (t *UpstreamTLS) On() bool { return t.Mode == TLSOptional || t.Mode == TLSRequired }

func (t *ListenerTLS) setDefaults() {
	fill(&t.Mode, TLSOff)
	if !t.On() {
		return
	}
	fill(&t.Key, t.Certificate)
	if t.Client.CA != "" {
		fill(&t.Client.Mode, TLSClientRequire)
	}
	fill(&t.Client.Mode, TLSClientNone)
}

func (t *UpstreamTLS) setDefaults() {
	fill(&t.Mode, TLSOff)
	if t.On() {
		fill(&t.Key, t.Certificate)
	}
}

// whatProtectsRDMA says what to do in place of TLS over RDMA.
const whatProtectsRDMA = "RPC-with-TLS is for tcp; what protects RDMA is a private network, IPsec or MACsec below it, or krb5p in NFS: see docs/tls.md; remove this setting"

// noTLS rejects the settings of TLS where there is RDMA.
func noTLS(path string, r *report) {
	if r.source.given(path) && !r.has(path) {
		r.addf(path, whatProtectsRDMA)
	}
}

func (t *ListenerTLS) validate(path string, k Known, r *report) {
	r.oneOf(path+".mode", t.Mode, TLSOff, TLSOptional, TLSRequired)
	if !t.On() {
		if !r.has(path + ".mode") {
			r.needs(path, "mode optional or required", "certificate", "key", "client")
		}
		return
	}
	r.required(path+".certificate", t.Certificate, "/etc/rdmabridge/tls.pem")
	c := &t.Client
	r.oneOf(path+".client.mode", c.Mode, TLSClientNone, TLSClientRequest, TLSClientRequire)
	if c.Mode == TLSClientNone {
		r.needs(path+".client", "mode request or require", "ca", "crl", "names")
	} else if c.CA == "" && !r.has(path+".client") {
		r.addf(path+".client.ca", "this setting is required; write the path of a PEM file with the CAs that sign the certificates of clients")
	}
	r.pair(path, t.Certificate, t.Key)
	r.absolute(path+".client.ca", c.CA)
	r.absolute(path+".client.crl", c.CRL)
	if k.ListenerTLS != nil && !r.has(path) {
		if _, err := k.ListenerTLS(t); err != nil {
			r.addf(path, "%v", err)
		}
	}
}

func (t *UpstreamTLS) validate(path string, k Known, r *report) {
	r.oneOf(path+".mode", t.Mode, TLSOff, TLSOptional, TLSRequired)
	if !t.On() {
		if !r.has(path + ".mode") {
			r.needs(path, "mode optional or required", "ca", "crl", "certificate", "key", "server_name")
		}
		return
	}
	if t.Certificate == "" {
		r.needs(path, "certificate", "key")
	}
	r.pair(path, t.Certificate, t.Key)
	r.absolute(path+".ca", t.CA)
	if t.CA == "" {
		r.needs(path, "ca", "crl")
	}
	r.absolute(path+".crl", t.CRL)
	if k.UpstreamTLS != nil && !r.has(path) {
		if _, err := k.UpstreamTLS(t); err != nil {
			r.addf(path, "%v", err)
		}
	}
}

// pair checks the paths of a certificate and its key, which may be one.
func (r *report) pair(path, certificate, key string) {
	r.absolute(path+".certificate", certificate)
	if key != certificate {
		r.absolute(path+".key", key)
	}
}

// absolute accepts an absolute path, and "" for a setting that does not apply.
func (r *report) absolute(path, name string) {
	if name != "" && !filepath.IsAbs(name) && !r.has(path) {
		r.addf(path, "%q is not an absolute path; write one such as /etc/rdmabridge/tls/server.pem", name)
	}
}

// warnTLS adds what is wrong with files that can be used.
func (c *Config) warnTLS(k Known, w *report) {
	for i := range c.Listeners {
		if t := &c.Listeners[i].TLS; t.On() && k.ListenerTLS != nil {
			warnings, _ := k.ListenerTLS(t) // validate has found no error
			w.warnAll("listeners", i, warnings)
		}
	}
	for i := range c.Upstreams {
		if t := &c.Upstreams[i].TLS; t.On() && k.UpstreamTLS != nil {
			warnings, _ := k.UpstreamTLS(t)
			w.warnAll("upstreams", i, warnings)
		}
	}
}

func (r *report) warnAll(list string, i int, warnings []string) {
	for _, text := range warnings {
		r.addf(fmt.Sprintf("%s[%d].tls", list, i), "%s", text)
	}
}
