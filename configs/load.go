package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/viper"
)

// maxFile is the longest file that Load parses.
const maxFile = 1 << 20

// LoadFile loads the file at path as Load does. If it cannot read the file, the error is not of
// type Problems.
func LoadFile(path string, k Known) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	defer f.Close()
	return LoadReader(path, f, k)
}

// LoadReader loads what r has as Load does. Problems name it as name.
func LoadReader(name string, r io.Reader, k Known) (*Config, error) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(r, maxFile+1)); err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	return load(name, b.Bytes(), k)
}

// Load parses a configuration, sets the defaults, and checks every rule. Its error is of type
// Problems and lists every problem. Keys may be written in any case.
func Load(data []byte, k Known) (*Config, error) { return load("", data, k) }

func load(file string, data []byte, k Known) (*Config, error) {
	r := &report{file: file}
	if len(data) > maxFile {
		r.addf("", "the file is longer than %s", Size(maxFile))
		return nil, r.err()
	}
	// No key can contain this delimiter, so viper reads a.b: as one unknown key and
	// not as a path.
	v := viper.NewWithOptions(viper.KeyDelimiter("\x00"))
	v.SetConfigType("yaml")
	if err := v.ReadConfig(bytes.NewReader(data)); err != nil {
		r.addSyntax(err)
		return nil, r.err()
	}
	if err := readSource(data, r); err != nil {
		r.addSyntax(err)
		return nil, r.err()
	}
	c := &Config{source: r.source}
	if err := v.Unmarshal(c, viper.DecodeHook(decodeValue)); err != nil {
		r.addDecode(err)
	}
	c.setDefaults()
	c.validate(k, r)
	if err := r.err(); err != nil {
		return nil, err
	}
	c.warn(r)
	return c, nil
}

// Check reports every rule that the complete configuration c breaks, as Problems
// without lines, or nil. It is for a configuration that was combined from two files.
func (c *Config) Check(k Known) error {
	r := &report{}
	c.validate(k, r)
	return r.err()
}

// addSyntax adds the problems that the YAML parser found. err is one text with a line for each
// problem, which begins with the problem's line number in the file.
func (r *report) addSyntax(err error) {
	var parse viper.ConfigParseError
	if errors.As(err, &parse) {
		err = parse.Unwrap()
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	for s := range strings.SplitSeq(text, "\n") {
		line, s := cutLine(strings.TrimSpace(s))
		if strings.HasPrefix(s, "cannot unmarshal") && strings.HasSuffix(s, "into map[string]interface {}") {
			s = "write settings (name: value)"
		}
		r.add(problem{Line: line, Text: s})
	}
}

// cutLine splits "line 7: text" into 7 and text.
func cutLine(s string) (line int, text string) {
	rest, ok := strings.CutPrefix(s, "line ")
	if !ok {
		return 0, s
	}
	number, text, ok := strings.Cut(rest, ": ")
	if !ok {
		return 0, s
	}
	line, err := strconv.Atoi(number)
	if err != nil {
		return 0, s
	}
	return line, text
}

// LogFormat returns log.format of a file that Load has refused, as far as it can be read, or the default.
func LogFormat(path string) string {
	b, err := os.ReadFile(path)
	if err != nil || len(b) > maxFile {
		return formatJSON
	}
	v := viper.New()
	v.SetConfigType("yaml")
	if v.ReadConfig(bytes.NewReader(b)) != nil || v.GetString("log.format") != FormatConsole {
		return formatJSON
	}
	return FormatConsole
}
