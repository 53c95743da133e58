
"use strict";
(() => {
  const every = Number(document.documentElement.dataset.every) || 2000; // ms between documents; tests are in a hurry
  const patience = 6000; // ms that an answer may take
  const span = 10000; // ms over which rates are taken

  // ---- State. The page is a function of it.
  const view = {
    doc: null, // the latest document
    docs: [], // those of the last span, the oldest first
    failedSince: 0, // when the bridge stopped to answer, by this browser's clock; 0 if it answers
    error: "",
    paused: false,
    sort: "waiting", filter: "", limit: "50", // of clients; the server sorts and filters
    by: "rate", up: false, // order of operations
    allOperations: false, quiet: false,
    open: new Set(), // upstreams whose connections are shown
  };
  const phases = [["admission", "admission"], ["credit", "waiting for a credit"], ["server", "server and network"], ["client", "client reads"]];

  // ---- Elements. A node is described by [tag, attributes, children]; patch makes the page agree. It
  // keeps elements with the same key, and with them focus, scroll positions and open details. Texts become
  // text nodes: nothing from the network is ever parsed as HTML.
  const h = (tag, attrs, ...kids) => ({ tag, attrs: attrs || {}, kids: kids.flat(Infinity).filter((k) => k !== null && k !== undefined && k !== false && k !== "") });
  const svgTags = new Set(["svg", "path", "title"]);
  function make(v) {
    if (typeof v !== "object") return document.createTextNode(String(v));
    const e = svgTags.has(v.tag) ? document.createElementNS("http://www.w3.org/2000/svg", v.tag) : document.createElement(v.tag);
    e.described = { tag: v.tag, attrs: {}, kids: [] };
    update(e, v);
    return e;
  }
  function update(e, v) {
    const old = e.described.attrs;
    for (const [name, value] of Object.entries(v.attrs)) {
      if (old[name] === value || name === "key") continue;
      if (name.startsWith("on")) e[name] = value;
      else if (name === "w") e.style.setProperty("--w", value);
      else if (name === "value") { if (document.activeElement !== e) e.value = value; }
      else if (value === null || value === undefined || value === false) e.removeAttribute(name);
      else e.setAttribute(name, value === true ? "" : value);
    }
    for (const name of Object.keys(old)) if (!(name in v.attrs) && !name.startsWith("on")) e.removeAttribute(name);
    e.described = v;
    patch(e, v.kids);
  }
  const same = (node, v) => typeof v !== "object" ? node.nodeType === 3 : node.described !== undefined && node.described.tag === v.tag && node.described.attrs.key === v.attrs.key;
  function patch(parent, kids) {
    const keyed = new Map();
    for (const n of parent.childNodes) if (n.described && n.described.attrs.key !== undefined) keyed.set(n.described.attrs.key, n);
    let at = parent.firstChild;
    for (const v of kids) {
      const key = typeof v === "object" ? v.attrs.key : undefined;
      let n = key !== undefined ? keyed.get(key) : at && same(at, v) ? at : null;
      if (n && key !== undefined && !same(n, v)) n = null;
      if (!n) {
        n = make(v);
        parent.insertBefore(n, at);
        continue;
      }
      if (key !== undefined) keyed.delete(key);
      if (n === at) at = at.nextSibling; else parent.insertBefore(n, at);
      if (typeof v === "object") update(n, v); else if (n.data !== String(v)) n.data = String(v);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }
  function fill(id, ...kids) { patch(document.getElementById(id), h("x", null, ...kids).kids); }

  // ---- Words and numbers.
  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  function digits(v) { return v === 0 ? "0" : v < 9.95 ? v.toFixed(1) : v < 9999.5 ? number.format(v) : v < 999950 ? (v / 1e3).toFixed(v < 99950 ? 1 : 0) + " k" : (v / 1e6).toFixed(1) + " M"; }
  function bytes(v) {
    for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
      if (v < 1023.5 || unit === "TiB") return (unit === "B" ? Math.round(v) : v < 9.95 ? v.toFixed(1) : Math.round(v)) + " " + unit;
      v /= 1024;
    }
  }
  function time(s) {
    if (!(s > 0)) return "0";
    if (s < 0.0009995) return (s * 1e6).toFixed(s < 9.95e-6 ? 1 : 0) + " µs";
    if (s < 0.9995) return (s * 1e3).toFixed(s < 0.00995 ? 2 : s < 0.0995 ? 1 : 0) + " ms";
    if (s < 59.95) return s.toFixed(1) + " s";
    return age(s);
  }
  function age(s) {
    s = Math.max(0, Math.round(s));
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
    if (s < 172800) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
    return Math.floor(s / 86400) + " days";
  }
  const about = (s) => s < 60 ? Math.max(0, Math.round(s)) + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days";
  const since = (t) => age((Date.parse(view.doc.time) - Date.parse(t)) / 1000);
  const clock = (t) => new Date(t).toLocaleTimeString("en-GB");
  const plural = (n, word, words) => number.format(n) + " " + (n === 1 ? word : words || word + "s");
  const percent = (x) => x > 0 && x < 0.01 ? "<1 %" : Math.round(100 * x) + " %";
  const list = (l) => l || [];
  const sum = (m) => Object.values(m || {}).reduce((a, b) => a + b, 0);
  const reasons = (m) => Object.entries(m || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]).map(([r, n]) => `${r.replaceAll("_", " ")} ${number.format(n)}`).join(", ");
  const waits = { slow_start: "slow start", client_rate: "its rate limit", listener_rate: "the listener's rate limit", rule_rate: "a rule's rate limit", calls: "Calls in flight", replies: "Replies to come", unread: "unread Replies", memory: "memory", draining: "draining" };
  const pauses = (m) => Object.entries(m || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]).map(([r, n]) => `${number.format(n)} for ${waits[r] || plain(r)}`).join(", ");
  // Replies of these classes answer an ordinary question: status.Failure.
  const ordinary = new Set(["ok", "encrypted", "noent", "exist", "locked"]);
  const plain = (s) => String(s).replaceAll("_", " ");

  // ---- Rates: what has grown since the oldest document that is kept, for a second.
  function before(kind, key) {
    const old = view.docs[0];
    if (!old || old === view.doc) return null;
    if (!old.index) old.index = {};
    if (!old.index[kind]) old.index[kind] = new Map((kind === "clients" ? list(old.clients.list) : list(old[kind])).map((x) => [keys[kind](x), x]));
    return old.index[kind].get(key) || null;
  }
  const keys = {
    listeners: (l) => l.name, upstreams: (u) => u.name, tenants: (t) => t.name,
    clients: (c) => c.listener + " " + c.address + " " + c.since,
    operations: (o) => [o.listener, o.upstream, o.program, o.version, o.operation].join(" "),
  };
  const seconds = () => (Date.parse(view.doc.time) - Date.parse(view.docs[0].time)) / 1000;
  // grown returns how much of(now) has grown, or null if it is not known.
  function grown(was, now, of) {
    if (!was) return null;
    const d = of(now) - of(was);
    return d >= 0 ? d : of(now);
  }
  function rate(was, now, of) {
    const g = grown(was, now, of);
    return g === null ? null : g / seconds();
  }
  // share returns which part of the segments had to be sent again: those that had arrived do not count.
  function share(was, now) {
    if (!was || !now || now.segments < was.segments || now.retransmits < was.retransmits) return null;
    return Math.max(0, now.retransmits - was.retransmits - (now.needless - was.needless)) / Math.max(1, now.segments - was.segments);
  }
  const perSecond = (r) => r === null ? "…" : digits(r);
  const bytesPerSecond = (r) => r === null ? "…" : r < 0.5 ? "0" : bytes(r) + "/s";

  // phasesOf returns the time of each phase and the Calls since was, or since the start.
  function phasesOf(was, now) {
    const p = { calls: now.calls - (was ? was.calls : 0) };
    p.total = 0;
    for (const [name] of phases) p.total += p[name] = Math.max(0, now[name] - (was ? was[name] : 0));
    return p.calls < 0 ? phasesOf(null, now) : p;
  }
  function phaseText(p) {
    if (!(p.total > 0)) return "no Calls";
    return phases.map(([name]) => [name, p[name] / p.total]).filter(([, x]) => x >= 0.005).sort((a, b) => b[1] - a[1]).map(([name, x]) => name + " " + percent(x)).join(", ");
  }
  function phaseBar(p, short) {
    const text = phaseText(p);
    return [
      h("div", { class: "phases", role: "img", "aria-label": "Time of Calls: " + text, title: text },
        p.total > 0 ? phases.map(([name], i) => h("i", { class: "p" + i, w: (100 * p[name] / p.total).toFixed(1) })) : null),
      short ? h("span", { class: "label", "aria-hidden": "true" }, text.split(", ").slice(0, 2).join(", ")) : null,
    ];
  }
  function phaseKey(p) {
    return h("ul", { class: "key" }, phases.map(([name, words], i) => h("li", null, h("i", { class: "p" + i }), words + " ", h("b", null, p.total > 0 ? percent(p[name] / p.total) : "–"), p.calls > 0 ? h("span", { class: "dim" }, " " + time(p[name] / p.calls)) : null)));
  }

  // quantile returns the q-quantile of the Calls between two histograms.
  function quantile(was, now, q) {
    const bounds = list(now.bounds), old = was ? list(was.counts) : [];
    const counts = list(now.counts).map((n, i) => Math.max(0, n - (old[i] || 0)));
    const total = counts.reduce((a, b) => a + b, 0);
    if (total === 0) return null;
    let rank = q * total;
    for (let i = 0; i < counts.length; i++) {
      if (rank <= counts[i] && counts[i] > 0) {
        if (i >= bounds.length) return bounds[bounds.length - 1]; // longer than all
        const low = i > 0 ? bounds[i - 1] : 0;
        return low + (bounds[i] - low) * rank / counts[i];
      }
      rank -= counts[i];
    }
    return bounds[bounds.length - 1];
  }

  // ---- Pieces.
  function spark(points, name, format, most) {
    const p = list(points), n = p.length;
    const high = Math.max(most || 0, ...p), now = n ? p[n - 1] : 0;
    const label = n < 2 ? name + ": no history yet" : `${name} in the last ${age(n * view.doc.history.step)}: now ${format(now)}, highest ${format(Math.max(...p))}, lowest ${format(Math.min(...p))}`;
    const width = 119, height = 24; // the last point is always at the right
    const xy = (v, i) => `${width - (n - 1 - i)} ${(height - (high > 0 ? v / high : 0) * (height - 1.5)).toFixed(1)}`;
    const line = n > 1 ? "M" + p.map(xy).join("L") : "";
    return h("svg", { class: "spark", viewBox: "0 0 120 25", preserveAspectRatio: "none", role: "img", "aria-label": label }, h("title", null, label),
      n > 1 ? [h("path", { class: "a", d: `${line}L${width} ${height + 1}L${width - n + 1} ${height + 1}Z` }), h("path", { class: "l", d: line })] : null);
  }
  function bar(value, most, label, extra) {
    const share = most > 0 ? Math.min(1, value / most) : 0;
    return h("div", { class: "bar", role: "img", "aria-label": label, title: label }, extra, h("i", { class: share >= 0.95 ? "full" : share >= 0.8 ? "high" : "", w: (100 * share).toFixed(1) }));
  }
  const heading = (id, text, note, json) => h("h2", { id: id + "-h" }, text, note ? h("span", { class: "dim" }, note) : null, json ? h("a", { href: "api/v1/" + json, "aria-label": text + " as JSON" }, "JSON") : null);
  const fact = (name, value, style) => value === null || value === undefined ? null : h("div", { key: name }, h("dt", null, name), h("dd", { class: style || false }, value));

  // table makes a table. A column is [title, attributes of its cells, order to sort by].
  function table(label, columns, rows, sorted, onSort) {
    const head = columns.map(([title, attrs, order]) => {
      const on = order && sorted && sorted.by === order;
      return h("th", { scope: "col", role: "columnheader", class: [attrs.class || "", order ? "s" : ""].join(" ").trim() || false, "aria-sort": on ? (sorted.up ? "ascending" : "descending") : false },
        order ? h("button", { type: "button", key: order, onclick: () => onSort(order) }, title) : title);
    });
    return h("div", { class: "card scroll" }, h("table", { role: "table" }, h("caption", { class: "unseen" }, label),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      h("tbody", { role: "rowgroup" }, rows.map(({ key, cells, name }) => h("tr", { key, role: "row", class: name || false },
        cells.map((cell, i) => i === 0 ? h("th", { scope: "row", role: "rowheader" }, cell)
          : h("td", { role: "cell", class: [columns[i][1].class || "", cell === null || cell === "" ? "none" : ""].join(" ").trim() || false, "data-label": columns[i][0] }, cell)))))));
  }
  const N = { class: "n" }, T = {}, W = { class: "w" };

  // ---- Sections.
  function header() {
    const d = view.doc, state = document.getElementById("state");
    const words = { ready: "ready", not_ready: "not ready", draining: "draining" };
    state.className = "pill " + (d.state === "ready" ? "good" : d.state === "draining" ? "warn" : "bad");
    state.textContent = words[d.state] || d.state;
    const b = d.build || {};
    document.getElementById("about").textContent = [b.version, b.revision ? b.revision.slice(0, 12) : "", b.go, "up " + since(d.started), "process " + d.process,
      d.config && d.config.file ? d.config.file + " of " + clock(d.config.loaded) : ""].filter(Boolean).join(" · ");
    const bad = list(d.problems).filter((p) => p.severity !== "notice").length;
    document.title = (bad ? "(" + bad + ") " : "") + "rdmabridge";
    fill("nav", [
      ["problems", "Problems", list(d.problems).length, (list(d.problems)[0] || {}).severity], ["overview", "Overview", null], ["listeners", "Listeners", list(d.listeners).length],
      ["upstreams", "Upstreams", list(d.upstreams).length], ["clients", "Clients", d.clients.total], ["operations", "Operations", list(d.operations).length],
      d.names ? ["names", "Exports and files", null] : null, ["memory", "Memory", percent(d.memory.budget > 0 ? d.memory.used / d.memory.budget : 0)], ["events", "Events", list(d.events).length],
    ].filter(Boolean).map(([id, name, n, style]) => h("li", { key: id, class: style || false }, h("a", { href: "#" + id }, name, n === null ? null : [" ", h("b", null, n)]))));
  }

  // problems shows what is wrong. A screen reader hears only what is new or over: the figures in the texts change all the time.
  let announced = new Map();
  function problems() {
    const d = view.doc, all = list(d.problems);
    const now = new Map(all.map((p) => [p.code + " " + (p.subject || ""), p]));
    const news = [...all.filter((p) => !announced.has(p.code + " " + (p.subject || ""))).map((p) => p.severity + ": " + p.text),
      ...[...announced].filter(([k]) => !now.has(k)).map(([, p]) => "Over: " + plain(p.code) + (p.subject ? " of " + p.subject : "") + ".")];
    if (news.length) document.getElementById("announce").textContent = news.join(" ");
    announced = now;
    fill("problems", heading("problems", all.length ? "What is wrong" : "Nothing is wrong", null, "problems"),
      d.not_ready && d.state !== "ready" && !all.length ? h("p", { class: "card fine" }, d.not_ready) : null,
      all.length ? h("ul", { class: "problems" }, all.map((p) => h("li", { key: p.code + " " + (p.subject || ""), class: "card " + p.severity },
        h("span", { class: "pill" }, p.severity), h("p", null, p.text), h("p", { class: "advice" }, p.advice ? [commands(p.advice), " "] : null, h("span", { class: "code", title: "docs/troubleshooting.md has a section of this name" }, p.code)))))
        : h("p", { class: "card fine" }, d.state === "ready" ? "Every upstream that a listener needs can be reached, and nothing keeps Calls waiting." : "No trouble is known."));
  }
  // commands makes code of what stands between backquotes.
  const commands = (text) => String(text).split("`").map((s, i) => i % 2 ? h("code", null, s) : s);

  function overview() {
    const d = view.doc, hist = d.history, last = (l) => list(l)[list(l).length - 1] || 0;
    const was = view.docs[0] !== d ? view.docs[0] : null;
    const total = { calls: 0, admission: 0, credit: 0, server: 0, client: 0 };
    for (const o of list(d.operations)) {
      const w = was ? before("operations", keys.operations(o)) : null;
      const p = phasesOf(w ? w.phases : null, o.phases);
      if (was) for (const k of Object.keys(total)) total[k] += p[k];
    }
    const p = phasesOf(null, total);
    const tile = (name, points, value, format) => h("div", { class: "card tile", key: name }, h("div", { class: "names" }, h("span", null, name), list(points).length > 1 ? h("span", { class: "label" }, "max " + format(Math.max(...points))) : null),
      h("b", null, value), spark(points, name, format));
    const live = (of) => was ? list(d.listeners).reduce((a, l) => a + (rate(before("listeners", l.name), l, of) || 0), 0) : null;
    const calls = was ? list(d.operations).reduce((a, o) => a + (rate(before("operations", keys.operations(o)), o, (x) => x.calls) || 0), 0) : null;
    const clients = list(d.listeners).reduce((a, l) => a + l.clients, 0);
    const bps = (v) => v < 0.5 ? "0" : bytes(v) + "/s";
    fill("overview", heading("overview", "Overview", `rates of the last ${Math.round(span / 1000)} s, lines of the last ten minutes`, "history"),
      h("div", { class: "tiles" },
        tile("Calls/s", hist.calls, perSecond(calls === null ? last(hist.calls) : calls), digits),
        tile("Mean time", hist.latency, p.calls > 0 ? time(p.total / p.calls) : was ? "–" : time(last(hist.latency)), time),
        tile("From clients", hist.bytes_in, was ? bps(live((l) => l.bytes_in)) : bps(last(hist.bytes_in)), bps),
        tile("To clients", hist.bytes_out, was ? bps(live((l) => l.bytes_out)) : bps(last(hist.bytes_out)), bps),
        tile("Clients", hist.clients, number.format(clients), digits),
        tile("Memory", hist.memory, bytes(d.memory.used), bytes),
        tile("Failed/s", hist.failed, digits(last(hist.failed)), digits)),
      h("div", { class: "card wide" }, h("div", { class: "dim" }, "Where the time of Calls goes"), phaseBar(p), phaseKey(p)));
  }

  function listeners() {
    const d = view.doc;
    fill("listeners", heading("listeners", "Listeners", null, "listeners"), list(d.listeners).length ? table("Listeners", [
      ["Listener", T], ["Clients", N], ["Calls a second", N], ["In flight", N], ["From clients", N], ["To clients", N], ["Paused now", T], ["Refused so far", T],
    ], d.listeners.map((l) => {
      const w = before("listeners", l.name);
      return { key: l.name, cells: [
        [l.name, h("span", { class: "sub" }, l.transport + " " + l.address), l.unreachable ? h("span", { class: "t-bad" }, "Accepts no connections: " + l.unreachable) : null],
        [number.format(l.clients), l.limit > 0 ? h("span", { class: "sub" }, "of " + number.format(l.limit)) : null],
        perSecond(rate(w, l, (x) => sum(x.calls))), number.format(l.in_flight), bytesPerSecond(rate(w, l, (x) => x.bytes_in)), bytesPerSecond(rate(w, l, (x) => x.bytes_out)),
        sum(l.paused) ? h("span", { class: "t-warn" }, pauses(l.paused)) : h("span", { class: "dim" }, "none"), reasons(l.refused) || h("span", { class: "dim" }, "none"),
      ] };
    })) : h("p", { class: "card empty" }, "There is no listener."), list(d.listeners).some((l) => list(l.rules).length) ? rules() : null, list(d.tenants).length ? tenants() : null, d.locks ? locks() : null);
  }

  // rules shows what each rule has matched, below the listeners.
  function rules() {
    return table("Rules", [
      ["Rule", T], ["What it does", T], ["Calls a second", N], ["Calls so far", N], ["Latest", T],
    ], view.doc.listeners.flatMap((l) => list(l.rules).map((r) => {
      const w = before("listeners", l.name), was = w && list(w.rules).find((x) => x.name === r.name && x.verdict === r.verdict);
      return { key: "rule " + l.name + " " + r.name, cells: [
        [r.name, h("span", { class: "sub" }, l.name)], r.effect + (r.waiting ? "; over it: " + number.format(r.waiting) : ""), perSecond(rate(was, r, (x) => x.calls)), number.format(r.calls),
        r.last_match ? since(r.last_match) + " ago" : h("span", { class: "dim" }, "none since the rules were loaded"),
      ] };
    })));
  }

  // tenants shows what each tenant uses of what it may, below the listeners. Most bridges have none.
  function tenants() {
    const of = (most, format) => most > 0 ? h("span", { class: "sub" }, "of " + format(most)) : null;
    const whole = (n) => number.format(n);
    return table("Tenants", [
      ["Tenant", T], ["Clients", N], ["Calls a second", N], ["In flight", N], ["Memory", N], ["Paused now", T], ["Refused so far", T],
    ], view.doc.tenants.map((t) => ({ key: "tenant " + t.name, cells: [
      [t.name, h("span", { class: "sub" }, number.format(t.addresses) + (t.addresses === 1 ? " address" : " addresses"))],
      [whole(t.clients), of(t.total_limits.connections, whole)], perSecond(rate(before("tenants", t.name), t, (x) => x.calls)),
      [whole(t.in_flight), of(t.total_limits.calls, whole)], [bytes(t.memory), of(t.total_limits.memory, bytes)],
      sum(t.waiting) ? h("span", { class: "t-warn" }, reasons(t.waiting)) : h("span", { class: "dim" }, "none"), reasons(t.refused) || h("span", { class: "dim" }, "none"),
    ] })));
  }

  // locks shows what clients of the lock manager have, below the listeners.
  function locks() {
    const l = view.doc.locks, whole = (n) => number.format(n);
    return table("Locks of NFSv3", [["Client", T], ["Held", N], ["Waited for", N]], [
      { key: "locks", cells: [[whole(l.clients) + (l.clients === 1 ? " client" : " clients"), h("span", { class: "sub" }, "at " + l.server)], whole(l.held), whole(l.waiting)] },
      ...list(l.most).map((c) => ({ key: "locks " + c.address, cells: [c.address, whole(c.held), whole(c.waiting)] })),
    ]);
  }

  const upstreamStyle = { up: "good", degraded: "warn", down: "bad", asleep: "note" };
  function creditLine(c, name) {
    const most = Math.max(c.requested, c.granted, c.used, 1);
    const text = `${number.format(c.used)} used of ${number.format(c.granted)} granted` + (c.requested > 0 ? `, ${number.format(c.requested)} requested` : "");
    return [h("div", { class: "bar", role: "img", "aria-label": name + ": " + text, title: text }, h("i", { class: "g", w: (100 * c.granted / most).toFixed(1) }), h("i", { class: c.granted > 0 && c.used >= c.granted ? "high" : "", w: (100 * c.used / most).toFixed(1) })), text];
  }
  function connections(u) {
    const all = u.wanted + u.asleep, down = Math.max(0, u.wanted - u.usable);
    const shown = view.open.has(u.name) && list(u.connections).length ? u.connections : null;
    const counts = [];
    if (shown) {
      const by = {};
      for (const c of shown) by[c.state] = (by[c.state] || 0) + 1;
      for (const s of ["up", "stalled", "down", "retired", "asleep"]) if (by[s]) counts.push(by[s] + " " + s);
    } else {
      if (u.usable) counts.push(u.usable + " up");
      if (down) counts.push(down + " down");
      if (u.asleep) counts.push(u.asleep + " asleep");
    }
    const order = { down: 0, stalled: 1, retired: 2, up: 3, asleep: 4 };
    const rows = (shown || []).map((c, i) => ({ c, i })).sort((a, b) => order[a.c.state] - order[b.c.state] || b.c.credits.waiting - a.c.credits.waiting || a.i - b.i);
    return h("details", { key: "connections", ontoggle: (e) => {
      const was = view.open.has(u.name);
      if (e.target.open) view.open.add(u.name); else view.open.delete(u.name);
      if (e.target.open && !was) refresh();
    } }, h("summary", null, plural(shown ? shown.length : all, "connection") + (counts.length ? ": " + counts.join(", ") : "")),
    shown ? table("Connections of " + u.name, [["Endpoint", T], ["Kind", T], ["State", T], ["Clients", N], ["Credits", W], ["Waiting", N], ["RTT", N], ["Sent again", N], ["Last error", T]],
      rows.map(({ c, i }) => ({ key: i, cells: [
        [c.endpoint, c.local ? h("span", { class: "sub" }, "from " + c.local) : null, c.tls ? h("span", { class: "sub" }, "TLS, " + c.tls.identity) : null], c.kind,
        [h("span", { class: "pill " + ({ up: "good", down: "bad", stalled: "bad", asleep: "note" }[c.state] || "") }, c.state), h("span", { class: "sub" }, "for " + about((Date.parse(view.doc.time) - Date.parse(c.since)) / 1000))],
        c.kind === "shared" ? null : number.format(c.clients),
        c.state === "up" || c.state === "stalled" ? [creditLine(c.credits, "Credits")[0], h("span", { class: "label" }, `${number.format(c.credits.used)} of ${number.format(c.credits.granted)}` + (c.credits.granted < c.credits.requested ? `, ${number.format(c.credits.requested)} requested` : ""))] : null,
        c.credits.waiting || null, c.tcp ? time(c.tcp.rtt) : null, c.tcp ? number.format(c.tcp.retransmits) : null, c.last_error || null,
      ] }))) : view.open.has(u.name) ? h("p", { class: "dim" }, "…") : null);
  }
  function upstreams() {
    const d = view.doc, order = { down: 0, degraded: 1, up: 2, asleep: 3 };
    const all = list(d.upstreams).map((u, i) => ({ u, i })).sort((a, b) => order[a.u.state] - order[b.u.state] || a.i - b.i).map(({ u }) => u);
    fill("upstreams", heading("upstreams", "Upstreams", null, "upstreams"), all.length ? all.map((u) => {
      const w = before("upstreams", u.name), c = u.credits, p = w ? phasesOf(w.phases, u.phases) : phasesOf(null, { calls: 0, admission: 0, credit: 0, server: 0, client: 0 });
      const hist = (d.history.upstreams || {})[u.name] || {};
      const starved = grown(w && w.credits, c, (x) => x.starved_seconds), resent = share(w && w.tcp, u.tcp);
      const [line, text] = creditLine(c, "Credits of " + u.name);
      const ends = list(u.endpoints), plainEnds = ends.every((e) => e.state === "used");
      return h("article", { key: u.name, class: "card upstream", "aria-labelledby": "u-" + u.name },
        h("header", null, h("h3", { id: "u-" + u.name }, u.name), h("span", { class: "pill " + upstreamStyle[u.state] }, u.state),
          h("span", { class: "dim" }, [u.transport, "pool " + u.mode, plainEnds ? ends.map((e) => e.address).join(", ") : plural(ends.length, "endpoint"),
            u.down_since ? "down for " + since(u.down_since) : ""].filter(Boolean).join(" · "))),
        u.last_error && u.state !== "up" && u.state !== "asleep" ? h("p", { class: "err" }, u.last_error) : null,
        u.slow_start && u.slow_start.clients > 0 ? h("p", { class: "t-warn" }, `Slow start: ${plural(u.slow_start.calls, "Call")} may be under way, ${plural(u.slow_start.clients, "client")} wait.`) : null,
        plainEnds ? null : h("ul", { class: "endpoints" }, ends.map((e) => h("li", { key: e.address }, h("span", { class: "pill " + ({ used: "good", ejected: "bad" }[e.state] || "") }, e.state), " " + e.address + " ",
          h("span", { class: "dim" }, [plural(e.connections, "connection"), e.until ? "tried again in " + age((Date.parse(e.until) - Date.parse(d.time)) / 1000) : "", e.reason].filter(Boolean).join(" · "))))),
        h("div", { class: "halves" },
          h("div", null, h("div", { class: "label" }, "Credits"), line, h("p", null, text, c.waiting > 0 ? [", ", h("span", { class: "t-warn" }, plural(c.waiting, "Call waits", "Calls wait"))] : null,
            starved > 0.05 ? [", ", h("span", { class: "t-warn" }, `starved for ${time(starved)} of the last ${age(seconds())}`)] : null)),
          h("div", null, h("div", { class: "label" }, "Time of Calls"), phaseBar(p), h("p", null, phaseText(p)))),
        h("dl", { class: "facts" },
          fact("Calls a second", perSecond(rate(w, u, (x) => x.phases.calls))), fact("In flight", number.format(u.in_flight)),
          fact("Time at the server", p.calls > 0 ? time(p.server / p.calls) : "–"), fact("Oldest Call", u.oldest_call > 0 ? time(u.oldest_call) : "–", u.oldest_call > 2 ? "t-warn" : ""),
          fact("To the server", bytesPerSecond(rate(w, u, (x) => x.bytes_out))), fact("From the server", bytesPerSecond(rate(w, u, (x) => x.bytes_in))),
          u.stuck ? fact("Stuck Calls", number.format(u.stuck), "t-warn") : null, u.stalled ? fact("Stalled connections", number.format(u.stalled), "t-warn") : null,
          u.tcp ? fact("RTT, largest", time(u.tcp.rtt)) : null, u.tcp ? fact("Segments lost", resent === null ? "…" : percent(resent), resent >= 0.005 ? "t-warn" : "") : null,
          fact("Replayed", number.format(u.replays)), fact("Disconnected", reasons(u.disconnects) || "never"), u.dial_errors ? fact("Failed attempts to connect", number.format(u.dial_errors)) : null,
          u.pinned ? fact("Pinned", number.format(u.pinned)) : null, u.sessions ? fact("Sessions", number.format(u.sessions)) : null,
          fact("Calls so far", reasons(u.calls) || "none")),
        h("div", { class: "minis" }, [["Calls a second", hist.calls, digits], ["Time at the server", hist.latency, time], ["Credits in use", hist.credits, percent, 1], ["Calls that wait", hist.waiting, digits]]
          .map(([name, points, format, most]) => h("div", { key: name }, h("span", { class: "label" }, name), spark(points, name + " of " + u.name, format, most)))),
        u.wanted + u.asleep > 0 ? connections(u) : null);
    }) : h("p", { class: "card empty" }, "There is no upstream."));
  }

  function clients() {
    const d = view.doc, c = d.clients;
    const sortBy = (order) => { view.sort = order; refresh(); };
    fill("clients", heading("clients", "Clients", `${number.format(c.shown)} of ${number.format(c.total)} shown` + (c.paused ? `, ${number.format(c.paused)} not read from` : ""), "clients?sort=" + view.sort),
      h("div", { class: "tools" },
        h("label", null, "Filter ", h("input", { type: "search", id: "filter", value: view.filter, maxlength: "200", spellcheck: "false", autocomplete: "off", placeholder: "address, network, listener …", oninput: (e) => { view.filter = e.target.value; soon(); } })),
        h("label", null, "Show ", h("select", { id: "limit", value: view.limit, onchange: (e) => { view.limit = e.target.value; refresh(); } }, ["10", "50", "200", "1000"].map((n) => h("option", { key: n, value: n, selected: n === view.limit }, n))))),
      list(c.list).length ? table("Clients, the first of " + number.format(c.total) + " by " + view.sort, [
        ["Client", T, "address"], ["Paused for", T, "waiting"], ["In flight", N], ["Oldest Call", N, "oldest"], ["Calls/s, so far", N, "calls"], ["From client", N, "bytes"], ["To client", N], ["Unread", N], ["Time of Calls", W], ["Failed", N], ["RTT", N],
      ], c.list.map((x) => {
        const w = before("clients", keys.clients(x));
        return { key: keys.clients(x), cells: [
          [x.address, h("span", { class: "sub" }, [x.transport + (x.tls ? " with TLS" : ""), x.tls ? x.tls.identity : null, x.listener + (list(x.upstreams).length ? " → " + x.upstreams.join(", ") : ""), about((Date.parse(d.time) - Date.parse(x.since)) / 1000)].filter(Boolean).join(" · "))],
          list(x.waiting).length ? [h("span", { class: "t-warn" }, x.waiting.map((r) => waits[r] || plain(r)).join(", ")), x.paused_seconds > 0 ? h("span", { class: "sub" }, about(x.paused_seconds) + " so far") : null] : null,
          [number.format(x.in_flight), x.credits ? h("span", { class: "sub" }, `${x.credits.used} of ${x.credits.granted} credits`) : null],
          x.oldest_call > 0 ? [time(x.oldest_call), h("span", { class: "sub" }, [x.oldest_operation, "0x" + x.oldest_xid.toString(16).padStart(8, "0")].filter(Boolean).join(" "))] : null,
          [perSecond(rate(w, x, (y) => y.phases.calls)), h("span", { class: "sub" }, digits(x.phases.calls))],
          [bytesPerSecond(rate(w, x, (y) => y.bytes_in)), h("span", { class: "sub" }, bytes(x.bytes_in))],
          [bytesPerSecond(rate(w, x, (y) => y.bytes_out)), h("span", { class: "sub" }, bytes(x.bytes_out))],
          x.unread_bytes > 0 ? bytes(x.unread_bytes) : null,
          phaseBar(phasesOf(w ? w.phases : null, x.phases), true),
          x.failed || x.repeats ? [number.format(x.failed), x.repeats ? h("span", { class: "sub" }, number.format(x.repeats) + " repeats") : null] : null,
          x.tcp ? [time(x.tcp.rtt), x.tcp.retransmits ? h("span", { class: "sub" }, number.format(x.tcp.retransmits) + " sent again") : null] : null,
        ] };
      }), { by: view.sort, up: view.sort === "address" }, sortBy) : h("p", { class: "card empty" }, view.filter ? "No client fits the filter." : "No client is connected."));
  }

  function operations() {
    const d = view.doc;
    const rows = list(d.operations).map((o) => {
      const w = before("operations", keys.operations(o)), p = phasesOf(w ? w.phases : null, o.phases);
      const latency = p.calls > 0 && w ? w.latency : null; // without Calls in the span, of all so far
      const failed = Object.fromEntries(Object.entries(o.statuses || {}).filter(([k]) => !ordinary.has(k)));
      return { o, w, p, rate: rate(w, o, (x) => x.calls), mean: p.calls > 0 ? p.total / p.calls : null, p50: quantile(latency, o.latency, 0.5), p99: quantile(latency, o.latency, 0.99), failed, failures: sum(failed) };
    });
    const orders = { name: (r) => r.o.program + r.o.version + r.o.operation, rate: (r) => r.rate === null ? r.o.calls : r.rate, mean: (r) => r.mean || 0, p99: (r) => r.p99 || 0, failed: (r) => r.failures, in_flight: (r) => r.o.in_flight };
    const of = orders[view.by], sign = view.up ? 1 : -1;
    rows.sort((a, b) => (of(a) < of(b) ? -sign : of(a) > of(b) ? sign : 0) || b.o.calls - a.o.calls);
    const sortBy = (order) => { view.up = view.by === order ? !view.up : order === "name"; view.by = order; draw(); };
    const most = 15, shown = view.allOperations ? rows : rows.slice(0, most);
    fill("operations", heading("operations", "Operations", rows.length ? `answered Calls; ${shown.length} of ${rows.length} shown` : null, "operations"),
      rows.length ? table("Operations", [
        ["Operation", T, "name"], ["From, to", T], ["In flight", N, "in_flight"], ["Calls/s, so far", N, "rate"], ["Mean", N, "mean"], ["p50", N], ["p99", N, "p99"], ["Time of Calls", W], ["In", N], ["Out", N], ["Failed so far", T, "failed"],
      ], shown.map((r) => ({ key: keys.operations(r.o), cells: [
        [r.o.operation, h("span", { class: "sub" }, r.o.program + " v" + r.o.version)], [r.o.listener, h("span", { class: "sub" }, "→ " + (r.o.upstream || "the bridge itself"))],
        number.format(r.o.in_flight), [perSecond(r.rate), h("span", { class: "sub" }, digits(r.o.calls))],
        r.mean === null ? "–" : time(r.mean), r.p50 === null ? "–" : time(r.p50), r.p99 === null ? "–" : time(r.p99), phaseBar(r.p, true),
        bytesPerSecond(rate(r.w, r.o, (x) => x.bytes_in)), bytesPerSecond(rate(r.w, r.o, (x) => x.bytes_out)),
        r.failures ? reasons(r.failed) : null,
      ] })), { by: view.by, up: view.up }, sortBy) : h("p", { class: "card empty" }, "No Call has been answered yet."),
      rows.length > most ? h("p", null, h("button", { type: "button", key: "all", "aria-expanded": String(view.allOperations), onclick: () => { view.allOperations = !view.allOperations; draw(); } }, view.allOperations ? "Show fewer" : `Show all ${rows.length}`)) : null);
  }

  // names shows what the bridge has learned of exports and files, if names.page is on.
  function names() {
    const d = view.doc, n = d.names;
    const section = document.getElementById("names");
    section.hidden = !n;
    if (!n) {
      section.removeAttribute("aria-labelledby");
      fill("names");
      return;
    }
    section.setAttribute("aria-labelledby", "names-h");
    const seconds = Math.max(1, (Date.parse(n.time) - Date.parse(n.since)) / 1000);
    const used = (title, rows, columns, cells, empty) => rows.length ? table(title, [...columns, ["Calls/s", N], ["Read", N], ["Written", N], ["Time of a Call", N]],
      rows.map((x) => ({ key: [x.listener, x.export, x.path, x.client].join("\n"), cells: [...cells(x),
        [digits(x.calls / seconds), x.error > 0 ? h("span", { class: "sub" }, "± " + digits(x.error / seconds)) : null], bytesPerSecond(x.read / seconds), bytesPerSecond(x.written / seconds), x.mean > 0 ? time(x.mean) : "–"] })))
      : h("p", { class: "card empty" }, empty);
    const at = (x) => h("span", { class: "sub" }, x.listener);
    fill("names", heading("names", "Exports and files", `those with the most Calls in the last ${age(seconds)}` + (n.sample < 1 ? `, from ${percent(n.sample)} of the Calls` : "") + (n.opaque ? `, ${number.format(n.opaque)} encrypted` : "")),
      used("Exports", list(n.exports), [["Export", T]], (x) => [[x.export, at(x)]], "No export has been used."),
      used("Files", list(n.files), [["File", T], ["Export", T]], (x) => [[x.path, x.removed ? h("span", { class: "t-warn" }, " removed") : null, at(x)], x.export], "No file has been used."),
      used("Clients of exports", list(n.clients), [["Client", T], ["Export", T]], (x) => [[x.client, at(x)], x.export], "No client has used an export."));
  }

  function memory() {
    const m = view.doc.memory;
    const share = (used, limit) => `${bytes(used)} of ${bytes(limit)}`;
    fill("memory", heading("memory", "Memory of messages", `${share(m.used, m.budget)} used, ${bytes(m.resident)} resident` + (m.waiting ? `, ${plural(m.waiting, "connection waits", "connections wait")}` : ""), "memory"),
      table("Memory by account", [["Account", T], ["Used", W], ["Peak", N], ["Leases", N], ["Waiting", N], ["Refused so far", N]],
        [{ name: "all", used: m.used, limit: m.budget, peak: null, leases: null, waiting: m.waiting, refused: m.refused }, ...list(m.accounts)].map((a) => ({ key: a.name, cells: [
          plain(a.name), [bar(a.used, a.limit, a.name + ": " + share(a.used, a.limit), a.peak && a.limit ? h("i", { class: "mark", w: Math.min(100, 100 * a.peak / a.limit).toFixed(1) }) : null), h("span", { class: "label" }, share(a.used, a.limit))],
          a.peak === null ? null : bytes(a.peak), a.leases === null ? null : number.format(a.leases), a.waiting ? h("span", { class: "t-warn" }, number.format(a.waiting)) : "0", a.refused ? h("span", { class: "t-warn" }, number.format(a.refused)) : "0",
        ] }))));
  }

  function events() {
    const d = view.doc;
    const all = list(d.events).filter((e) => !view.quiet || e.level !== "info");
    const style = { warn: "warn", error: "bad" };
    const key = (e) => e.time + " " + e.event + " " + e.text + " " + Object.values(e.fields || {}).join(" ");
    const seen = new Set();
    const once = all.filter((e) => !seen.has(key(e)) && seen.add(key(e)));
    fill("events", heading("events", "Events", "the newest first", "events"),
      h("div", { class: "tools" }, h("label", null, h("input", { type: "checkbox", id: "quiet", onchange: (e) => { view.quiet = e.target.checked; draw(); } }), " Only warnings and errors")),
      once.length ? h("ul", { class: "card events" }, once.slice(0, 100).map((e) => h("li", { key: key(e) },
        h("time", { datetime: e.time, title: e.time }, clock(e.time) + ", " + since(e.time) + " ago"),
        h("span", null, h("span", { class: "pill " + (style[e.level] || "") }, e.event ? plain(e.event) : e.level), e.text,
          e.repeated ? h("b", null, ` and ${number.format(e.repeated)} more like it`) : null,
          h("span", { class: "sub" }, Object.entries(e.fields || {}).map(([k, v]) => k + "=" + v).join("  ")))))) : h("p", { class: "card empty" }, "Nothing has happened yet."));
  }

  // ---- Drawing and fetching.
  function draw() {
    if (!view.doc) return;
    const focused = document.activeElement;
    for (const part of [header, problems, overview, listeners, upstreams, clients, operations, names, memory, events]) part();
    // An element that was moved loses its focus.
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    status();
  }
  function status() {
    const stale = document.getElementById("stale"), old = view.failedSince > 0;
    stale.hidden = !old;
    document.body.classList.toggle("old", old);
    const text = old ? `The bridge has not answered for ${age((Date.now() - view.failedSince) / 1000)}: ${view.error}.` + (view.doc ? ` The figures are of ${clock(view.doc.time)}.` : "") : "";
    if (stale.textContent !== text && (old ? stale.dataset.error !== view.error : true)) stale.textContent = text;
    stale.dataset.error = view.error;
    document.getElementById("updated").textContent = view.paused ? "paused at " + (view.doc ? clock(view.doc.time) : "…") : view.doc ? clock(view.doc.time) : "";
  }
  // take keeps d, and the documents of the last span, one for each second: sorting and filtering ask for more.
  function take(d) {
    const old = view.doc, at = (doc) => Date.parse(doc.time), docs = view.docs;
    if (old && (old.process !== d.process || old.started !== d.started || at(d) < at(old))) docs.length = 0; // another process
    const n = docs.length;
    if (n > 0 && at(docs[n - 1]) === at(d) || n > 1 && at(d) - at(docs[n - 2]) < 900) docs.pop();
    docs.push(d);
    view.doc = d;
    while (docs.length > 2 && at(d) - at(docs[1]) >= span) docs.shift();
  }
  let timer = 0, running = null, again = false;
  async function refresh() {
    if (running) { again = true; return; }
    clearTimeout(timer);
    const stop = new AbortController();
    running = stop;
    const late = setTimeout(() => stop.abort(), patience);
    try {
      const q = new URLSearchParams({ clients: view.limit, sort: view.sort });
      if (view.filter) q.set("filter", view.filter);
      if (view.open.size) q.set("connections", "true");
      const r = await fetch("api/v1/status?" + q, { signal: stop.signal, cache: "no-store", credentials: "same-origin" });
      if (!r.ok) throw new Error((await r.text()).trim().slice(0, 300) || "status " + r.status);
      take(await r.json());
      view.failedSince = 0;
      view.error = "";
      draw();
    } catch (e) {
      if (!view.failedSince) view.failedSince = Date.now();
      view.error = stop.signal.aborted ? "no answer within " + patience / 1000 + " s" : e.message.replace(/\.$/, "");
      status();
    } finally {
      clearTimeout(late);
      running = null;
      if (again) { again = false; refresh(); } else next();
    }
  }
  function next() {
    clearTimeout(timer);
    if (!view.paused && !document.hidden) timer = setTimeout(refresh, every);
  }
  let typing = 0;
  function soon() {
    clearTimeout(typing);
    typing = setTimeout(refresh, 250);
  }
  const pause = document.getElementById("pause");
  pause.onclick = () => {
    view.paused = !view.paused;
    pause.setAttribute("aria-pressed", String(view.paused));
    pause.textContent = view.paused ? "Continue" : "Pause";
    status();
    if (view.paused) clearTimeout(timer); else refresh();
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !view.paused) refresh(); });
  setInterval(() => { if (view.failedSince) status(); }, 1000);
  refresh();
})();
