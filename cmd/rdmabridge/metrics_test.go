package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// scrapeBridge returns what b serves to a scraper that accepts a format.
func scrapeBridge(t *testing.T, b *bridge, accept string) []byte {
	t.Helper()
	q := httptest.NewRequest("GET", "/metrics", nil)
	q.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	b.metrics.Handler().ServeHTTP(w, q)
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: %d, %s", w.Code, w.Body)
	}
	return w.Body.Bytes()
}

// gathered returns all metrics of b by name.
func gathered(t *testing.T, b *bridge) map[string]*dto.MetricFamily {
	t.Helper()
	body := scrapeBridge(t, b, "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	d := expfmt.NewDecoder(bytes.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim))
	all := make(map[string]*dto.MetricFamily)
	for {
		f := &dto.MetricFamily{}
		if err := d.Decode(f); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[f.GetName()] = f
	}
}

// TestMetrics: what bridges export that carry Calls over TCP and over RDMA, in both directions, is in the
// table, with labels that the table has, and Prometheus' own tool finds nothing wrong with it.
func TestMetrics(t *testing.T) {
	x := newTwin(t)
	for i := range uint32(200) {
		c := x.across[i%3]
		if _, err := c.Call(proxytest.GetattrCall(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	table := make(map[string]*metrics.Definition)
	for _, d := range metrics.All() {
		table[d.FullName()] = d
	}
	types := map[metrics.Kind]dto.MetricType{
		metrics.KindCounter: dto.MetricType_COUNTER, metrics.KindGauge: dto.MetricType_GAUGE, metrics.KindHistogram: dto.MetricType_HISTOGRAM,
	}
	exported := make(map[string]bool)
	for name, b := range map[string]*bridge{"front": x.front, "rear": x.rear} {
		testkit.Eventually(t, "the Calls are counted", func() bool { return gathered(t, b)["rdmabridge_operation_calls_total"] != nil })
		for _, f := range gathered(t, b) {
			d := table[f.GetName()]
			if d == nil {
				if !strings.HasPrefix(f.GetName(), "go_") && !strings.HasPrefix(f.GetName(), "process_") {
					t.Errorf("%s: %s is not in the table", name, f.GetName())
				}
				continue
			}
			exported[f.GetName()] = true
			if f.GetType() != types[d.Kind] || f.GetHelp() != d.Help {
				t.Errorf("%s: %s is a %v, %q", name, f.GetName(), f.GetType(), f.GetHelp())
			}
			for _, m := range f.Metric {
				checkLabels(t, d, m)
			}
		}
		t.Run("promtool/"+name, func(t *testing.T) { promtoolCheck(t, scrapeBridge(t, b, "text/plain")) })
	}
	for name := range table {
		if !exported[name] && !rare[strings.TrimPrefix(name, "rdmabridge_")] {
			t.Errorf("no bridge exports %s", name)
		}
	}
	x.agree(x.rear)
}

// rare are the metrics that the bridges of TestMetrics need not export.
var rare = map[string]bool{
	// Provider ibverbs.
	"listener_device_events_total": true, "upstream_device_events_total": true,
	// Servers that do not listen here.
	"nlm_calls_total": true, "nlm_grants_total": true, "nlm_notices_total": true, "nlm_refused_messages_total": true,
	"nlm_held_locks": true, "nlm_waiting_locks": true, "nlm_clients": true,
	"rpcbind_calls_total": true, "rpcbind_refused_calls_total": true, "admin_closed_connections_total": true,
	// A listener behind proxies.
	"listener_proxy_connections_total": true, "listener_proxy_starting_connections": true,
	// TLS.
	"listener_tls_connections": true, "listener_tls_starting_connections": true, "listener_tls_handshakes_total": true, "listener_tls_failures_total": true,
	"upstream_tls_connections": true, "upstream_tls_starting_connections": true, "upstream_tls_handshakes_total": true, "upstream_tls_failures_total": true,
	// A listener with rules.
	"listener_rule_calls_total": true, "listener_squashed_calls_total": true,
	// TLS with files.
	"listener_tls_expiry_timestamp_seconds": true, "listener_tls_renew_by_timestamp_seconds": true, "listener_tls_reloads_total": true, "listener_tls_files_refused": true,
	"upstream_tls_expiry_timestamp_seconds": true, "upstream_tls_renew_by_timestamp_seconds": true, "upstream_tls_reloads_total": true, "upstream_tls_files_refused": true, "upstream_tls_missing_connections_total": true,
	// A rate limit, NFSv4, and a file with settings.
	"listener_rate_limit_waits_total": true, "operation_compound_operations_total": true,
	"config_reloads_total": true, "config_last_reload_success_timestamp_seconds": true, "config_restart_needed": true,
	// An access log, an audit log, names, and traces.
	"audit_lines_total": true, "audit_dropped_lines_total": true, "audit_refused_calls_total": true,
	"listener_export_calls_total": true, "listener_export_read_bytes_total": true, "listener_export_written_bytes_total": true,
	"names_missed_calls_total": true, "access_log_lines_total": true, "access_log_dropped_lines_total": true,
	"trace_calls_total": true, "trace_dropped_calls_total": true,
}

func checkLabels(t *testing.T, d *metrics.Definition, m *dto.Metric) {
	t.Helper()
	if len(m.Label) != len(d.Labels) {
		t.Errorf("%s has the labels %v", d.Name, m.Label)
	}
	for _, l := range m.Label {
		i := slices.IndexFunc(d.Labels, func(x metrics.Label) bool { return x.Name == l.GetName() })
		if i < 0 {
			t.Errorf("%s has the label %s", d.Name, l.GetName())
			continue
		}
		known := d.Labels[i].Values
		if known != nil && !slices.ContainsFunc(known, func(v metrics.Value) bool { return v.Name == l.GetValue() }) {
			t.Errorf("%s has the label %s=%q, which the table does not have", d.Name, l.GetName(), l.GetValue())
		}
	}
}

// agree checks that the metrics of an idle bridge say what its document says.
func (x *twin) agree(b *bridge) {
	x.t.Helper()
	all := gathered(x.t, b)
	d := b.document(status.Query{})
	value := func(name string, labels ...string) (sum float64) {
		for _, m := range all["rdmabridge_"+name].GetMetric() {
			has := 0
			for _, l := range m.Label {
				for i := 0; i < len(labels); i += 2 {
					if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
						has++
					}
				}
			}
			if has == len(labels)/2 {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return sum
	}
	u, l := d.Upstreams[0], d.Listeners[0]
	calls := uint64(0)
	for _, o := range d.Operations {
		calls += o.Calls
	}
	for _, v := range []struct {
		what      string
		got, want float64
	}{
		{"usable", value("upstream_connections", "upstream", u.Name), float64(u.Usable)},
		{"wanted", value("upstream_wanted_connections", "upstream", u.Name), float64(u.Wanted)},
		{"requested", value("upstream_credits_requested", "upstream", u.Name), float64(u.Credits.Requested)},
		{"granted", value("upstream_credits_granted", "upstream", u.Name), float64(u.Credits.Granted)},
		{"state", value("upstream_state", "upstream", u.Name, "state", string(u.State)), 1},
		{"clients", value("listener_clients", "listener", l.Name), float64(l.Clients)},
		{"accepted", value("listener_accepted_connections_total", "listener", l.Name), float64(l.Accepted)},
		{"calls", value("operation_calls_total"), float64(calls)},
		{"times", value("operation_seconds"), float64(calls)},
		{"replied", value("listener_calls_total", "result", "replied"), float64(l.Calls["replied"])},
		{"memory", value("memory_account_limit_bytes", "account", "calls"), float64(d.Memory.Accounts[0].Limit)},
		{"ready", value("state", "state", "ready"), 1},
	} {
		if v.got != v.want || v.want == 0 {
			x.t.Errorf("%s: %v in the metrics, %v in the document", v.what, v.got, v.want)
		}
	}
}

// promtoolCheck has promtool look at a scrape in the text format. promtool finds fault with nothing that
// is right, so what it says is an error.
func promtoolCheck(t *testing.T, text []byte) {
	t.Helper()
	cmd := exec.Command(promtool(t), "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// promtool returns the path of Prometheus' tool.
func promtool(t *testing.T) string {
	t.Helper()
	for _, path := range []string{os.Getenv("LAB_CACHE") + "/promtool", "/var/cache/rdmabridge-lab/promtool"} {
		if s, err := os.Stat(path); err == nil && s.Mode().IsRegular() {
			return path
		}
	}
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("promtool is not installed; deploy/lab/install.sh installs it")
		}
		t.Skip("promtool is not installed; deploy/lab/install.sh installs it")
	}
	return path
}
