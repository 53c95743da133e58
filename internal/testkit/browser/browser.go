// Package browser drives a headless Chromium for tests of pages.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// patience bounds each step: a page that hangs ends the test, not the run.
const patience = 30 * time.Second

// A Browser is one headless Chromium with an empty profile.
type Browser struct{ ctx context.Context }

// Start starts a Browser. Without Chromium the test is skipped, but fails in CI and in the lab, where
// deploy/lab/install.sh has installed it.
func Start(t testing.TB) *Browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("RDMABRIDGE_LAB") == "1" {
			t.Fatal("there is no chromium: deploy/lab/install.sh installs it")
		}
		t.Skip("no chromium on this machine: apt-get install chromium")
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless,
		chromedp.NoSandbox, chromedp.DisableGPU,
	}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "hide-scrollbars", "disable-dev-shm-usage", "disable-extensions"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	allocated, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancelTab := chromedp.NewContext(allocated)
	t.Cleanup(cancelTab)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("chromium does not start: %v", err)
	}
	return &Browser{ctx: ctx}
}

// A Look is how a page is looked at.
type Look struct {
	Width, Height int64
	Dark          bool
	Phone         bool // touch, and two device pixels for each of CSS
}

// A Page is one tab. It collects what must not happen.
type Page struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex // guards the fields below; a leaf
	errors   []string
	requests []string
}

// Open opens url in a new tab.
func (b *Browser) Open(t testing.TB, url string, look Look) *Page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	t.Cleanup(cancel)
	p := &Page{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.event); err != nil {
		t.Fatalf("chromium: %v", err)
	}
	command(p, network.Enable, network.EnableParams{})
	command(p, log.Enable, cdp.Empty{})
	command(p, runtime.Enable, cdp.Empty{})
	p.Look(look)
	run(p, chromedp.Navigate(url))
	return p
}

// Look changes how the page is looked at.
func (p *Page) Look(look Look) {
	p.t.Helper()
	scheme, scale := "light", 1.0
	if look.Dark {
		scheme = "dark"
	}
	if look.Phone {
		scale = 2
	}
	command(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: look.Width, Height: look.Height, DeviceScaleFactor: scale, Mobile: look.Phone})
	command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// command runs a command of the protocol.
func command[P, R any](p *Page, cmd cdp.Command[P, R], params P) R {
	p.t.Helper()
	return run(p, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, cmd, params) })
}

// run runs an action.
func run[T any](p *Page, a chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		p.t.Fatalf("chromium: %v", err)
	}
	return v
}

// event collects errors and requests.
func (p *Page) event(e any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := e.(type) {
	case *runtime.EventExceptionThrown:
		p.errors = append(p.errors, fmt.Sprintf("%s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			p.errors = append(p.errors, fmt.Sprintf("console: %+v", e.Args))
		}
	case *log.EventEntryAdded: // violations of the policy, and requests that failed
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			p.errors = append(p.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

// Errors returns what the console has to complain about.
func (p *Page) Errors() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.errors...)
}

// Requests returns the addresses of all requests, those of data: left out.
func (p *Page) Requests() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if !strings.HasPrefix(r, "data:") {
			all = append(all, r)
		}
	}
	return all
}

// Eval evaluates an expression of JavaScript, which may be a promise.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	return run(p, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Do evaluates an expression for what it does.
func (p *Page) Do(expression string) {
	p.t.Helper()
	Eval[chromedp.Void](p, expression)
}

// Until waits until expression is true.
func (p *Page) Until(what, expression string) {
	p.t.Helper()
	if !testkit.Settles(patience, func() bool { return Eval[bool](p, "!!("+expression+")") }) {
		p.t.Fatalf("not within %v: %s", patience, what)
	}
}

// Press presses keys, such as "\t".
func (p *Page) Press(keys string) {
	p.t.Helper()
	run(p, chromedp.KeyEvent(keys))
}

// Shoot writes a picture of what the window shows, as PNG.
func (p *Page) Shoot(path string) {
	p.t.Helper()
	if err := os.WriteFile(path, run(p, chromedp.CaptureScreenshot()), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// Counters are what a page holds after a garbage collection.
type Counters struct {
	Nodes, Listeners int64
	Heap             float64 // bytes of JavaScript
}

// Counters returns the counters of p.
func (p *Page) Counters() Counters {
	p.t.Helper()
	command(p, heapprofiler.CollectGarbage, cdp.Empty{})
	dom := command(p, memory.GetDOMCounters, cdp.Empty{})
	heap := command(p, runtime.GetHeapUsage, cdp.Empty{})
	return Counters{Nodes: dom.Nodes, Listeners: dom.JsEventListeners, Heap: heap.UsedSize}
}
