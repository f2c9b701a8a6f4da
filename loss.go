package btrlog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// AcceptLoss is the consent of a log's owner to an open that goes on without what cannot be had any more (P5). It is the last
// resort: an open fails, for ever, with the names of nodes that will never come back with their data. First try everything to
// bring one of their disks back.
//
// The open runs as ever, and if it can succeed, nothing is lost. It gives up only what is missing when all nodes of the log but
// those named in Gone have answered, none has said anything new for Wait, and the archive does not have it either:
//
//   - Committed records that no node and no object holds. Their LSNs become lost ranges on record.
//   - If fewer than a read quorum of the recorded disks (N − Qw + 1) is left, nobody knows where the log ended. Everything that is
//     found stays in the log, whether it was acknowledged or not. Behind it there may have been more, acknowledged too: 10¹² LSNs
//     are skipped, and on record as lost, so that no number is given to a second record. And the previous writer, if it still
//     reaches a write quorum of the nodes that are not gone after all, is not stopped: what it is told to be committed is lost.
//
// What is on record as lost stays lost, also when a node turns up that has it: Read, Scan and Follow answer ErrDataLoss with the
// range, and everything around it is what it was. All other promises hold, for all other LSNs.
type AcceptLoss struct {
	// Log and Epoch are LogInfo.ID and LogInfo.Epoch, as they were when the owner decided. A log that anybody has opened since is left alone:
	// a consent is for one log, once.
	Log   LogID
	Epoch Epoch
	// Gone names the nodes, of those that the log has, that are not waited for: they are lost for good, or their disks are. A node that was
	// started with an empty directory is gone, too: name it here, and adopt it with Replace. One that answers all the same counts. None of them may
	// be in the new set of nodes with its old disk.
	Gone []string
	// Wait is how long nobody must have said anything new before anything is given up; zero is a third of the time that the call has.
	Wait time.Duration
}

// LostRange is a run of LSNs [From, To] that an open gave up with AcceptLoss.
type LostRange struct {
	From, To LSN
	// Epoch is the one that was opened without them, At when.
	Epoch Epoch
	At    time.Time
	// Skipped: it is not known that there was anything. These LSNs may have been given out, and acknowledged.
	Skipped bool
}

func lostRanges(lost []meta.LostRange) []LostRange {
	var out []LostRange
	for _, l := range lost {
		out = append(out, LostRange{From: LSN(l.From), To: LSN(l.To), Epoch: Epoch(l.Epoch), At: l.At, Skipped: l.Skipped})
	}
	return out
}

// consent checks that a consent is for the log as it is.
func (a *AcceptLoss) consent(rec *meta.LogRecord) error {
	switch {
	case LogID(rec.ID) != a.Log:
		return invalid("", rec.Name, "AcceptLoss is for the log with id %v, this one has %v", a.Log, LogID(rec.ID))
	case Epoch(rec.Epoch) != a.Epoch:
		return invalid("", rec.Name, "AcceptLoss is for the log at epoch %d, and it is at %d: look again what is lost", a.Epoch, rec.Epoch)
	}
	return nil
}

// loss is what the opener is told of a consent; nil without one.
func (o *WriterOptions) loss(ctx context.Context, name string, recorded, target protocol.Ensemble) (*protocol.AcceptLoss, error) {
	a := o.AcceptLoss
	if a == nil {
		return nil, nil
	}
	out := &protocol.AcceptLoss{Wait: protocol.Time(a.Wait)}
	deadline, _ := ctx.Deadline() // call has set one
	if left := time.Until(deadline); a.Wait == 0 {
		out.Wait = protocol.Time(left / 3)
	} else if a.Wait < 0 || a.Wait >= left {
		return nil, invalid("", name, "AcceptLoss.Wait is %v, and the open has %v", a.Wait, left.Round(time.Millisecond))
	}
	for _, gone := range a.Gone {
		i := slices.IndexFunc(recorded, func(m protocol.Member) bool { return string(m.Node) == gone })
		if i < 0 {
			return nil, invalid("", name, "node %q is called gone and is not one of the log's", gone)
		}
		if target.Index(recorded[i].Incarnation) >= 0 {
			return nil, invalid("", name, "node %q is called gone and is to hold the log with its old disk: exchange it, or adopt its new one, with Replace", gone)
		}
		out.Gone = append(out.Gone, recorded[i].Incarnation)
	}
	return out, nil
}

// lookForLoss does what an open that may lose records asks of the archive.
func (call *openCall) lookForLoss(ctx context.Context, look *protocol.LSN, read *protocol.ArchiveRead) {
	a, err := archive.New(call.c.store, archive.Options{Root: call.c.cfg.Root})
	if look != nil {
		var objects []protocol.ArchivedObject
		if err == nil {
			objects, err = a.Look(ctx, call.id, *look)
		}
		call.mu.Lock()
		call.o.Looked(call.c.now(), objects, err)
		call.mu.Unlock()
	}
	if read != nil {
		reply := &protocol.FetchReply{Log: call.id, Epoch: call.epoch, Req: read.Fetch.Req, Incarnation: read.Fetch.Incarnation, Status: protocol.StatusUnavailable}
		if err == nil {
			archive.Answer(ctx, a.Reader(call.id).Scan, read, reply)
		}
		call.mu.Lock()
		call.o.Handle(call.c.now(), reply)
		call.mu.Unlock()
	}
	call.settle(call.c.now())
}

// noteLoss tells the operator what an open has given up.
func (c *Client) noteLoss(name string, r *protocol.OpenResult) {
	for _, l := range r.Lost {
		c.log.Warn("btrlog: records are lost, as the owner of the log accepts", "log", name, "epoch", uint64(l.Epoch), "from", uint64(l.From), "to", uint64(l.To), "skipped", l.Skipped)
	}
}

// lostAt returns the lost range of the record that x is in.
func (r *Reader) lostAt(x protocol.LSN) (protocol.Lost, bool) {
	if !r.anyLost.Load() {
		return protocol.Lost{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.View().Lost.At(x)
}

// lost is the error for an LSN that is on record as lost, or nil. It reads the record again: what is trimmed meanwhile is not lost (A5).
func (r *Reader) lost(ctx context.Context, op string, from protocol.LSN) error {
	if _, ok := r.lostAt(from); !ok {
		return nil
	}
	if err := r.reload(ctx); err != nil {
		return err
	}
	if before := r.view().TrimBefore; from < before {
		return r.trimmed(op, LSN(from), before)
	}
	l, ok := r.lostAt(from)
	if !ok {
		return nil
	}
	why := fmt.Errorf("given up with its owner's consent when the log was opened at epoch %d", l.Epoch)
	if l.Skipped {
		why = fmt.Errorf("%w: whatever there was behind the last record that was found", why)
	}
	return &Error{Kind: ErrDataLoss, Op: op, Log: r.name, From: LSN(from), To: LSN(l.To), Epoch: Epoch(l.Epoch), Err: why}
}

// kept returns the LSN up to which nothing is on record as lost from from on, at most to.
func (r *Reader) kept(from, to protocol.LSN) protocol.LSN {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(to, r.m.View().Lost.Next(from)-1)
}
