package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
	"github.com/rdmabridge/rdmabridge/internal/nfsmount"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// otherPrograms are programs whose command lines the documents have. Only the paths of this repository in them are checked.
var otherPrograms = strings.Fields(`$new apt apt-get cat curl dd dnf docker echo ethtool git grep helm install iostat ip journalctl jq kubectl
	modprobe mount nfs-cp nfs-ls nfsstat openssl ping printf rdma rpcinfo ss ssh systemctl systemd-sysusers systemd-tmpfiles tcpdump
	touch tshark`)

// A docsPage is README.md or a page of docs.
type docsPage struct {
	name, text string
	prose      string // text without its blocks
	blocks     []docsBlock
}

// A docsBlock is what a page shows as code. Its text has no indentation that belongs to the page.
type docsBlock struct {
	line         int
	language     string // of a fence
	first, lines string
}

// documents returns README.md and the pages of docs.
func documents(t *testing.T) (all []*docsPage) {
	root := filepath.Join("..", "..")
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	must(t, err)
	for _, file := range append(names, filepath.Join(root, "README.md")) {
		name, err := filepath.Rel(root, file)
		must(t, err)
		all = append(all, parseDocument(name, string(readFile(t, file))))
	}
	return all
}

// parseDocument splits a page into its blocks and the rest.
func parseDocument(name, text string) *docsPage {
	d := &docsPage{name: name, text: text}
	lines := strings.Split(text, "\n")
	blank := true // the line before
	for i := 0; i < len(lines); i++ {
		language, fenced := strings.CutPrefix(lines[i], "```")
		begin, end := i, i
		switch {
		case fenced:
			for end++; !strings.HasPrefix(lines[end], "```"); end++ {
			}
			begin++
		case blank && strings.HasPrefix(lines[i], "    "):
			for ; end < len(lines) && (strings.HasPrefix(lines[end], "    ") || strings.TrimSpace(lines[end]) == ""); end++ {
			}
		default:
			d.prose += lines[i] + "\n"
			blank = strings.TrimSpace(lines[i]) == ""
			continue
		}
		b := docsBlock{line: begin + 1, language: language, lines: strings.TrimRight(strings.Join(lines[begin:end], "\n"), "\n ")}
		if !fenced {
			b.lines = strings.ReplaceAll("\n"+b.lines, "\n    ", "\n")[1:]
			end--
		}
		b.first, _, _ = strings.Cut(b.lines, "\n")
		d.blocks, i, blank = append(d.blocks, b), end, true
	}
	return d
}

// otherBlocks are blocks that are neither commands nor configurations, by their page and what they begin with.
var otherBlocks = map[[2]string]string{
	{"README.md", "sidecar   application"}:                "a drawing",
	{"docs/addresses.md", "listen nfs"}:                   "HAProxy's configuration",
	{"docs/faults.md", "6 * ("}:                           "a formula",
	{"docs/fault-server.md", "your client --"}:            "a drawing",
	{"docs/fault-server.md", "INF fault injected"}:        "a line of the log of rdmabridge-bench",
	{"docs/getting-started.md", "[nfsd]"}:                 "/etc/nfs.conf",
	{"docs/getting-started.md", "/export 10.0.0.2("}:      "/etc/exports",
	{"docs/getting-started.md", "10.0.0.2:/export /mnt"}:  "a line of /etc/fstab for mount.nfs",
	{"docs/getting-started.md", "127.0.0.1:/export /mnt"}: "compared by TestOutputsInDocs",
	{"docs/logs.md", "{\"level\""}:                        "lines of the log, whose events TestLogEvents compares",
	{"docs/logs.md", "/var/log/rdmabridge/access.log {"}:  "logrotate's configuration",
	{"docs/audit.md", "{\"time\""}:                        "a line of the audit log",
	{"docs/audit.md", "/var/log/rdmabridge/audit.log {"}:  "logrotate's configuration",
	{"docs/mount.md", "10.1.0.5:/export is mounted"}:      "compared by TestOutputsInDocs",
	{"docs/mount.md", "10.1.0.5:/export   /mnt"}:          "lines of /etc/fstab, compared by TestOutputsInDocs",
	{"docs/cli.md", "rdmabridge (devel), process"}:        "what top draws",
	{"docs/tls.md", "[authenticate.client]"}:              "tlshd's configuration",
	{"docs/tls.md", "RDMA clients ->"}:                    "a drawing",
	{"docs/configuration.md", "# yaml-language-server"}:   "a comment for editors",
	{"docs/kubernetes.md", "apiVersion:"}:                 "objects of Kubernetes",
	{"docs/kubernetes.md", "rules:"}:                      "values of prometheus-adapter",
}

// docsFragments are settings that stand in documents without the setting that they belong to: what they begin with, and what
// has to stand before them.
var docsFragments = map[string]string{
	"squash:":                 "listeners:\n  - name: nfs\n    address: 127.0.0.1:2049\n    upstream: storage\n",
	"ibverbs:":                "upstreams:\n  - name: storage\n    transport: rdma\n    provider: ibverbs\n    endpoints: ['10.1.0.5:20049']\n",
	"- {name: mount, address": "listeners:\n",
}

// TestDocs reads every block of README.md and docs as what it is: command lines, which the commands must accept, and
// configurations, which the checker must. Each other kind of block is in otherBlocks, so that no block is left out.
func TestDocs(t *testing.T) {
	targets := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z -]*):(?:[^=]|$)`).FindAllStringSubmatch(string(readFile(t, "../../Makefile")), -1) {
		for _, name := range strings.Fields(m[1]) {
			targets[name] = true
		}
	}
	x := &docsTest{settings: make(map[string]bool), targets: targets, metrics: make(map[string]bool), used: make(map[[2]string]bool), counts: make(map[string]int)}
	config := reflect.TypeFor[configs.Config]()
	for i := range config.NumField() {
		x.settings[config.Field(i).Tag.Get("mapstructure")] = true
	}
	for _, d := range metrics.All() {
		x.metrics[d.Name] = true
	}
	t.Setenv("STORAGE", "10.1.0.5")
	for _, d := range documents(t) {
		x.document(t, d)
	}
	for key := range otherBlocks {
		if !x.used[key] {
			t.Errorf("%s has no block that begins with %q", key[0], key[1])
		}
	}
	t.Log(x.counts)
	for what, least := range map[string]int{"command line": 150, "inline command": 100, "configuration": 25, "metric": 100, "path": 15, "make": 10} {
		if x.counts[what] < least {
			t.Errorf("%d of %s, want %d", x.counts[what], what, least)
		}
	}
}

// A docsTest is what the documents are compared with.
type docsTest struct {
	settings, targets, metrics map[string]bool
	used                       map[[2]string]bool // of otherBlocks
	counts                     map[string]int     // of what was checked
}

// document reports what is wrong in d.
func (x *docsTest) document(t *testing.T, d *docsPage) {
	for i := range d.blocks {
		b := &d.blocks[i]
		if err := x.block(t, d, b); err != nil {
			t.Errorf("%s:%d: %v\n%s", d.name, b.line, err, b.lines)
		}
	}
	for _, m := range regexp.MustCompile("`((?:rdmabridge|make) [^`\n]*)`").FindAllStringSubmatch(d.prose, -1) {
		x.counts["inline command"]++
		if err := x.commands(m[1], false); err != nil {
			t.Errorf("%s: `%s`: %v", d.name, m[1], err)
		}
	}
	for _, m := range regexp.MustCompile("`(rdmabridge_)?([a-z]+_[a-z0-9_]+)(\\{[^`\n]*)?`").FindAllStringSubmatch(d.text, -1) {
		if m[1] == "" && m[3] == "" && !strings.HasSuffix(m[2], "_total") {
			continue // perhaps a setting, an event or a code
		}
		if x.counts["metric"]++; !x.metrics[m[2]] {
			t.Errorf("%s: no metric is %s", d.name, m[0])
		}
	}
}

// block returns what is wrong in a block of d.
func (x *docsTest) block(t *testing.T, d *docsPage, b *docsBlock) error {
	word, _, _ := strings.Cut(strings.TrimLeft(b.first, " "), " ")
	key, isKey := strings.CutSuffix(word, ":")
	for name := range otherBlocks {
		if name[0] == d.name && strings.HasPrefix(strings.TrimLeft(b.first, " "), name[1]) {
			x.used[name] = true
			if strings.HasPrefix(b.first, "apiVersion") {
				return yaml.Unmarshal([]byte(b.lines), new(any))
			}
			return nil
		}
	}
	switch {
	case b.language == "promql" && d.name == "docs/metrics.md": // metrics.TestReference
		return nil
	case isKey && (x.settings[key] || strings.HasPrefix(key, "x-")):
		return x.configuration(t, b.lines)
	case b.language == "yaml" || isKey:
		first := strings.TrimLeft(b.first, " ")
		for begin, before := range docsFragments {
			if strings.HasPrefix(first, begin) {
				return x.configuration(t, before+strings.ReplaceAll("\n"+b.lines, "\n"+b.first[:len(b.first)-len(first)], "\n    "))
			}
		}
		return fmt.Errorf("%s is no setting of the first level; docsFragments should say what it belongs to", key)
	}
	return x.shell(b)
}

// configuration has the checker read a configuration, beside a file with what it does not have: the listener, and the
// upstreams that it names.
func (x *docsTest) configuration(t *testing.T, text string) error {
	x.counts["configuration"]++
	var c map[string]any
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	lacks := make(map[string]bool)
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if name, ok := v["upstream"].(string); ok {
				lacks[name] = true
			}
			for _, v := range v {
				look(v)
			}
		case []any:
			for _, v := range v {
				look(v)
			}
		}
	}
	look(c)
	name := "stub"
	upstreams, _ := c["upstreams"].([]any)
	for _, u := range upstreams {
		name, _ = u.(map[string]any)["name"].(string)
		delete(lacks, name)
	}
	rest := ""
	if c["listeners"] == nil {
		rest = fmt.Sprintf("listeners: [{name: stub, address: '127.0.0.1:2049', upstream: %s}]\n", name)
		lacks[name] = len(upstreams) == 0
	}
	rest += "upstreams:\n"
	for name, lacking := range lacks {
		if lacking {
			rest += fmt.Sprintf("  - {name: %s, transport: tcp, endpoints: ['10.1.0.5:2049']}\n", name)
		}
	}
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "page.yaml"), filepath.Join(dir, "rest.yaml")}
	write(t, files[0], text)
	write(t, files[1], rest)
	if !strings.Contains(rest, "{") {
		files = files[:1] // it is whole
	}
	all := known
	all.Providers = append(slices.Clone(all.Providers), configs.ProviderIBVerbs)
	all.Provider, all.IBVerbs, all.ListenerTLS, all.UpstreamTLS, all.Tracing = nil, nil, nil, nil, nil // of another build, and of a host with the files
	loaded, err := configs.LoadFiles(files, all)
	if err != nil {
		return err
	}
	if w := loaded.Warnings(); len(w) > 0 && len(files) == 1 {
		return fmt.Errorf("a warning: %v", w)
	}
	return nil
}

// shell checks the command lines of a block: those behind a dollar, or all if there is none.
func (x *docsTest) shell(b *docsBlock) error {
	dollars := strings.Contains("\n"+b.lines, "\n$ ")
	for _, line := range strings.Split(strings.ReplaceAll(b.lines, "\\\n", " "), "\n") {
		command, dollar := strings.CutPrefix(line, "$ ")
		if dollars != dollar || line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := x.commands(command, true); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
	}
	return nil
}

// commands checks the commands of a line. Those in a sentence may be without their arguments.
func (x *docsTest) commands(line string, complete bool) error {
	for _, words := range shellCommands(line) {
		for len(words) > 0 && (words[0] == "sudo" || strings.Contains(words[0], "=")) {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		for _, word := range words {
			for path := range strings.SplitSeq(word, ":") {
				path = strings.TrimPrefix(strings.TrimPrefix(path, "$PWD/"), "./")
				if top, _, ok := strings.Cut(path, "/"); ok && slices.Contains([]string{"cmd", "configs", "deploy", "docs", "internal"}, top) {
					x.counts["path"]++
					if found, err := filepath.Glob(filepath.Join("..", "..", path)); err != nil || len(found) == 0 {
						return fmt.Errorf("there is no %s", path)
					}
				}
			}
		}
		if i := slices.Index(words, "/rdmabridge"); i > 0 { // in a container
			words = words[i:]
		}
		if len(words) > 2 && words[0] == "go" && words[1] == "run" {
			words = words[2:]
		}
		switch name := filepath.Base(words[0]); {
		case name == "rdmabridge", name == "rdmabridge-ibverbs":
			x.counts["command line"]++
			if err := clitest.CommandLine(newCommand(), words[1:], complete); err != nil {
				return err
			}
		case name == "rdmabridge-bench", strings.HasPrefix(words[0], "deploy/"), words[0] == "go": // the test of that program
		case name == "make":
			for _, target := range words[1:] {
				if x.counts["make"]++; !strings.Contains(target, "=") && !x.targets[target] {
					return fmt.Errorf("the Makefile has no %s", target)
				}
			}
		case !slices.Contains(otherPrograms, name) && name != "cd":
			return fmt.Errorf("what is %s? It is no setting, and neither in otherPrograms nor in otherBlocks", words[0])
		}
	}
	return nil
}

// shellCommands splits a line as a shell does, into commands and their words. Words after a redirection are left out.
func shellCommands(line string) (all [][]string) {
	line = regexp.MustCompile(`\$\([^)]*\)`).ReplaceAllString(line, "1")
	var words []string
	word, quote, inWord, redirected := "", rune(0), false, false
	end := func() {
		if inWord && !redirected {
			words = append(words, word)
		}
		redirected = redirected && !inWord
		word, inWord = "", false
	}
	next := func() {
		if end(); len(words) > 0 {
			all = append(all, words)
		}
		words = nil
	}
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word += string(c)
		case c == '\'' || c == '"':
			quote, inWord = c, true
		case c == ' ':
			end()
		case c == '#' && !inWord:
			next()
			return all
		case c == '|' || c == ';' || c == '&':
			next()
		case c == '>' || c == '<':
			end()
			redirected = true
		default:
			word, inWord = word+string(c), true
		}
	}
	next()
	return all
}

// docsOutputs are the commands whose docsOutputs the documents show: how the test has them again, or why it cannot.
var docsOutputs = map[[2]string]string{
	{"docs/configuration.md", "check -c site.yaml"}:                         "compared",
	{"docs/configuration.md", "check rdmabridge.yaml"}:                      "compared",
	{"docs/rules.md", "check -c rdmabridge.yaml --explain 10.2.0.7:1022"}:   "compared",
	{"docs/cli.md", "config print --effective rdmabridge.yaml"}:             "compared",
	{"docs/rules.md", "explain -c rdmabridge.yaml --listener nfs nfs.pcap"}: "needs a capture",
	{"docs/explain.md", "explain nfs.pcap"}:                                 "needs a capture",
	{"docs/capture.md", "explain --summary all.pcapng"}:                     "needs a capture",
	{"docs/capture.md", "capture -w - | tshark -r -"}:                       "needs a bridge and tshark",
	{"docs/doctor.md", "doctor -c rdmabridge.yaml"}:                         "needs devices and a server",
	{"docs/cli.md", "stats"}:                                                "needs a bridge and a load",
	{"docs/cli.md", "clients --hosts"}:                                      "needs a bridge and a load",
	{"docs/cli.md", "upstreams"}:                                            "needs a bridge and a load",
	{"docs/cli.md", "disconnect 127.0.0.1"}:                                 "needs a bridge",
	{"docs/cli.md", "log-level debug --for 5m"}:                             "needs a bridge",
	{"docs/cli.md", "eject storage 127.0.0.1:22051"}:                        "needs a bridge",
	{"docs/cli.md", "drain --wait"}:                                         "needs a bridge",
	{"docs/operation.md", "serve --takeover -c rdmabridge.yaml"}:            "needs a bridge",
}

// TestOutputsInDocs: what the documents say that commands print is what they print, as far as a test without a server can
// have it. Outputs that are not compared are in the table.
func TestOutputsInDocs(t *testing.T) {
	said := make(map[[2]string]string)
	pages := make(map[string]*docsPage)
	for _, d := range documents(t) {
		pages[d.name] = d
		for i := range d.blocks {
			for _, part := range strings.Split("\n"+d.blocks[i].lines, "\n$ ")[1:] {
				command, output, _ := strings.Cut(part, "\n")
				if args, ours := strings.CutPrefix(command, "rdmabridge "); ours {
					said[[2]string{d.name, args}] = output
				}
			}
		}
	}
	for key := range said {
		if docsOutputs[key] == "" {
			t.Errorf("%s: %q has an output that nothing compares, and no reason for it in docsOutputs", key[0], key[1])
		}
	}
	for key := range docsOutputs {
		if _, ok := said[key]; !ok {
			t.Errorf("%s does not have the command %q", key[0], key[1])
		}
	}
	dir := t.TempDir()
	prints := func(line string) string {
		_, out, errOut := run(strings.Fields(strings.ReplaceAll(strings.ReplaceAll(line, " site.yaml", " "+dir+"/site.yaml"), " rdmabridge.yaml", " "+dir+"/rdmabridge.yaml"))...)
		return strings.ReplaceAll(out+errOut, dir+"/", "")
	}
	budget := regexp.MustCompile(`memory budget \S+`) // which depends on the machine
	same := func(page, line string) {
		t.Helper()
		want := budget.ReplaceAllString(said[[2]string{page, line}], "")
		if got := budget.ReplaceAllString(prints(line), ""); want == "" || strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("rdmabridge %s prints\n%s\n%s says\n%s", line, got, page, want)
		}
	}

	write(t, filepath.Join(dir, "site.yaml"), "listeners:\n  - name: nfs\n    address: [::1]:2049\n")
	same("docs/configuration.md", "check -c site.yaml")

	for i := range pages["README.md"].blocks {
		if b := &pages["README.md"].blocks[i]; b.language == "yaml" {
			write(t, filepath.Join(dir, "rdmabridge.yaml"), b.lines)
		}
	}
	same("docs/configuration.md", "check rdmabridge.yaml")

	rules := pages["docs/rules.md"].blocks[0].lines
	write(t, filepath.Join(dir, "rdmabridge.yaml"), rules+"\nupstreams: [{name: storage, transport: tcp, endpoints: ['h:1']}, {name: archive, transport: tcp, endpoints: ['h:2']}]\n")
	same("docs/rules.md", "check -c rdmabridge.yaml --explain 10.2.0.7:1022")

	// The numbers of config print depend on the machine, and the page has parts of the output.
	write(t, filepath.Join(dir, "rdmabridge.yaml"), `listeners:
  - {name: nfs, address: "127.0.0.1:22049", upstream: storage}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["127.0.0.1:22051"]}




memory: {budget: 256MiB}
`)
	digits := regexp.MustCompile(`[0-9]+[A-Za-z]*  +`)
	line := "config print --effective rdmabridge.yaml"
	got := digits.ReplaceAllString(prints(line), "N ")
	for want := range strings.Lines(said[[2]string{"docs/cli.md", line}]) {
		if want = digits.ReplaceAllString(want, "N "); want == "...\n" {
			continue
		}
		_, rest, found := strings.Cut("\n"+got, "\n"+want)
		if !found {
			t.Fatalf("config print does not print %q after the lines that docs/cli.md has before it:\n%s", want, got)
		}
		got = rest
	}

	r, err := nfsmount.Parse("10.1.0.5:/export", "/mnt", "", 20049, []string{"iwarp"})
	must(t, err)
	var out bytes.Buffer
	sayMounted(&out, r, &nfsmount.Host{Systemd: true, Program: "/usr/bin/rdmabridge"}, "4.2")
	for i := range pages["docs/mount.md"].blocks {
		b := &pages["docs/mount.md"].blocks[i]
		switch {
		case strings.HasPrefix(b.first, "10.1.0.5:/export is mounted"):
			if !strings.HasPrefix(out.String(), b.lines+"\n") {
				t.Errorf("mount prints\n%s\ndocs/mount.md says\n%s", &out, b.lines)
			}
		case strings.HasPrefix(b.first, "10.1.0.5:/export   /mnt"):
			for line := range strings.Lines(b.lines) {
				if f := strings.Fields(line); len(f) != 6 || f[2] != "rdmabridge" {
					t.Errorf("docs/mount.md: %s", line)
				} else if _, err := nfsmount.Parse(f[0], f[1], f[3], 20049, []string{"iwarp"}); err != nil {
					t.Errorf("docs/mount.md: %s: %v", line, err)
				}
			}
		}
	}

	_, fstab, errOut := run("init", filepath.Join(dir, "new.yaml"), "--storage", "10.1.0.5", "--as", "sidecar", "--no-doctor")
	for i := range pages["docs/getting-started.md"].blocks {
		if b := &pages["docs/getting-started.md"].blocks[i]; strings.HasPrefix(b.first, "127.0.0.1:/export /mnt") && !strings.Contains(fstab, b.first) {
			t.Errorf("init prints\n%s%s\ndocs/getting-started.md says\n%s", fstab, errOut, b.first)
		}
	}
}
