package btrlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// options converts to the record's form; zero fields take the default.
func (o *LogOptions) options() meta.Options {
	out := meta.DefaultOptions()
	n := o.N
	if n == 0 && len(o.Nodes) > 0 {
		n = len(o.Nodes)
	}
	if n != 0 {
		out.N, out.Qw = n, n/2+1
	}
	if o.Qw != 0 {
		out.Qw = o.Qw
	}
	out.Zones = o.Zones
	if o.SegmentBytes != 0 {
		out.SegmentBytes = o.SegmentBytes
	}
	if o.Window != 0 {
		out.Window = o.Window
	}
	if o.Durability != "" {
		out.Durability = meta.Durability(o.Durability)
	}
	switch {
	case o.FlushAge < 0:
		out.FlushAge = 0
	case o.FlushAge > 0:
		out.FlushAge = o.FlushAge
	}
	out.Retention = meta.Retention{Age: o.RetainAge, Bytes: o.RetainBytes}
	return out
}

func logOptions(o meta.Options) LogOptions {
	out := LogOptions{N: o.N, Qw: o.Qw, Zones: o.Zones, SegmentBytes: o.SegmentBytes, Window: o.Window, Durability: Durability(o.Durability),
		FlushAge: o.FlushAge, RetainAge: o.Retention.Age, RetainBytes: o.Retention.Bytes}
	if o.FlushAge == 0 {
		out.FlushAge = -1
	}
	return out
}

// Create makes a log. Its nodes are chosen by the first OpenWriter, spread over zones and nodes, unless o.Nodes names them;
// Create makes sure that there are enough. Errors: ErrExists; ErrInvalid; ErrUnavailable, also when too few nodes are
// registered: nothing was made then, except that with Unknown, or with o.Nodes, the log may exist (Info says so).
func (c *Client) Create(ctx context.Context, name string, o LogOptions) (LogInfo, error) {
	const op = "create"
	if c.closed() {
		return LogInfo{}, closedError(op, name)
	}
	ctx, done := c.call(ctx)
	defer done()
	opts := o.options()
	if err := opts.Check(); err != nil {
		return LogInfo{}, invalid(op, name, "%v", err)
	}
	if len(o.Nodes) > 0 && len(o.Nodes) != opts.N {
		return LogInfo{}, invalid(op, name, "%d nodes are named, N is %d", len(o.Nodes), opts.N)
	}
	if len(o.Nodes) > 0 {
		e, err := c.named(ctx, o.Nodes)
		if err == nil && zonesOf(e) < opts.Zones {
			err = invalid(op, name, "the named nodes are in %d zones, %d are wanted", zonesOf(e), opts.Zones)
		}
		if err != nil {
			return LogInfo{}, c.finish(op, name, err)
		}
	} else {
		nodes, err := c.nodeRecords(ctx)
		if err != nil {
			return LogInfo{}, c.finish(op, name, err)
		}
		if _, err := choose(1, nodes, opts.N, opts.Zones); err != nil {
			return LogInfo{}, &Error{Kind: ErrUnavailable, Op: op, Log: name, Retryable: true, Err: err}
		}
	}
	log, err := c.cat.Create(ctx, name, opts)
	if err != nil {
		return LogInfo{}, c.finish(op, name, err)
	}
	if len(o.Nodes) > 0 {
		// The record names nodes only with an epoch that was opened on them (P7), so a choice is kept by opening once.
		if _, err := c.takeover(ctx, op, name, &WriterOptions{Nodes: o.Nodes, Qw: opts.Qw}, nil); err != nil {
			return LogInfo{}, c.finish(op, name, err)
		}
		return c.Info(ctx, name)
	}
	info, err := c.logInfo(ctx, &log.Record)
	return info, c.finish(op, name, err)
}

func zonesOf(e protocol.Ensemble) int {
	var zones []string
	for _, m := range e {
		if !slices.Contains(zones, m.Zone) {
			zones = append(zones, m.Zone)
		}
	}
	return len(zones)
}

func (c *Client) logInfo(ctx context.Context, r *meta.LogRecord) (LogInfo, error) {
	out := LogInfo{Name: r.Name, ID: LogID(r.ID), Epoch: Epoch(r.Epoch), Opener: r.Opener, Options: logOptions(r.Options),
		TrimBefore: LSN(r.TrimBefore), Lost: lostRanges(r.Lost), Created: r.Created, Updated: r.Updated}
	for _, h := range r.History {
		out.History = append(out.History, Reign{Epoch(h.Epoch), LSN(h.Start)})
	}
	if r.Ensemble != "" {
		e, err := c.cat.LoadEnsemble(ctx, r.Ensemble)
		if err != nil {
			return out, err
		}
		out.Nodes = memberInfo(e)
	}
	return out, nil
}

// Info reads a log's record, and the records of its nodes for NodeInfo.Replaced. Errors: ErrNotFound; ErrUnavailable;
// ErrClosed.
func (c *Client) Info(ctx context.Context, name string) (LogInfo, error) {
	const op = "info"
	if c.closed() {
		return LogInfo{}, closedError(op, name)
	}
	ctx, done := c.call(ctx)
	defer done()
	log, err := c.cat.Load(ctx, name)
	if err != nil {
		return LogInfo{}, c.finish(op, name, err)
	}
	info, err := c.logInfo(ctx, &log.Record)
	if err == nil {
		err = c.markReplaced(ctx, info.Nodes)
	}
	return info, c.finish(op, name, err)
}

// markReplaced compares the nodes of an ensemble with how they are registered. One whose record is gone or damaged stays as
// it is.
func (c *Client) markReplaced(ctx context.Context, nodes []NodeInfo) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			rec, err := c.cat.LoadNode(ctx, protocol.NodeID(nodes[i].Name))
			switch {
			case err == nil:
				nodes[i].Replaced = uint64(rec.Record.Incarnation) != nodes[i].Incarnation
			case errors.Is(err, meta.ErrUnavailable):
				errs[i] = err
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Logs iterates over the logs whose name starts with prefix, by name, and reads each record. A record that cannot be used is
// yielded with its name and an error, and the iteration goes on; it ends after ErrUnavailable. Without a deadline of ctx
// each step may take Config.Timeout.
func (c *Client) Logs(ctx context.Context, prefix string) iter.Seq2[LogInfo, error] {
	const op = "list logs"
	return func(yield func(LogInfo, error) bool) {
		if c.closed() {
			yield(LogInfo{}, closedError(op, ""))
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
		defer stop()
		for log, err := range c.cat.Logs(ctx, prefix) {
			if err != nil {
				if !yield(LogInfo{Name: log.Record.Name}, c.finish(op, log.Record.Name, err)) {
					return
				}
				continue
			}
			step, done := c.call(ctx)
			info, err := c.logInfo(step, &log.Record)
			done()
			if !yield(info, c.finish(op, log.Record.Name, err)) {
				return
			}
		}
	}
}

// Trim removes the records of a log below before, for good, without opening it for writing; see Writer.Trim. It asks the nodes
// for the tail first, and fails as Reader.Tail does.
func (c *Client) Trim(ctx context.Context, name string, before LSN) error {
	const op = "trim"
	if c.closed() {
		return closedError(op, name)
	}
	ctx, done := c.call(ctx)
	defer done()
	r, err := c.openReader(ctx, name)
	if err != nil {
		return c.finish(op, name, err)
	}
	tail, err := r.tail(ctx, op)
	if err != nil {
		return c.finish(op, name, err)
	}
	if protocol.LSN(before) > tail+1 {
		return invalid(op, name, "cannot trim below LSN %d: the log is committed up to %d", before, tail)
	}
	log, err := c.cat.Trim(ctx, name, r.id, protocol.LSN(before))
	if err == nil {
		c.noteTrim(r.id, log.Record.TrimBefore)
	}
	return c.finish(op, name, err)
}

// SetRetention replaces what is trimmed and flushed by age; see LogOptions. Errors: ErrNotFound; ErrInvalid; ErrUnavailable.
func (c *Client) SetRetention(ctx context.Context, name string, retainAge time.Duration, retainBytes int64, flushAge time.Duration) error {
	const op = "set retention"
	if c.closed() {
		return closedError(op, name)
	}
	ctx, done := c.call(ctx)
	defer done()
	_, err := c.cat.SetRetention(ctx, name, 0, meta.Retention{Age: retainAge, Bytes: retainBytes}, max(flushAge, 0))
	return c.finish(op, name, err)
}

// Delete removes a log for ever: it takes the log's token, fences a read quorum so that nothing more commits, puts a tombstone
// on record, and tells the nodes to drop their copies. A log that is created under the name later is another log. Nodes that
// do not answer keep theirs, and refuse appends all the same once they hear of a higher epoch. The nodes delete the
// archived objects in the background.
//
// Errors: ErrNotFound; ErrUnavailable: the log is still there, though its writer may be fenced, unless Unknown; repeat it.
func (c *Client) Delete(ctx context.Context, name string) error {
	const op = "delete"
	if c.closed() {
		return closedError(op, name)
	}
	ctx, done := c.call(ctx)
	defer done()
	raised, err := c.cat.RaiseEpoch(ctx, name, meta.Raise{Nonce: c.cat.Nonce(), Opener: c.cfg.Name + " (delete)"})
	if err != nil {
		return c.finish(op, name, err)
	}
	rec := &raised.Record
	var members protocol.Ensemble
	if rec.Ensemble != "" {
		if members, err = c.cat.LoadEnsemble(ctx, rec.Ensemble); err != nil {
			return c.finish(op, name, err)
		}
		// The fence comes before the tombstone. Reversed, an append could be acknowledged after Delete had returned.
		if err := c.fence(ctx, op, rec, members); err != nil {
			return c.finish(op, name, err)
		}
	}
	// Only while the token stands: who opened the log since is not fenced by this promise.
	if err := c.cat.Delete(ctx, name, rec.Owner()); errors.Is(err, meta.ErrFenced) {
		return &Error{Kind: ErrUnavailable, Op: op, Log: name, Epoch: Epoch(rec.Epoch), Retryable: true, Err: errors.New("the log was opened meanwhile")}
	} else if err != nil {
		return c.finish(op, name, err)
	}
	// The tombstone comes before Drop. Reversed, a crash in between would leave a log whose copies are gone.
	c.askAll(ctx, members, func(i int) protocol.Message {
		return &protocol.Drop{Log: rec.ID, Epoch: rec.Epoch, Incarnation: members[i].Incarnation}
	})
	return nil
}

// fence makes a read quorum of the recorded nodes promise the record's epoch.
func (c *Client) fence(ctx context.Context, op string, rec *meta.LogRecord, members protocol.Ensemble) error {
	promised := make([]bool, len(members))
	replaced := make([]bool, len(members)) // as of its last answer: the last round may be cut short by ctx
	for {
		answers := c.askAll(ctx, members, func(i int) protocol.Message {
			if promised[i] {
				return nil
			}
			return &protocol.Open{Log: rec.ID, Epoch: rec.Epoch, Req: uint64(rec.Epoch), Name: rec.Name}
		})
		e := &Error{Kind: ErrUnavailable, Op: op, Log: rec.Name, Epoch: Epoch(rec.Epoch), Retryable: true}
		n := 0
		for i, a := range answers {
			r, ok := a.msg.(*protocol.OpenReply)
			switch {
			case ok && r.Status == protocol.StatusFenced:
				return &Error{Kind: ErrUnavailable, Op: op, Log: rec.Name, Epoch: Epoch(r.Promised), Retryable: true,
					Err: errors.New("the log was opened meanwhile")}
			case ok && r.Incarnation == members[i].Incarnation && (r.Status == protocol.StatusOK || r.Status == protocol.StatusDeleted):
				promised[i] = true
			}
			if ok {
				replaced[i] = r.Incarnation != members[i].Incarnation
			}
			if promised[i] {
				n++
			} else {
				e.Missing = append(e.Missing, string(members[i].Node))
				if replaced[i] {
					e.Replaced = append(e.Replaced, string(members[i].Node))
				}
			}
		}
		need := len(members) - rec.Options.Qw + 1
		if n >= need {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			e.Err = fmt.Errorf("%d of %d nodes promised, %d are needed", n, len(members), need)
			return e
		}
	}
}

// answer is what askAll got from one node.
type answer struct {
	msg protocol.Message
	err error
}

// askAll posts a message to every member at the same time and waits for all answers; a member for which make returns nil is
// not asked.
func (c *Client) askAll(ctx context.Context, e protocol.Ensemble, message func(i int) protocol.Message) []answer {
	out := make([]answer, len(e))
	nodes := c.located(ctx, e)
	var wg sync.WaitGroup
	for i := range e {
		m := message(i)
		if m == nil {
			continue
		}
		wg.Go(func() { out[i].msg, out[i].err = c.ask(ctx, nodes[i], m, askTimeout) })
	}
	wg.Wait()
	return out
}

// askTimeout bounds the silence of a node that was asked; who needs the answer asks again.
const askTimeout = 2 * time.Second
