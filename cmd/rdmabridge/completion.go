package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// completionTimeout bounds how long a shell waits for the running bridge.
const completionTimeout = time.Second

// oneClient asks for a document that is cheap.
var oneClient = status.Query{Clients: 1}

// complete returns what words finds in the document of the running bridge: words for a shell, each with
// a description after a tab. There are none if no bridge answers.
func complete(bridge *bridgeFlag, q status.Query, words func(*status.Document) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	c, err := bridge.client(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	d, err := document(ctx, c, q)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words(d), cobra.ShellCompDirectiveNoFileComp
}

// completeEndpoints completes an upstream and one of its endpoints.
func completeEndpoints(bridge *bridgeFlag, use func(*status.Endpoint) bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return complete(bridge, oneClient, func(d *status.Document) (words []string) {
			for i := range d.Upstreams {
				u := &d.Upstreams[i]
				switch {
				case len(args) == 0:
					words = append(words, u.Name+"\t"+string(u.State))
				case len(args) == 1 && args[0] == u.Name:
					for j := range u.Endpoints {
						if e := &u.Endpoints[j]; use(e) {
							words = append(words, e.Address+"\t"+string(e.State))
						}
					}
				}
			}
			return words
		})
	}
}

// clientWords are the clients, and their hosts.
func clientWords(d *status.Document) (words []string) {
	hosts := make(map[string]bool)
	for i := range d.Clients.List {
		c := &d.Clients.List[i]
		if host := show.Host(c.Address); !hosts[host] {
			hosts[host] = true
			words = append(words, host+"\tall its connections")
		}
		words = append(words, c.Address+"\tat "+c.Listener)
	}
	return words
}

// completeWords makes words the values that a shell completes a flag with.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic("BUG: " + err.Error())
	}
}
