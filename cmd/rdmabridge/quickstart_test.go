//go:build !nodemo

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/demo"
)

// TestQuickStart types what README.md has under "Try it", and compares the answers with what README.md says and with the
// recording of it in docs/images. -update makes the recording anew. Its octets are those of the commands; when each is typed
// is not.
func TestQuickStart(t *testing.T) {
	root := filepath.Join("..", "..")
	if _, err := exec.LookPath("nfs-cp"); err != nil {
		if os.Getenv("RDMABRIDGE_LAB") == "1" {
			t.Fatalf("%v, and RDMABRIDGE_LAB=1 says it is there", err)
		}
		t.Skipf("%v: install libnfs-utils", err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Try it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	a, _ := startDemo(t)
	port := a.TCP[strings.LastIndex(a.TCP, ":")+1:]

	var help bytes.Buffer
	usual := demo.Addresses{TCP: "127.0.0.1:12049", RDMA: "127.0.0.1:20049", Admin: "127.0.0.1:9090"}
	if err := usual.Help(&help); err != nil {
		t.Fatal(err)
	}
	var r recording
	r.command("rdmabridge demo 2> demo.log &", help.String())
	var answer strings.Builder
	said, command := "", ""
	end := func() {
		if command != "" && answer.String() != said {
			t.Errorf("%s prints\n%s\nREADME.md says\n%s", command, answer.String(), said)
		}
		if command != "" {
			r.command(command, answer.String())
		}
	}
	for line := range strings.Lines(section) {
		line, indented := strings.CutPrefix(line, "    ")
		if typed, ok := strings.CutPrefix(line, "$ "); ok && indented {
			end()
			said, command = "", strings.TrimSpace(typed)
			answer.Reset()
			sh := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, "port=12049", "port="+port))
			sh.Dir, sh.Stdout, sh.Stderr = root, &answer, &answer
			if err := sh.Run(); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, answer.String())
			}
		} else if indented {
			said += line
		} else {
			end()
			command = ""
		}
	}
	if len(r.events) < 3 {
		t.Fatalf("README.md has %d commands under Try it", len(r.events)-1)
	}
	for name, got := range map[string][]byte{"quickstart.cast": r.cast(t), "quickstart.svg": r.svg()} {
		file := filepath.Join(root, "docs", "images", name)
		if *update {
			write(t, file, string(got))
		}
		if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is of another quick start (%v); go test ./cmd/rdmabridge -run TestQuickStart -update makes it anew", file, err)
		}
	}
}

// A recording is what a terminal showed.
type recording struct {
	events []recorded
	at     time.Duration
}

type recorded struct {
	at      time.Duration // of the first key; the answer comes when the command is typed
	command string
	answer  string
}

const keyTime = 30 * time.Millisecond

func (e *recorded) answered() time.Duration { return e.at + time.Duration(len(e.command)+10)*keyTime }

func (r *recording) command(command, answer string) {
	r.events = append(r.events, recorded{at: r.at + time.Second, command: command, answer: strings.Trim(answer, "\n") + "\n"})
	r.at = r.events[len(r.events)-1].answered() + 2*time.Second
}

// size returns the columns and rows that show all of it.
func (r *recording) size() (columns, rows int) {
	for _, e := range r.events {
		for line := range strings.Lines("$ " + e.command + "\n" + e.answer) {
			columns, rows = max(columns, len(line)), rows+1
		}
	}
	return columns, rows + 1
}

// cast returns the recording as asciinema has it, version 2.
func (r *recording) cast(t *testing.T) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	line := func(v any) {
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	columns, rows := r.size()
	line(map[string]any{"version": 2, "width": columns, "height": rows, "title": "rdmabridge: the quick start"})
	event := func(at time.Duration, text string) {
		line([]any{at.Seconds(), "o", strings.ReplaceAll(text, "\n", "\r\n")})
	}
	event(0, "$ ")
	for _, e := range r.events {
		for i, key := range e.command {
			event(e.at+time.Duration(i)*keyTime, string(key))
		}
		event(e.answered(), "\n"+e.answer+"$ ")
	}
	return out.Bytes()
}

// svg returns the recording as a picture in which the lines appear one after the other. Where nothing moves, all are there.
func (r *recording) svg() []byte {
	const charWidth, lineHeight, edge = 7.25, 17, 14
	columns, rows := r.size()
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" width="%.0f" height="%d" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="12">
<title>The quick start in a terminal</title>
<style>
rect{fill:#161b22}text{fill:#c9d1d9;white-space:pre}.typed{fill:#7ee787}
@media (prefers-reduced-motion:no-preference){text{animation:show 1ms backwards}}
@keyframes show{from{opacity:0}}
</style>
<rect width="100%%" height="100%%" rx="8"/>
`, float64(columns)*charWidth+2*edge, rows*lineHeight+2*edge)
	y := edge
	line := func(at time.Duration, class, text string) {
		y += lineHeight
		if text != "" {
			fmt.Fprintf(&out, "<text x=\"%d\" y=\"%d\"%s style=\"animation-delay:%dms\">%s</text>\n", edge, y-4, class, at.Milliseconds(), html.EscapeString(text))
		}
	}
	for _, e := range r.events {
		line(e.at, ` class="typed"`, "$ "+e.command)
		for text := range strings.Lines(e.answer) {
			line(e.answered(), "", strings.TrimRight(text, "\n"))
		}
	}
	line(r.at, ` class="typed"`, "$")
	out.WriteString("</svg>\n")
	return out.Bytes()
}
