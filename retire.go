package btrlog

import (
	"context"
	"fmt"
	"strings"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// RetireNode takes a node out of the cluster for good: no log is placed on it any more, operators are not told that it does not answer, and it
// refuses to start under its name again. It is done when no log's record names the node (P11), which is looked at twice: before new logs
// stop taking the node, so that a node in use stays as it is, and after. An open that has chosen the node before and records it after
// both loses nothing by it: its log has a node less, as with any that is down. Repeating it is harmless, and there is no way back.
//
// Whether the node runs is not asked: stop it first. Errors: ErrInvalid for a name that is not registered, or a node that logs name, up to
// ten of which the error names; ErrUnavailable, also when a log's record cannot be read.
func (c *Client) RetireNode(ctx context.Context, name string) error {
	const op = "retire node"
	if c.closed() {
		return closedError(op, "")
	}
	ctx, done := c.call(ctx)
	defer done()
	return c.finish(op, "", c.retire(ctx, name))
}

func (c *Client) retire(ctx context.Context, name string) error {
	if _, err := c.named(ctx, []string{name}); err != nil {
		if rec, again := c.cat.LoadNode(ctx, protocol.NodeID(name)); again == nil && rec.Record.State == meta.Retired {
			return nil
		}
		return err
	}
	if err := c.unused(ctx, name); err != nil {
		return err
	}
	// First no new ensemble may take it, then the logs are looked at again: the other way round a log that comes between would not be seen.
	if _, err := c.cat.SetNodeState(ctx, protocol.NodeID(name), meta.Draining); err != nil {
		return err
	}
	if err := c.unused(ctx, name); err != nil {
		return err
	}
	_, err := c.cat.SetNodeState(ctx, protocol.NodeID(name), meta.Retired)
	return err
}

// unused is nil if no log's record names the node.
func (c *Client) unused(ctx context.Context, name string) error {
	const most = 10
	var logs []string
	n := 0
	for info, err := range c.Logs(ctx, "") {
		if err != nil {
			return err
		}
		for _, m := range info.Nodes {
			if m.Name != name {
				continue
			}
			if n++; n <= most {
				logs = append(logs, info.Name)
			}
		}
	}
	if n == 0 {
		return nil
	}
	list := strings.Join(logs, " ")
	if n > most {
		list += fmt.Sprintf(" and %d more", n-most)
	}
	return invalid("", "", "node %q holds logs: %s", name, list)
}
