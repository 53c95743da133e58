package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	const in = `# head


log:   {level:   ${LEVEL:-info}}   # a ${comment}


# about loops
loops: 2
Listeners:
- name: "a"   # the name
  # above address
  address: ':1'

- {name: b,
   address: ":2"}
x-a:     &a
    b: |
      # text


      more

    c: 1

y:
  <<: *a
# end


`
	const want = `# head

log: {level: '${LEVEL:-info}'} # a ${comment}

# about loops
loops: 2
Listeners:
  - name: "a" # the name
    # above address
    address: ':1'

  - {name: b, address: ":2"}
x-a: &a
  b: |
    # text


    more

  c: 1

y:
  <<: *a
# end
`
	quoted := strings.Replace(in, "${LEVEL:-info}", `'${LEVEL:-info}'`, 1)
	out, err := Format("f", []byte(quoted))
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	// Within braces a variable needs quotes.
	if _, err := Format("f.yaml", []byte(in)); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:4: write \"${LEVEL:-info}\", in quotes") {
		t.Errorf("%v", err)
	}
}

// TestFormatExamples: what is formatted is the same configuration, and formatting it again changes nothing.
func TestFormatExamples(t *testing.T) {
	files, _ := filepath.Glob("examples/*.yaml")
	for _, f := range append(files, "rdmabridge.yaml") {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		once, err := Format(f, data)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		twice, err := Format(f, once)
		if err != nil || string(twice) != string(once) {
			t.Errorf("%s: formatted twice is something else: %v", f, err)
		}
		before, err1 := Load(data, examplesKnown())
		after, err2 := Load(once, examplesKnown())
		if err1 != nil || err2 != nil || len(Diff(before, after)) > 0 {
			t.Errorf("%s: another configuration: %v %v", f, err1, err2)
		}
		if strings.Count(string(once), "#") < strings.Count(string(data), "#") {
			t.Errorf("%s: comments are lost", f)
		}
	}
}

func FuzzFormat(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a: # b\n\n  - c # d\n\n# e\n"))
	f.Add([]byte("0: #\n !\n    ")) // a tag without a value, and a comment that the library loses behind it
	f.Add([]byte("a: |\n\n  b\n\n\nc: >-\n  d\n\n  e\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := Format("", data)
		if err != nil {
			return
		}
		if _, err := Format("", out); err != nil {
			t.Errorf("%q cannot be formatted again: %v", out, err)
		}
	})
}
