//go:build lab

package lab

import (
	"os"
	"testing"
	"time"
)

// kernelVersions are the NFS versions that the Linux client mounts.
var kernelVersions = []string{"3", "4.0", "4.1", "4.2"}

// needLab skips the test where there is no lab.
func needLab(t *testing.T) {
	t.Helper()
	if os.Getenv("RDMABRIDGE_LAB") != "1" {
		t.Skip("needs the packages and the kernel of deploy/lab/install.sh: set RDMABRIDGE_LAB=1")
	}
}

// labFull reports whether the tests of the lab are to do everything, not only what make test has time for.
func labFull() bool { return os.Getenv("RDMABRIDGE_LAB_FULL") == "1" }

// someVersions returns all versions of NFS, or a selection unless RDMABRIDGE_LAB_FULL=1.
func someVersions(selection ...string) []string { return some(kernelVersions, selection...) }

// some returns all, or a selection of them unless RDMABRIDGE_LAB_FULL=1.
func some[T any](all []T, selection ...T) []T {
	if labFull() {
		return all
	}
	return selection
}

const (
	// lessData tests files with less data, where another test has all of them.
	lessData = "SIZES='0 1 3 4095 4096 65537 3000001' /lab/files.sh"
	// shortFiles has fewer names, too.
	shortFiles = "NAMES=700 " + lessData
)

// TestLab runs the clients and the features of each version of NFS.
func TestLab(t *testing.T) {
	g, b, far, direct := startLab(t)
	testLabClients(t, g, b, far)
	testLabWire(t, g, b, far, direct)
	testLabFeatures(t, g, b, far, direct)
	t.Run("stop", func(t *testing.T) { b.stop(t) })
}

// TestLabCalls runs what concerns single Calls, and restarts.
func TestLabCalls(t *testing.T) {
	g, b, far, direct := startLab(t)
	testLabCalls(t, g, b, far, direct)
	testLabRestarts(t, g, b, far, direct)
	t.Run("stop", func(t *testing.T) { b.stop(t) })
}

// startLab boots a guest and starts a bridge in front of it, or none.
func startLab(t *testing.T) (g *guest, b *bridgeProcess, far farEnd, direct bool) {
	t.Helper()
	needLab(t)
	g = bootGuest(t)
	if os.Getenv("RDMABRIDGE_LAB_DIRECT") == "1" {
		return g, nil, farEnd{nfs: g.nfs, mount: g.mount}, true
	}
	b = startBridge(t, g)
	return g, b, farEnd{nfs: b.port, mount: b.port}, false
}

// testLabClients runs files, fio and the clients in user space.
func testLabClients(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	t.Run("siw", func(t *testing.T) { testSIW(t, g) })
	if b != nil {
		for _, use := range []string{"gateway", "reverse"} {
			t.Run("init/"+use, func(t *testing.T) { testInit(t, g, use) })
		}
		t.Run("mount", func(t *testing.T) { testMount(t, g) })
	}
	for _, v := range someVersions("3", "4.2") {
		t.Run("files/"+v, func(t *testing.T) {
			files := "/lab/files.sh"
			if v != "3" && !labFull() {
				files = shortFiles
			}
			g.job(t, 6*time.Minute, far.script(files, v))
			b.wantQuiet(t)
		})
	}
	for _, v := range someVersions("4.2") {
		t.Run("fio/"+v, func(t *testing.T) {
			g.job(t, 5*time.Minute, far.script("SIZE=2m /lab/fio.sh", v))
			b.wantQuiet(t)
		})
	}
	t.Run("libnfs", func(t *testing.T) {
		testLibNFS(t, g, far)
		b.wantQuiet(t)
	})
}

// testLabWire looks at what is between client, bridge and server.
func testLabWire(t *testing.T, g *guest, b *bridgeProcess, far farEnd, direct bool) {
	t.Run("wire", func(t *testing.T) {
		if direct {
			t.Skip("needs a bridge")
		}
		testWire(t, g)
	})
	t.Run("copies", func(t *testing.T) {
		if direct {
			t.Skip("no bridge, no counters")
		}
		testCopies(t, g, b, far)
		b.wantQuiet(t)
	})
	t.Run("capture", func(t *testing.T) {
		if direct {
			t.Skip("needs a bridge")
		}
		testCapture(t, g, b, far)
		b.wantQuiet(t)
	})
}

// testLabFeatures runs the features of each version of NFS.
func testLabFeatures(t *testing.T, g *guest, b *bridgeProcess, far farEnd, direct bool) {
	for _, v := range someVersions("3", "4.2") {
		t.Run("chunks/"+v, func(t *testing.T) {
			if direct {
				t.Skip("no bridge, no counters")
			}
			testChunks(t, g, b, far, v)
			b.wantQuiet(t)
		})
		t.Run("acls/"+v, func(t *testing.T) {
			g.job(t, time.Minute, far.script("/lab/acls.sh", v))
			b.wantQuiet(t)
		})
	}
	t.Run("xattrs/4.2", func(t *testing.T) {
		g.job(t, time.Minute, far.script("/lab/xattrs.sh", "4.2"))
		b.wantQuiet(t)
	})
	t.Run("sparse/4.2", func(t *testing.T) {
		r := b.reverse(t)
		g.job(t, 2*time.Minute, far.script("/lab/sparse.sh", "4.2"))
		b.wantQuiet(t)
		b.wantReverse(t, r, 1) // a long COPY ends with CB_OFFLOAD
	})
	for _, v := range some(kernelVersions[1:], "4.0", "4.2") {
		t.Run("locks2/"+v, func(t *testing.T) {
			r := b.reverse(t)
			g.job(t, 2*time.Minute, far.script("/lab/locks2.sh", v))
			b.wantQuiet(t)
			if v != "4.0" {
				b.wantReverse(t, r, 2) // notices to the clients that wait for a lock
			}
		})
	}
	t.Run("layouts", func(t *testing.T) {
		if direct {
			t.Skip("no bridge that could hide them")
		}
		testLayouts(t, g, b, far)
	})
}

// testLabCalls runs what concerns single Calls: locks, XIDs, retransmissions, recalls.
func testLabCalls(t *testing.T, g *guest, b *bridgeProcess, far farEnd, direct bool) {
	bridged := func(name, without string, run func(*testing.T, *guest)) {
		t.Run(name, func(t *testing.T) {
			if direct {
				t.Skip(without)
			}
			run(t, g)
		})
	}
	bridged("nlm", "no bridge that could say where everything is", testNLM)
	bridged("locks3", "no bridge with a lock manager", testLocks3)
	t.Run("kerberos", func(t *testing.T) { testKerberos(t, g, b, far) })
	bridged("xids", "no bridge on which they could collide", testXIDs)
	bridged("largest", "no bridge that could carry less", testLargest)
	bridged("rules", "no bridge that could have rules", testRules)
	bridged("tenants", "no bridge that could have tenants", testTenants)
	t.Run("retransmit", func(t *testing.T) { testRetransmit(t, g, b, far) })
	for _, v := range some([]string{"4.1", "4.2"}, "4.2") {
		t.Run("recall/"+v, func(t *testing.T) { testRecall(t, g, b, far, v) })
	}
}

// testLabRestarts restarts server and bridge under clients.
func testLabRestarts(t *testing.T, g *guest, b *bridgeProcess, far farEnd, direct bool) {
	for _, v := range some([]string{"3", "4.1"}, "3") {
		t.Run("restart/"+v, func(t *testing.T) {
			g.job(t, 6*time.Minute, far.script("RESTART=1 SIZE=2m /lab/fio.sh", v))
			b.wantNoErrors(t)
		})
	}
	for _, v := range []string{"4.0", "4.2"} {
		t.Run("reclaim/"+v, func(t *testing.T) {
			g.job(t, 2*time.Minute, far.script("/lab/reclaim.sh", v))
			b.wantNoErrors(t)
		})
		t.Run("reconnect/"+v, func(t *testing.T) {
			if direct {
				t.Skip("no bridge that could be stopped")
			}
			g.job(t, 2*time.Minute, far.script("STEP=hold /lab/reconnect.sh", v))
			b.stop(t)
			b.start(t)
			g.job(t, 2*time.Minute, far.script("STEP=check /lab/reconnect.sh", v))
			b.wantQuiet(t)
		})
	}
}
