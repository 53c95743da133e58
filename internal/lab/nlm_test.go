//go:build lab

package lab

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// testNLM: two clients mount NFSv3 and lock files without options for ports. The bridge has
// port 111 in the network namespace of the tests: see TestMain.
func testNLM(t *testing.T, g *guest) {
	if os.Getenv(inLabNamespace) == "" {
		t.Fatal("not in a network namespace of the tests' own, in which port 111 is free")
	}
	b := newBridgeProcess(t, g)
	f, err := os.OpenFile(b.config, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("rpcbind: {address: \"127.0.0.1:111\"}\n")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	const refused = `listener_calls_total{listener="nfs",result="local"}`
	before := b.metric(t, refused)
	begun := time.Now()
	out := g.job(t, 3*time.Minute, "/lab/nlm.sh 10.0.2.2")
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "granted ") || strings.HasPrefix(line, "10.0.2.2:") {
			t.Log(strings.TrimSpace(line))
		}
	}
	n := b.metric(t, refused) - before
	t.Logf("%v; %.0f Calls of the server to its clients refused", time.Since(begun).Round(time.Second), n)
	if n == 0 {
		t.Error("the server has called nobody: was no lock waited for?")
	}
	b.wantQuiet(t)
	for _, outcome := range []string{"error", "lost"} {
		if n := b.metric(t, fmt.Sprintf(`upstream_calls_total{outcome=%q,upstream="lockd"}`, outcome)); n != 0 {
			t.Errorf("%.0f Calls to lockd: %s", n, outcome)
		}
	}
	b.stop(t)
}
