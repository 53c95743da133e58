package main

import (
	_ "github.com/go-git/go-billy/v5/memfs"
	_ "github.com/panjf2000/gnet/v2"
	_ "github.com/rs/zerolog"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/viper"
	_ "github.com/willscott/go-nfs"
	_ "github.com/willscott/go-nfs/helpers"
	_ "golang.org/x/sys/unix"
)

func main() {}
