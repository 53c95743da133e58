package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

var update = flag.Bool("update", false, "write deploy/grafana/rdmabridge.json, and the recording of the quick start, anew")

const (
	panelsFile    = "../../deploy/grafana/panels.yaml"
	dashboardFile = "../../deploy/grafana/rdmabridge.json"
)

// A grafanaRow is a part of panels.yaml.
type grafanaRow struct {
	Title  string
	Panels []grafanaPanel
}

type grafanaPanel struct {
	Title, Kind, Description, Unit, Text string
	Width, Height                        int
	Stack                                bool
	Bad                                  float64 // from here on a stat is red; 0 for never
	Queries                              []grafanaQuery
}

type grafanaQuery struct {
	Expr, Legend string
	Exemplar     bool
}

type object map[string]any

// grafanaVariables are the lists at the top of the dashboard, and the metric that has their values.
var grafanaVariables = []struct{ name, label, query string }{
	{"job", "Job", `label_values(rdmabridge_build_info, job)`},
	{"instance", "Bridge", `label_values(rdmabridge_build_info{job=~"$job"}, instance)`},
	{"listener", "Listener", `label_values(rdmabridge_listener_up{job=~"$job",instance=~"$instance"}, listener)`},
	{"upstream", "Upstream", `label_values(rdmabridge_upstream_state{job=~"$job",instance=~"$instance"}, upstream)`},
	{"program", "Program", `label_values(rdmabridge_operation_calls_total{job=~"$job",instance=~"$instance"}, program)`},
}

var grafanaSelectors = strings.NewReplacer(
	"<bridge>", `job=~"$job",instance=~"$instance"`,
	"<listener>", `job=~"$job",instance=~"$instance",listener=~"$listener"`,
	"<upstream>", `job=~"$job",instance=~"$instance",upstream=~"$upstream"`,
	"<operation>", `job=~"$job",instance=~"$instance",listener=~"$listener",upstream=~"$upstream",program=~"$program"`,
)

// TestDashboard: the dashboard is what panels.yaml generates, and each of its queries is PromQL over metrics that the bridge
// has. internal/grafanatest compares its form with Grafana's own types.
func TestDashboard(t *testing.T) {
	var file struct{ Rows []grafanaRow }
	d := yaml.NewDecoder(bytes.NewReader(readFile(t, panelsFile)))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	text := makeDashboard(t, file.Rows)
	if *update {
		if err := os.WriteFile(filepath.FromSlash(dashboardFile), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(text, readFile(t, dashboardFile)) {
		t.Errorf("%s is not what %s says: go test ./cmd/rdmabridge -run TestDashboard -update", dashboardFile, panelsFile)
	}

	rules := "groups:\n  - name: queries\n    rules:\n"
	recorded := make(map[string]bool)
	for _, r := range prometheusRules(t) {
		recorded[r.Record] = true
	}
	n := 0
	for _, row := range file.Rows {
		for _, p := range row.Panels {
			for _, q := range p.Queries {
				expr := grafanaSelectors.Replace(q.Expr)
				if strings.ContainsAny(expr, "<") {
					t.Errorf("%s: %s", p.Title, expr)
				}
				unknownMetrics(t, p.Title, expr, recorded)
				rules += fmt.Sprintf("      - {record: 'query:%d', expr: %q}\n", n, strings.ReplaceAll(expr, "$__rate_interval", "5m"))
				n++
			}
		}
	}
	if n < 30 {
		t.Errorf("%d queries", n)
	}
	for _, v := range grafanaVariables {
		unknownMetrics(t, v.name, v.query, nil)
	}
	name := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(name, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool(t), "check", "rules", name).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// makeDashboard makes the JSON.
func makeDashboard(t *testing.T, rows []grafanaRow) []byte {
	t.Helper()
	source := object{"type": "prometheus", "uid": "${datasource}"}
	variables := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range grafanaVariables {
		all := object{"text": "All", "value": "$__all"}
		variables = append(variables, object{
			"name": v.name, "label": v.label, "type": "query", "datasource": source, "query": v.query, "refresh": 2, "sort": 1,
			"multi": true, "includeAll": true, "allValue": ".*", "current": all,
		})
	}
	var panels []object
	id, y := 0, 0
	add := func(p object, x, width, height int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": width, "h": height}
		panels = append(panels, p)
	}
	for _, row := range rows {
		add(object{"type": "row", "title": row.Title, "collapsed": false, "panels": []any{}}, 0, 24, 1)
		y++
		x, tallest := 0, 0
		for _, p := range row.Panels {
			height := p.Height
			if height == 0 {
				height = map[string]int{"stat": 4, "table": 9}[p.Kind]
			}
			if height == 0 {
				height = 8
			}
			if x+p.Width > 24 {
				x, y, tallest = 0, y+tallest, 0
			}
			add(p.json(source), x, p.Width, height)
			x, tallest = x+p.Width, max(tallest, height)
		}
		y += tallest
	}
	text, err := json.MarshalIndent(object{
		"uid": "rdmabridge", "title": "rdmabridge", "tags": []string{"rdmabridge", "nfs", "rdma"},
		"description":   "NFS and other ONC RPC between TCP and RDMA: docs/metrics.md explains the metrics, docs/troubleshooting.md what to do.",
		"schemaVersion": 39, "editable": true, "refresh": "30s", "time": object{"from": "now-3h", "to": "now"},
		"annotations": object{"list": []any{}}, "graphTooltip": 1, "timezone": "browser", "templating": object{"list": variables}, "panels": panels,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

func (p *grafanaPanel) json(source object) object {
	out := object{"type": p.Kind, "title": p.Title, "description": p.Description}
	if p.Kind == "text" {
		out["options"] = object{"mode": "markdown", "content": p.Text}
		return out
	}
	defaults := object{"unit": p.Unit, "min": 0}
	if p.Unit == "" {
		defaults["unit"] = "short"
	}
	var targets []object
	for i, q := range p.Queries {
		target := object{"refId": string(rune('A' + i)), "datasource": source, "expr": grafanaSelectors.Replace(q.Expr), "legendFormat": q.Legend}
		switch {
		case p.Kind == "table":
			target["format"], target["instant"] = "table", true
		case q.Exemplar:
			target["exemplar"] = true
		}
		targets = append(targets, target)
	}
	out["datasource"], out["targets"] = source, targets
	switch p.Kind {
	case "stat":
		steps := []object{{"color": "green", "value": nil}}
		if p.Bad > 0 {
			steps = append(steps, object{"color": "red", "value": p.Bad})
		}
		defaults["thresholds"] = object{"mode": "absolute", "steps": steps}
	case "table":
		names := object{}
		for i, q := range p.Queries {
			names["Value #"+string(rune('A'+i))] = q.Legend
		}
		out["transformations"] = []object{
			{"id": "merge", "options": object{}},
			{"id": "organize", "options": object{"excludeByName": object{"Time": true}, "renameByName": names}},
		}
		delete(defaults, "min")
	default:
		out["type"] = "timeseries"
		custom := object{"fillOpacity": 10, "showPoints": "never"}
		if p.Stack {
			custom["fillOpacity"], custom["stacking"] = 60, object{"mode": "normal", "group": "A"}
		}
		defaults["custom"] = custom
		out["options"] = object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		}
	}
	out["fieldConfig"] = object{"defaults": defaults, "overrides": []any{}}
	return out
}
