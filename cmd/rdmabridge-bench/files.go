//go:build !nodemo

package main

import "github.com/rdmabridge/rdmabridge/internal/demo"

// serveFiles starts the NFS server in memory. It returns the server's address and a function that stops the server.
var serveFiles = demo.Start
