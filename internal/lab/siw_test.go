//go:build lab

package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// testSIW runs the tests of package iwarp with siw as the peer, in both roles. They are in
// that package because they do not use the bridge.
func testSIW(t *testing.T, g *guest) {
	p := freePorts(t, 1)[0]
	test := func(name string, more ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-tags", "lab", "-count=1", "-timeout", "5m", "-v",
			"-run", name, "../../rdmaside/iwarp")
		cmd.Env = append(os.Environ(), fmt.Sprintf("RDMABRIDGE_SIW=127.0.0.1:%d", g.rdma),
			fmt.Sprintf("RDMABRIDGE_SIW_MOUNT=127.0.0.1:%d", g.mount))
		cmd.Env = append(cmd.Env, more...)
		return cmd
	}
	check := func(t *testing.T, out []byte, err error) {
		t.Helper()
		if err != nil || !bytes.Contains(out, []byte("--- PASS")) || bytes.Contains(out, []byte("--- SKIP")) {
			t.Errorf("%v\n%s", err, tail(out, 60))
		}
	}
	t.Run("responder", func(t *testing.T) {
		out, err := test("TestSIW(Null|Chunks|Reject)$").CombinedOutput()
		check(t, out, err)
	})
	t.Run("initiator", func(t *testing.T) {
		cmd := test("TestSIWInitiator$", fmt.Sprintf("RDMABRIDGE_SIW_RPING=127.0.0.1:%d", p))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// One rping for each kind of Reply; the listener of the next may need a moment,
		// and an rping that was refused does not end by itself.
		g.job(t, 2*time.Minute, fmt.Sprintf(`n=0
sleep 5
for try in $(seq 9); do
    timeout 10 rping -c -a 10.0.2.2 -p %d -C 10 -S 4096 -V && n=$((n + 1))
    [ $n = 3 ] && exit 0
    sleep 1
done
exit 1`, p))
		err := cmd.Wait()
		check(t, out.Bytes(), err)
	})
}
