package admin

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/browser"
)

const (
	// documents counts the documents that the page has asked for.
	fetched = "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/v1/status')).length"
	// rated is true when the page has rates.
	rated = "document.querySelector('#listeners tbody td:nth-child(3)') && !document.querySelector('#listeners tbody td:nth-child(3)').textContent.includes('…')"
)

var desk = browser.Look{Width: 1280, Height: 900}

// open opens the page of f.
func open(t *testing.T, b *browser.Browser, f *fixture, look browser.Look) (*browser.Page, *httptest.Server) {
	t.Helper()
	f.began = time.Now()
	s := serveFixture(t, f)
	return b.Open(t, s.URL, look), s
}

// sound checks that p has asked for nothing elsewhere, and that the console is silent.
func sound(t *testing.T, p *browser.Page, s *httptest.Server) {
	t.Helper()
	for _, e := range p.Errors() {
		t.Errorf("the console says: %s", e)
	}
	for _, r := range p.Requests() {
		if u, err := url.Parse(r); err != nil || "http://"+u.Host != s.URL {
			t.Errorf("the page asks for %s", r)
		}
	}
}

// next waits for another document.
func next(p *browser.Page, n int) {
	at := browser.Eval[int](p, fetched)
	p.Until("another document", fmt.Sprintf("%s >= %d", fetched, at+n))
}

// TestPage looks at the page in Chromium.
func TestPage(t *testing.T) {
	b := browser.Start(t)
	t.Run("use", func(t *testing.T) { testPageUse(t, b) })
	t.Run("stale", func(t *testing.T) { testPageStale(t, b) })
	t.Run("fits", func(t *testing.T) { testPageFits(t, b) })
	t.Run("no growth", func(t *testing.T) { testPageNoGrowth(t, b) })
}

// testPageUse: what the page shows, and how it is used with a mouse and with keys.
func testPageUse(t *testing.T, b *browser.Browser) {
	f := &fixture{upstream: 64, clients: 300}
	p, s := open(t, b, f, desk)
	p.Until("rates are shown", rated)
	text := func(selector string) string {
		return browser.Eval[string](p, fmt.Sprintf("document.querySelector(%q)?.textContent || ''", selector))
	}
	filter := func(s string) {
		p.Do(fmt.Sprintf("document.activeElement.blur(); document.getElementById('filter').value = %q; document.getElementById('filter').dispatchEvent(new Event('input'))", s))
	}
	count := func(selector string) int {
		return browser.Eval[int](p, fmt.Sprintf("document.querySelectorAll(%q).length", selector))
	}
	t.Run("what it shows", func(t *testing.T) {
		for selector, want := range map[string]string{
			"main section:first-child li:first-child": "Upstream archive has been down for 3 min 2",
			"#state":                                    "ready",
			"#listeners tbody tr:first-child":           "5 for Calls in flight",
			"#upstreams article:first-of-type":          "connection refused",
			"#upstreams article:last-of-type summary":   "64 connections: 62 up, 1 down, 1 asleep",
			"#clients h2":                               "50 of 300 shown",
			"#clients tbody tr:first-child":             "unread Replies",
			"#operations tbody tr:first-child":          "READ",
			"#memory tbody tr:first-child":              "612 MiB of 2.0 GiB",
			"#events li:nth-child(2)":                   "and 42 more like it",
			"#names h2":                                 "in the last 1 min 20 s, from 25 % of the Calls",
			"#names tbody tr:first-child":               "/export/home",
			"#names .card:nth-of-type(2) tbody th":      "/export/home/<img src=x onerror=alert(2)>/x.o",
			"#names .card:nth-of-type(2) tbody td.n":    "1,000",
			"#names .card:nth-of-type(2) .t-warn":       "removed",
			"#nav":                                      "Exports and files",
			"#overview .tile:first-child":               "Calls/s",
			"#upstreams article:last-of-type .halves p": "used of 4,032 granted, 4,096 requested",
		} {
			if got := text(selector); !strings.Contains(got, want) {
				t.Errorf("%s says %q, not %q", selector, got, want)
			}
		}
		if n := count("#overview svg.spark path.l"); n != 7 {
			t.Errorf("%d lines of history", n)
		}
		if n := count("#upstreams table"); n != 0 {
			t.Error("connections are not folded away")
		}
	})
	t.Run("sort", func(t *testing.T) {
		for _, tt := range []struct{ button, want string }{{"Oldest Call", "200 ms"}, {"Client", "10.20.0.100:"}, {"From client", "10.20.0.10:"}} {
			p.Do(fmt.Sprintf("[...document.querySelectorAll('#clients th button')].find(b => b.textContent === %q).click()", tt.button))
			p.Until("sorted by "+tt.button, fmt.Sprintf("document.querySelector('#clients tbody tr').textContent.includes(%q) && document.querySelector('#clients th[aria-sort]').textContent === %q", tt.want, tt.button))
		}
		if n := count("#clients th[aria-sort]"); n != 1 {
			t.Errorf("%d columns are sorted by", n)
		}
		first := "document.querySelector('#operations tbody th').firstChild.data"
		press := "[...document.querySelectorAll('#operations th button')].find(b => b.textContent === 'Operation').click()"
		p.Do(press)
		if got := browser.Eval[string](p, first); got != "ACCESS" {
			t.Errorf("by name the first operation is %s", got)
		}
		p.Do(press)
		if got := browser.Eval[string](p, first); got != "WRITE" {
			t.Errorf("by name, backwards, the first operation is %s", got)
		}
		p.Do("document.querySelector('#operations button[aria-expanded]').click()")
		if n := count("#operations tbody tr"); n != 40 {
			t.Errorf("%d of 40 operations are shown", n)
		}
	})
	t.Run("filter", func(t *testing.T) {
		p.Do("document.getElementById('filter').focus()")
		p.Press("10.20.0.27")
		p.Until("one client is shown", "document.querySelectorAll('#clients tbody tr').length === 1")
		next(p, 2)
		if got := browser.Eval[string](p, "document.activeElement.id + ' ' + document.activeElement.value"); got != "filter 10.20.0.27" {
			t.Errorf("after refreshes the focus is at %q", got)
		}
		p.Press("x")
		p.Until("no client is shown", "document.getElementById('clients').textContent.includes('No client fits the filter')")
		filter("")
		p.Until("all are shown", "document.querySelectorAll('#clients tbody tr').length === 50")
	})
	t.Run("fold", func(t *testing.T) {
		p.Do("document.querySelector('#upstreams article:last-of-type summary').focus()")
		p.Press("\r")
		rows := "document.querySelectorAll('#upstreams table tbody tr').length"
		p.Until("connections are shown", rows+" === 64")
		next(p, 2)
		if got := browser.Eval[string](p, "document.activeElement.tagName + ' ' + "+rows); got != "SUMMARY 64" {
			t.Errorf("after refreshes: %s", got)
		}
		if got := text("#upstreams table tbody tr:first-child"); !strings.Contains(got, "down") {
			t.Errorf("the connection that is down is not first: %s", got)
		}
		p.Press("\r")
		p.Until("connections are folded away", "!document.querySelector('#upstreams article:last-of-type details').open")
		next(p, 2)
		if got := text("#upstreams article:last-of-type summary"); got != "64 connections: 62 up, 1 down, 1 asleep" {
			t.Errorf("folded away, the line says %q", got)
		}
	})
	t.Run("keyboard", func(t *testing.T) {
		p.Do("document.activeElement.blur(); window.scrollTo(0, 0); document.querySelector('.skip').focus()")
		var seen []string
		for range 14 {
			p.Press("\t")
			seen = append(seen, browser.Eval[string](p, "document.activeElement.id || document.activeElement.textContent"))
		}
		if got := strings.Join(seen, ", "); !strings.HasPrefix(got, "pause, Problems 3, Overview, Listeners 2, Upstreams 2") {
			t.Errorf("tab goes to %s", got)
		}
		p.Do("document.getElementById('pause').focus()")
		p.Press(" ")
		if got := text("#pause") + ", " + text("#updated"); !strings.HasPrefix(got, "Continue, paused at ") {
			t.Errorf("paused: %q", got)
		}
		p.Press(" ")
		next(p, 1)
		if got := text("#pause"); got != "Pause" {
			t.Errorf("not paused: %q", got)
		}
	})
	t.Run("hostile names", func(t *testing.T) {
		filter("10.20.0.15:")
		p.Until("the client is shown", "document.getElementById('clients').textContent.includes('<img src=x onerror=alert(1)>')")
		if n := count("img, iframe, main script, main style"); n != 0 {
			t.Error("a name became an element")
		}
		p.Do(`(() => { try { document.body.innerHTML = "<b>x</b>" } catch { return } throw new Error("a string became HTML") })()`)
	})
	errors := p.Errors()
	if n := len(errors); n == 0 || !strings.Contains(strings.Join(errors, " "), "TrustedHTML") {
		t.Errorf("the browser does not enforce the policy: %q", errors)
	}
	t.Run("another page", func(t *testing.T) {
		p, s := open(t, b, &fixture{empty: true}, desk)
		p.Until("the page is drawn", "document.querySelectorAll('#clients .empty').length === 1")
		if !browser.Eval[bool](p, "document.getElementById('names').hidden && document.getElementById('names').textContent === ''") {
			t.Error("there are names")
		}
		sound(t, p, s)
	})
	for _, r := range p.Requests() {
		if !strings.HasPrefix(r, s.URL+"/") {
			t.Errorf("the page asks for %s", r)
		}
	}
}

// testPageStale: a page whose bridge has gone says so, and goes on when it is back.
func testPageStale(t *testing.T, b *browser.Browser) {
	p, s := open(t, b, &fixture{upstream: 4, clients: 5}, desk)
	p.Until("the page is drawn", "document.querySelectorAll('#clients tbody tr').length === 5")
	handler := s.Config.Handler
	s.CloseClientConnections()
	s.Close()
	p.Until("the page says so", "!document.getElementById('stale').hidden && document.getElementById('stale').textContent.startsWith('The bridge has not answered for')")
	again := httptest.NewUnstartedServer(handler)
	l, err := listen(strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Skipf("the port is in use by now: %v", err)
	}
	again.Listener.Close()
	again.Listener = l
	again.Start()
	defer again.Close()
	p.Until("the page goes on", "document.getElementById('stale').hidden")
}

// testPageFits: the page is as wide as the screen, its colours are readable, and assistive technology
// finds its way, in each look and state.
func testPageFits(t *testing.T, b *browser.Browser) {
	for name, f := range map[string]fixture{"empty": {empty: true}, "busy": {upstream: 64, clients: 60}, "broken": {upstream: 64, clients: 60, trouble: true}} {
		p, s := open(t, b, &f, desk)
		p.Until("the page is drawn", "document.querySelector('#memory tbody tr')")
		if !f.empty {
			p.Do("document.querySelector('#upstreams article:last-of-type details').open = true")
			p.Until("connections are shown", "document.querySelectorAll('#upstreams table tbody tr').length === 64")
		}
		for _, look := range []browser.Look{desk, {Width: 1280, Height: 900, Dark: true}, {Width: 390, Height: 800, Phone: true}, {Width: 320, Height: 600, Phone: true, Dark: true}} {
			p.Look(look)
			for _, finding := range browser.Eval[[]string](p, checks) {
				t.Errorf("%s %+v: %s", name, look, finding)
			}
		}
		sound(t, p, s)
	}
}

// checks finds what is wrong with the page that is shown.
const checks = `(() => {
  const found = [];
  const name = (e) => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + (e.className && typeof e.className === "string" ? "." + e.className.replaceAll(" ", ".") : "");
  if (document.documentElement.scrollWidth > window.innerWidth) {
    const wide = [...document.querySelectorAll("main *, header *, footer *")].filter((e) => e.getBoundingClientRect().right > window.innerWidth + 1 && !e.closest(".scroll, thead tr, nav"));
    found.push("the page is " + document.documentElement.scrollWidth + " wide in a window of " + window.innerWidth + ": " + wide.slice(0, 3).map(name).join(", "));
  }
  // Colours: WCAG 2.2, 1.4.3.
  const rgb = (s) => { const m = s.match(/[\d.]+/g).map(Number); return s.startsWith("color(srgb") ? [m[0] * 255, m[1] * 255, m[2] * 255, m[3] ?? 1] : [m[0], m[1], m[2], m[3] ?? 1]; };
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
  const seen = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest("svg, script, style, noscript, .unseen, .skip")) continue;
    const style = getComputedStyle(e), a = light(rgb(style.color)), b = light(behind(e));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), key = name(e) + style.color;
    if (contrast < 4.5 && !seen.has(key)) { seen.add(key); found.push(name(e) + " has a contrast of " + contrast.toFixed(1) + ": " + style.color + " on " + behind(e)); }
  }
  // Structure.
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push("two elements have the id " + id);
  for (const e of document.querySelectorAll("[aria-labelledby]")) if (!document.getElementById(e.getAttribute("aria-labelledby"))?.textContent.trim()) found.push(name(e) + " has a label that is not there");
  for (const e of document.querySelectorAll("table")) {
    if (!e.caption?.textContent.trim()) found.push(name(e) + " has no caption");
    for (const h of e.querySelectorAll("th")) if (!h.scope) found.push("a heading of " + e.caption?.textContent + " has no scope");
    for (const r of e.querySelectorAll("tbody tr")) if (r.cells.length !== e.tHead.rows[0].cells.length) { found.push("a row of " + e.caption?.textContent + " has " + r.cells.length + " cells"); break; }
  }
  for (const e of document.querySelectorAll("button, a, summary")) if (!(e.getAttribute("aria-label") || e.textContent).trim()) found.push(name(e) + " has no name");
  for (const e of document.querySelectorAll("input, select")) if (!e.labels?.length || !e.labels[0].textContent.trim()) found.push(name(e) + " has no label");
  for (const e of document.querySelectorAll("[role=img]")) if (!e.getAttribute("aria-label")) found.push(name(e) + " has no label");
  let level = 0;
  for (const e of document.querySelectorAll("h1, h2, h3")) { const n = +e.tagName[1]; if (n > level + 1) found.push("heading " + e.textContent + " skips a level"); level = n; }
  for (const landmark of ["header", "nav[aria-label]", "main", "footer"]) if (document.querySelectorAll(landmark).length < 1) found.push("there is no " + landmark);
  if (!document.querySelector("#announce[aria-live=polite]")) found.push("nothing announces problems");
  if (document.querySelectorAll("[style]").length > 0 && [...document.querySelectorAll("[style]")].some((e) => /undefined|NaN/.test(e.getAttribute("style")))) found.push("a bar has no width");
  for (const word of ["undefined", "NaN", "[object", "null"]) if (document.body.innerText.includes(word)) found.push("the page says " + word);
  return found;
})()`

// testPageNoGrowth: refreshes leave nothing behind in the browser.
func testPageNoGrowth(t *testing.T, b *browser.Browser) {
	p, s := open(t, b, &fixture{upstream: 8, clients: 30}, desk)
	p.Until("rates are shown", rated)
	refresh := func(n int) {
		t.Helper()
		p.Do(fmt.Sprintf(`(async () => {
			for (let i = 0; i < %d; i++) {
				const buttons = document.querySelectorAll("#clients th button"), before = performance.getEntriesByType("resource").length;
				buttons[i %% buttons.length].click();
				while (performance.getEntriesByType("resource").length === before) await new Promise((r) => setTimeout(r, 5));
				if (i %% 20 === 0) performance.clearResourceTimings();
			}
		})()`, n))
	}
	refresh(20)
	before := p.Counters()
	refresh(60)
	after := p.Counters()
	// The page keeps a document for each of ten seconds, which is 3 MiB; 60 would be 18 MiB.
	if after.Nodes > before.Nodes+before.Nodes/4 || after.Listeners > before.Listeners+before.Listeners/4 || after.Heap > before.Heap+8<<20 {
		t.Errorf("60 refreshes: %+v became %+v", before, after)
	}
	t.Logf("%+v became %+v", before, after)
	sound(t, p, s)
}
