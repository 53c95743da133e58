package configs

import (
	"reflect"
	"slices"
	"testing"
)

func TestPaths(t *testing.T) {
	c, err := Load([]byte(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: storage}]
upstreams: [{name: storage, transport: tcp, endpoints: ["127.0.0.1:1"]}]
log: {access: {mode: all, path: /var/log/bridge/calls}}
control: {path: /run/bridge/control}
handover: {path: /run/bridge/handover}
nlm: {address: ":4045", server: 10.1.0.5, state: /var/lib/bridge}
`), Known{})
	if err != nil {
		t.Fatal(err)
	}
	read, written := c.Paths()
	if want := []string{"/var/log/bridge/calls", "/run/bridge/control", "/run/bridge/handover", "/var/lib/bridge/locks"}; len(read) > 0 || !slices.Equal(written, want) {
		t.Errorf("reads %q and writes %q, want only to write %q", read, written, want)
	}
	// What a setting may look like.
	v := struct {
		A      string
		B      []string
		C      struct{ D string }
		E      []struct{ F string }
		G      *struct{ H string }
		hidden string
	}{A: "relative", B: []string{"/b1", "none"}, E: []struct{ F string }{{"/f"}}, G: &struct{ H string }{"/h"}, hidden: "/hidden"}
	v.C.D = "/d"
	var found []string
	collectPaths(reflect.ValueOf(v), func(path string) { found = append(found, path) })
	if want := []string{"/b1", "/d", "/f", "/h"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}
