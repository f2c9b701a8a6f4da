package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/collect"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/objstore"
)

// gcSettled is how long the store must have had a pack, by the clock of this machine, before the command takes it for one that a
// listing shows: far longer than the nodes wait, because this clock may be wrong.
const gcSettled = time.Hour

const archiveGCLong = `Show which objects of the archive nobody needs, and why; with --yes delete them. The nodes do the same in the background, every ten
minutes for each log, so there is rarely a reason to.

An object goes when all of it is below the trim point of its log, or its log is deleted; an object that is shared by short stretches of
many logs, a pack, when it was merged into others at least an hour ago, when nothing in it is wanted, or when all that is wanted is in others too (two
nodes that merge at once make such doubles). The trim point, or the deletion, is on
record before; a node that still was to write such an object writes what no reader is shown, and it is collected again.

What the metadata does not know stays: its creator may be on his way. Retention is the nodes' business: it moves trim points by the clock
of the store, and this command moves none.`

// garbageReport is what 'archive gc' did.
type garbageReport struct {
	Objects int64    `json:"objects"`
	Bytes   int64    `json:"bytes"`
	Deleted bool     `json:"deleted"`
	Unknown []string `json:"unknown_logs"`
}

func archiveGC(c *connection) *cobra.Command {
	var asJSON, sure bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Show, or delete, what of the archive nobody needs",
		Long:  archiveGCLong,
		Example: `  btrlog archive gc                 # shows what would go
  btrlog archive gc --yes
  btrlog archive gc --json | jq -r 'select(.key) | .key'`,
		Args: noArgs,
	}
	cmd.Flags().BoolVar(&sure, "yes", false, "delete it; without this nothing is changed")
	jsonFlag(cmd, &asJSON, "one JSON object for each object and line, and one with the sums")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, _ []string) error {
		a, store, err := c.openArchive(ctx, cmd)
		if err != nil {
			return err
		}
		err = gc(ctx, cmd, c, a, store, asJSON, sure)
		return errors.Join(err, store.Close())
	})
	return cmd
}

func gc(ctx context.Context, cmd *cobra.Command, c *connection, a *archive.Archive, store objstore.Store, asJSON, sure bool) error {
	catalog, err := c.catalog(ctx, cmd, store)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	sum := garbageReport{Deleted: sure, Unknown: []string{}}
	rows := [][]string{{"BYTES", "WHY", "LOG", "OBJECT"}}
	unknown, err := collect.Garbage(ctx, catalog, a, time.Now().Add(-gcSettled), func(g archive.Garbage) error {
		if sure {
			if err := a.Remove(ctx, g); err != nil {
				return err
			}
		}
		sum.Objects++
		sum.Bytes += g.Size
		log := "-"
		if g.Log != 0 {
			log = g.Log.String()
		}
		if asJSON {
			return printJSON(out, struct {
				Key   string `json:"key"`
				Bytes int64  `json:"bytes"`
				Log   string `json:"log_id,omitempty"`
				Why   string `json:"why"`
			}{g.Key, g.Size, orElse(g.Log != 0, log, ""), string(g.Why)})
		}
		rows = append(rows, []string{humanBytes(g.Size), string(g.Why), log, g.Key})
		return nil
	})
	for _, id := range unknown {
		sum.Unknown = append(sum.Unknown, id.String())
	}
	if asJSON {
		if perr := printJSON(out, sum); perr != nil {
			return errors.Join(err, perr)
		}
		return err
	}
	if len(rows) > 1 {
		if perr := printRows(out, rows); perr != nil {
			return errors.Join(err, perr)
		}
	}
	if err != nil {
		return fmt.Errorf("%s, %s, %s: %w", plural(sum.Objects, "object"), humanBytes(sum.Bytes), orElse(sure, "deleted", "found"), err)
	}
	switch {
	case sum.Objects == 0:
		_, err = fmt.Fprintln(out, "nothing to delete")
	case sure:
		_, err = fmt.Fprintf(out, "deleted %s, %s\n", plural(sum.Objects, "object"), humanBytes(sum.Bytes))
	default:
		_, err = fmt.Fprintf(out, "%s, %s, would go; --yes deletes them\n", plural(sum.Objects, "object"), humanBytes(sum.Bytes))
	}
	return err
}

// catalog opens the metadata of the cluster in a store that openArchive opened.
func (c *connection) catalog(ctx context.Context, cmd *cobra.Command, store objstore.Store) (*meta.Catalog, error) {
	root, err := c.clusterRoot(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return meta.New(store, meta.Config{Root: root, Random: rand.Uint64, Now: time.Now, Sleep: sleepFor})
}

func sleepFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
