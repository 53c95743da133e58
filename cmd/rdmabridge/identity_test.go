package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/handover"
)

func listening(addresses ...string) *configs.Config {
	c := &configs.Config{}
	for _, a := range addresses {
		c.Listeners = append(c.Listeners, configs.Listener{Address: a})
	}
	return c
}

// TestIdentity: what follows from the host and the listeners is the same after a restart and
// after a hand-over, and the file has the last word.
func TestIdentity(t *testing.T) {
	one, two := listening("127.0.0.1:2049", ":111"), listening(":111", "127.0.0.1:2049")
	name := identity(one, nil)
	if identity(two, nil) != name {
		t.Error("the order of the listeners matters")
	}
	if identity(listening("127.0.0.1:2050", ":111"), nil) == name {
		t.Error("two bridges of a host have one identity")
	}
	if host, err := os.Hostname(); err == nil && !strings.HasPrefix(name, host+"\n") {
		t.Errorf("identity %q without the host name %s", name, host)
	}
	in := &handover.Inheritance{From: handover.Greeting{Identity: name}}
	more := listening("127.0.0.1:2049", ":111", ":20049")
	if identity(more, in) != name {
		t.Error("another identity after a hand-over to a process with another listener")
	}
	if identity(more, &handover.Inheritance{}) != identity(more, nil) {
		t.Error("a process that handed over no identity changes it")
	}
	more.Identity = "of the file"
	if identity(more, in) != "of the file" || identity(more, nil) != "of the file" {
		t.Error("the file's identity is not in force")
	}
}
