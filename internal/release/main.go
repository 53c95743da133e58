// Release makes the documents that go with a binary.
//
//	go run ./internal/release documents [-version VERSION] BINARY...
//
// It writes two files beside each BINARY, which must have been built from this tree:
//
//	BINARY.cdx.json     a bill of materials, CycloneDX 1.6: the modules that are linked in, with
//	                    their versions, checksums and licences
//	BINARY.NOTICES.txt  the licences and notices of these modules and of Go
//
// It fails if the licence of a module is not one of the allowed ones (licence.go).
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if len(os.Args) < 2 || os.Args[1] != "documents" {
		fmt.Fprintln(os.Stderr, "usage: release documents [-version VERSION] BINARY...")
		os.Exit(2)
	}
	flags := flag.NewFlagSet("documents", flag.ExitOnError)
	version := flags.String("version", "", "the `version` that the linker has set: with -trimpath, nobody else knows it")
	_ = flags.Parse(os.Args[2:]) // exits on errors
	var err error
	for _, binary := range flags.Args() {
		err = errors.Join(err, writeDocuments(binary, *version))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
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
