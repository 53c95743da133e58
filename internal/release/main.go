// Release makes the documents that go with a binary, and looks for known vulnerabilities.
//
//	go run ./internal/release documents [-version VERSION] BINARY...
//	go run ./internal/release vulnerabilities [-db URL]
//
// Documents writes two files beside each BINARY, which must have been built from this tree:
//
//	BINARY.cdx.json     a bill of materials, CycloneDX 1.6: the modules that are linked in, with
//	                    their versions, checksums and licences
//	BINARY.NOTICES.txt  the licences and notices of these modules and of Go
//
// It fails if the licence of a module is not one of the allowed ones (licence.go).
//
// Vulnerabilities runs govulncheck over the bridge with all build tags, the standard library
// included, and fails if the bridge calls a vulnerable function and exceptions (exceptions.go) does not
// have the vulnerability. It exits with 3 when the database cannot be read.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// exitUnchecked is the exit code of vulnerabilities when there is no database to check with.
const exitUnchecked = 3

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: release documents [-version VERSION] BINARY... | release vulnerabilities [-db URL]")
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "documents":
		flags := flag.NewFlagSet("documents", flag.ExitOnError)
		version := flags.String("version", "", "the `version` that the linker has set: with -trimpath, nobody else knows it")
		_ = flags.Parse(os.Args[2:]) // exits on errors
		for _, binary := range flags.Args() {
			err = errors.Join(err, writeDocuments(binary, *version))
		}
	case "vulnerabilities":
		flags := flag.NewFlagSet("vulnerabilities", flag.ExitOnError)
		db := flags.String("db", "https://vuln.go.dev", "the `URL` of the database; a mirror in a directory is file:///DIRECTORY")
		_ = flags.Parse(os.Args[2:]) // exits on errors
		var r report
		if r, err = lookUp(".", *db, []string{"-tags", "ibverbs,otel", "./cmd/rdmabridge"}); err == nil {
			err = r.judge(os.Stdout, exceptions, time.Now())
		}
	default:
		err = fmt.Errorf("no command %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		if errors.Is(err, errNoDatabase) {
			os.Exit(exitUnchecked)
		}
		os.Exit(1)
	}
}

// writeDocuments writes the documents of a binary beside it.
func writeDocuments(file, version string) error {
	b, err := readBinary(file, version)
	if err != nil {
		return err
	}
	for _, m := range b.modules {
		err = errors.Join(err, m.checkLicence())
	}
	if err != nil {
		return err
	}
	return errors.Join(writeFile(file+".NOTICES.txt", b.writeNotices), writeFile(file+".cdx.json", b.writeMaterials))
}

// writeFile writes a file anew.
func writeFile(name string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}
