package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// errNoDatabase means that nothing was checked.
var errNoDatabase = errors.New("the vulnerability database cannot be read, so nothing was checked")

// A report is what govulncheck has found.
type report struct {
	scanner   string    // its name and version
	database  time.Time // when the database was changed last
	goVersion string    // of the standard library
	findings  []finding
}

// A finding is a vulnerability in something that the program is built from.
type finding struct {
	id      string
	module  string
	version string
	fixed   string // the version without it, if there is one
	calls   string // the way from the program to the vulnerable function; empty if it is not called
}

// reach returns an error unless there is a database at this URL.
func reach(db string) error {
	at, err := url.Parse(db)
	if err != nil {
		return err
	}
	index := at.JoinPath("index", "db.json")
	if at.Scheme == "file" {
		_, err = os.Stat(index.Path)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var req *http.Request
		if req, err = http.NewRequestWithContext(ctx, http.MethodGet, index.String(), nil); err != nil {
			return err
		}
		var resp *http.Response
		if resp, err = http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s: %s", index, resp.Status)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoDatabase, err)
	}
	return nil
}

// lookUp runs govulncheck in dir, with the arguments that name packages.
func lookUp(dir, db string, packages []string) (report, error) {
	if err := reach(db); err != nil {
		return report{}, err
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return report{}, fmt.Errorf("go env GOMOD: %w", err)
	}
	tools := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "internal", "tools", "go.mod")
	scanner, err := exec.Command("go", "tool", "-modfile="+tools, "-n", "govulncheck").Output() // builds it, and prints its path
	if err != nil {
		return report{}, fmt.Errorf("go tool -n govulncheck: %w", err)
	}
	cmd := exec.Command(strings.TrimSpace(string(scanner)), append([]string{"-format", "json", "-db", db}, packages...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stream, err := cmd.Output()
	if err != nil {
		return report{}, fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return readReport(bytes.NewReader(stream))
}

// readReport reads the JSON of govulncheck.
func readReport(r io.Reader) (report, error) {
	var found report
	worst := map[string]finding{} // by vulnerability: govulncheck repeats it for modules, packages and calls
	for d := json.NewDecoder(r); ; {
		var message struct {
			Config *struct {
				ScannerName    string    `json:"scanner_name"`
				ScannerVersion string    `json:"scanner_version"`
				DBLastModified time.Time `json:"db_last_modified"`
				GoVersion      string    `json:"go_version"`
			} `json:"config"`
			Finding *struct {
				OSV          string `json:"osv"`
				FixedVersion string `json:"fixed_version"`
				Trace        []struct {
					Module, Version, Package, Function, Receiver string
				} `json:"trace"`
			} `json:"finding"`
		}
		if err := d.Decode(&message); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return found, fmt.Errorf("output of govulncheck: %w", err)
		}
		if c := message.Config; c != nil {
			found.scanner, found.database, found.goVersion = strings.TrimSpace(c.ScannerName+" "+c.ScannerVersion), c.DBLastModified, c.GoVersion
		}
		if f := message.Finding; f != nil && len(f.Trace) > 0 {
			n := finding{id: f.OSV, module: f.Trace[0].Module, version: f.Trace[0].Version, fixed: f.FixedVersion}
			if f.Trace[0].Function != "" {
				var way []string
				for _, frame := range slices.Backward(f.Trace) {
					name := frame.Function
					if frame.Receiver != "" {
						name = frame.Receiver + "." + name
					}
					way = append(way, frame.Package+"."+name)
				}
				n.calls = strings.Join(way, " calls ")
			}
			if worst[n.id].calls == "" {
				worst[n.id] = n
			}
		}
	}
	if found.database.IsZero() {
		return found, errors.New("govulncheck does not say how old the database is")
	}
	found.findings = slices.SortedFunc(maps.Values(worst), func(a, b finding) int { return cmp.Compare(a.id, b.id) })
	return found, nil
}

// judge prints r. It returns an error if the program calls something vulnerable that no exception covers, or
// if an exception is over or has no use.
func (r report) judge(w io.Writer, exceptions []exception, now time.Time) error {
	fmt.Fprintf(w, "%s, %s; the database is of %s\n", r.scanner, r.goVersion, r.database.UTC().Format("2006-01-02 15:04"))
	var err error
	used := map[string]bool{}
	for _, f := range r.findings {
		fixed := "no version is without it"
		if f.fixed != "" {
			fixed = "fixed in " + f.fixed
		}
		i := slices.IndexFunc(exceptions, func(e exception) bool { return e.id == f.id })
		switch {
		case f.calls == "":
			fmt.Fprintf(w, "%s in %s %s, which is not called; %s\n", f.id, f.module, f.version, fixed)
		case i < 0:
			err = errors.Join(err, fmt.Errorf("%s in %s %s, %s: %s", f.id, f.module, f.version, fixed, f.calls))
		case !now.Before(exceptions[i].until):
			used[f.id] = true
			err = errors.Join(err, fmt.Errorf("%s in %s %s, %s: its exception was until %s", f.id, f.module, f.version, fixed, exceptions[i].until.Format(time.DateOnly)))
		default:
			used[f.id] = true
			fmt.Fprintf(w, "%s in %s %s, accepted until %s: %s\n", f.id, f.module, f.version, exceptions[i].until.Format(time.DateOnly), exceptions[i].reason)
		}
	}
	for _, e := range exceptions {
		if !used[e.id] {
			err = errors.Join(err, fmt.Errorf("the exception for %s has no use: remove it", e.id))
		}
	}
	return err
}
