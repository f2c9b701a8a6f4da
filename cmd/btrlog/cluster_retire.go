package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

func clusterRetire(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "retire NODE",
		Short: "Take a node that is stopped and holds no log out of the cluster, for good",
		Long: `Take a node out of the cluster, for good: no log is placed on it, 'cluster status' does not ask it any more, and it does not start under its
name again.

The node must be stopped, or its host gone, and no log may name it: 'btrlog log replace' moves each to another node. If one of that is not so,
nothing changes. A machine that comes back later needs a new --id and an empty --dir.`,
		Example: `  btrlog log replace --node n3=n4 orders    # each log that n3 holds
  btrlog cluster retire n3`,
		Args: oneArg("the node's name"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
			if err := stoppedNode(ctx, c, client, args[0]); err != nil {
				return err
			}
			err := client.RetireNode(ctx, args[0])
			if errors.Is(err, btrlog.ErrInvalid) {
				return &hinted{err, "'btrlog log replace' moves a log to another node, 'btrlog nodes' shows the nodes"}
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "node %s is retired\n", args[0])
			return err
		}),
	}
}

// stoppedNode refuses a node that answers at its address: to retire the wrong one cannot be undone.
func stoppedNode(ctx context.Context, c *connection, client *btrlog.Client, name string) error {
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Name != name || n.State == "retired" || n.HTTP == "" {
			continue
		}
		ask, done := context.WithTimeout(ctx, min(c.timeout, answerLimit))
		s, err := askStatus(ask, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, n.HTTP)
		done()
		if err == nil && string(s.Node) == name {
			return &hinted{fmt.Errorf("node %s answers at %s; nothing was changed", name, n.HTTP), "stop it first, if it is the one that is meant"}
		}
	}
	return nil
}
