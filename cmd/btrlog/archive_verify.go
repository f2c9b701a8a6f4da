package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// verdict is what 'archive verify' found of a log.
type verdict struct {
	Log      string     `json:"log"`
	ID       string     `json:"log_id"`
	Sound    bool       `json:"sound"`
	Copies   int        `json:"copies"`
	Bytes    int64      `json:"bytes"`                 // as they are stored
	Plain    int64      `json:"plain_bytes,omitempty"` // of the records, uncompressed; with --deep
	First    btrlog.LSN `json:"first"`                 // that must be there
	Through  btrlog.LSN `json:"through"`               // that must be there: what nodes take for archived, and what is
	Missing  []lsns     `json:"missing"`
	Pending  []lsns     `json:"not_archived_yet"` // not in the archive, and a node of the log has it and has not archived it
	Unknown  []lsns     `json:"unknown"`          // one of the two, and nodes that could tell do not
	Silent   []string   `json:"silent"`           // with Unknown: these nodes, and why
	Damaged  []string   `json:"damaged"`
	Foreign  []string   `json:"foreign"` // keys among the log's that this program does not write
	Doubles  int        `json:"doubles"`
	Doubled  int64      `json:"doubled_bytes"`
	Replaced int        `json:"replaced"`        // in packs that were merged and will be deleted
	Read     bool       `json:"read"`            // every byte was
	Error    string     `json:"error,omitempty"` // why the log could not be checked; it is not sound then, and nothing else is known
}

// lsns is a run of LSNs, both inclusive.
type lsns struct {
	From btrlog.LSN `json:"from"`
	To   btrlog.LSN `json:"to"`
}

const archiveVerifyLong = `Check that the object store holds what it should of all logs, or of those that are named: every record from the trim point on that a node
takes for archived or that the archive itself proves, apart from those that their owner gave up. Doubles, records that are there twice
under the same epoch, are counted and no fault.

With --deep every byte is read, and every checksum and hash compared; without it the listings, and the directories of packs, must do. The
nodes are asked what they take for archived; one that does not answer is left out.

Segments may be archived out of order. Records between archived ones that no node takes for archived, and that a node of the log has, are not
archived yet, which is no fault. If all nodes of the log answer and none has them, they are missing; if some do not answer, and none of the
others has them, the two cannot be told apart, and it counts as a fault until they do.

The exit code is 1 if something is missing or damaged, or cannot be told, or if a log could not be checked; the others are checked all the same.`

func archiveVerify(c *connection) *cobra.Command {
	var asJSON, deep bool
	cmd := &cobra.Command{
		Use:   "verify [NAME...]",
		Short: "Check that nothing that is archived is missing or damaged",
		Long:  archiveVerifyLong,
		Example: `  btrlog archive verify
  btrlog archive verify --deep orders
  btrlog archive verify --json | jq 'select(.sound | not)'`,
		ValidArgsFunction: c.completeName,
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read every byte and compare every checksum")
	jsonFlag(cmd, &asJSON, "one JSON object for each log and line")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		a, store, err := c.openArchive(ctx, cmd)
		if err != nil {
			return err
		}
		defer store.Close() // nothing was written
		p := newProgress(cmd.ErrOrStderr(), "verified", 0)
		defer p.done()
		var read int64
		x := verifier{client: client, archive: a, deep: deep, progress: func(records, bytes int64) {
			read += bytes
			p.show(records, read)
		}}
		x.ask = func(ctx context.Context) error {
			registered, err := client.Nodes(ctx)
			if err == nil {
				x.cluster.ask(ctx, registered, min(c.timeout, answerLimit))
			}
			return err
		}
		// The nodes first: what they take for archived then is archived when the store is listed.
		if err := x.ask(ctx); err != nil {
			return err
		}
		logs, err := logsNamed(ctx, client, args)
		if err != nil {
			return err
		}
		rows := [][]string{{"LOG", "RECORDS", "COPIES", "BYTES", "DOUBLES", "FOUND"}}
		var sum verified
		for i := range logs {
			l := &logs[i]
			var v *verdict
			if l.err == nil {
				if v, l.err = x.log(ctx, &l.info); l.err != nil {
					l.err = fmt.Errorf("log %s: %w", l.info.Name, l.err)
				}
			}
			if ctx.Err() != nil {
				return errInterrupted
			}
			if l.err != nil { // it does not hide the others
				v = &verdict{Log: l.info.Name, Error: oneLine(message(l.err))}
				if l.info.ID != 0 {
					v.ID = logID(&l.info)
				}
			}
			sum.add(v, l.err)
			switch {
			case asJSON:
				if err := printJSON(cmd.OutOrStdout(), v); err != nil {
					return err
				}
			case l.err != nil:
				rows = append(rows, []string{v.Log, "-", "-", "-", "-", "not checked: " + v.Error})
			default:
				rows = append(rows, []string{v.Log, orElse(v.First <= v.Through, lsnRange(v.First, v.Through), "-"), fmt.Sprint(v.Copies), humanBytes(v.Bytes), fmt.Sprint(v.Doubles), v.found()})
			}
		}
		p.done()
		if !asJSON && !(len(logs) == 1 && sum.failed.n == 1) { // then the error says it all
			if err := printRows(cmd.OutOrStdout(), rows); err != nil {
				return err
			}
		}
		return sum.err()
	})
	return cmd
}

// verified counts what was found, by logs.
type verified struct {
	logs, bad, unknown int
	failed             failures
}

func (s *verified) add(v *verdict, err error) {
	s.logs++
	if err != nil {
		s.failed.add(err)
		return
	}
	if len(v.Missing)+len(v.Damaged) > 0 {
		s.bad++
	}
	if len(v.Unknown) > 0 {
		s.unknown++
	}
}

func (s *verified) err() error {
	failed := s.failed.of(s.logs, "could not be checked")
	var found, hints []string
	if s.bad > 0 {
		found = append(found, fmt.Sprintf("%s of %d with records that are missing or damaged in the archive", plural(int64(s.bad), "log"), s.logs))
		hints = append(hints, "restore the objects; what a node still has it writes again")
	}
	if s.unknown > 0 {
		found = append(found, fmt.Sprintf("%s of %d with records that are missing or not archived yet, which cannot be told apart without the nodes that do not answer",
			plural(int64(s.unknown), "log"), s.logs))
		hints = append(hints, "run the command again when the nodes answer; 'btrlog cluster status' shows how they are")
	}
	if len(found) == 0 {
		return failed
	}
	if failed != nil {
		found = append(found, message(failed))
		if hint := advice(failed); hint != "" {
			hints = append(hints, hint)
		}
	}
	return &hinted{errors.New(strings.Join(found, "; ")), strings.Join(hints, "; ")}
}

// verifier checks logs against what the nodes said.
type verifier struct {
	client   *btrlog.Client
	archive  *archive.Archive
	cluster  clusterReport
	ask      func(context.Context) error // asks the nodes anew
	deep     bool
	progress func(records, bytes int64)
}

// verifyTries bounds how often a log is listed anew because what a listing showed was gone when it was read.
const verifyTries = 5

// log checks one log. Objects may go meanwhile, being merged, trimmed or replaced by others: what is gone is damage only if a new
// listing still shows it. And records may have been committed, and archived out of order, since the nodes were asked: what they did not
// speak of is missing only if they do not have it when they are asked again.
func (x *verifier) log(ctx context.Context, info *btrlog.LogInfo) (*verdict, error) {
	read := make(map[string]wasRead)
	through := protocol.LSN(0)
	for try := 1; ; try++ {
		v, l, err := x.listed(ctx, info, through, read)
		if err != nil || try == verifyTries {
			return v, err
		}
		switch {
		case l.young && through == 0:
			// Up to here all was committed before they are asked, so what they say then is of all of it.
			through = protocol.LSN(v.Through)
			if err := x.ask(ctx); err != nil {
				return nil, err
			}
		case !l.gone:
			return v, nil
		}
	}
}

// wasRead is what was read, and how it was.
type wasRead struct {
	found error
	plain int64
}

// looked says why a verdict may be of the past.
type looked struct {
	gone  bool // some of the listing was not there when it was read
	young bool // some of what is missing the nodes had not heard of when they were asked
}

// listed checks what one listing shows, up to through, or if that is 0 as far as anybody takes the log for archived.
func (x *verifier) listed(ctx context.Context, info *btrlog.LogInfo, through protocol.LSN, read map[string]wasRead) (v *verdict, l looked, err error) {
	c, err := x.archive.Contents(ctx, protocol.LogID(info.ID))
	if err != nil {
		return nil, l, err
	}
	if through == 0 {
		through = max(c.Through(), x.cluster.archivedThrough(info))
	}
	var h holes
	if gaps := missingOf(c, info, through); len(gaps) > 0 {
		// The log may have been trimmed since its record was read, and its objects be gone for that reason. And who says that a copy is void
		// must know all reigns up to when the nodes were asked.
		now, err := x.client.Info(ctx, info.Name)
		if err != nil {
			return nil, l, err
		}
		if now.ID != info.ID {
			return nil, l, errors.New("it was deleted, and made again under the same name, while it was checked; run the command again")
		}
		*info = now
		h = x.cluster.explain(info, missingOf(c, info, through))
		l.young = h.young
	}
	v = &verdict{Log: info.Name, ID: logID(info), Copies: len(c.Stored), First: max(info.TrimBefore, 1), Through: btrlog.LSN(through),
		Missing: lsnsOf(h.missing), Pending: lsnsOf(h.pending), Unknown: lsnsOf(h.unknown), Silent: []string{},
		Damaged: slices.Clone(c.Broken), Foreign: c.Foreign, Read: x.deep}
	if len(h.unknown) > 0 {
		v.Silent = h.silent
	}
	var records int64
	for i := range c.Stored {
		s := &c.Stored[i]
		v.Bytes += s.Size
		if s.Double {
			v.Doubles++
			v.Doubled += s.Size
		}
		if s.Replaced {
			v.Replaced++
		}
		if !x.deep {
			continue
		}
		at := fmt.Sprintf("%s at %d", s.Name, s.Offset)
		r, ok := read[at]
		if !ok || errors.Is(r.found, objstore.ErrNotFound) {
			r.found = x.archive.Verify(ctx, s)
			r.plain = s.Content
			read[at] = r
			records += int64(s.Key.Last-s.Key.First) + 1
			x.progress(records, s.Size)
		}
		found := r.found
		v.Plain += r.plain
		l.gone = l.gone || errors.Is(found, objstore.ErrNotFound)
		switch {
		case errors.Is(found, archive.ErrDamaged), errors.Is(found, archive.ErrTooNew):
			v.Damaged = append(v.Damaged, found.Error())
		case found != nil:
			return nil, l, found
		}
	}
	v.Sound = len(v.Missing)+len(v.Unknown)+len(v.Damaged) == 0
	return v, l, nil
}

func lsnsOf(ranges []protocol.Range) []lsns {
	out := make([]lsns, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, lsns{btrlog.LSN(r.From), btrlog.LSN(r.To)})
	}
	return out
}

func missingOf(c *archive.Contents, info *btrlog.LogInfo, through protocol.LSN) []protocol.Range {
	var lost protocol.LostRanges
	for _, l := range info.Lost {
		lost = append(lost, protocol.Lost{From: protocol.LSN(l.From), To: protocol.LSN(l.To), Epoch: protocol.Epoch(l.Epoch)})
	}
	return c.Missing(max(protocol.LSN(info.TrimBefore), 1), through, lost)
}

// found says in a few words what is wrong.
func (v *verdict) found() string {
	var parts []string
	ranges := func(what string, rs []lsns, why string) {
		if len(rs) == 0 {
			return
		}
		text := what + ": " + lsnRange(rs[0].From, rs[0].To)
		if n := len(rs) - 1; n > 0 {
			text += fmt.Sprintf(" and %s more", plural(int64(n), "range"))
		}
		parts = append(parts, text+why)
	}
	ranges("missing", v.Missing, "")
	ranges("missing or not archived yet, cannot be told apart", v.Unknown, " ("+strings.Join(v.Silent, ", ")+")")
	if len(v.Damaged) > 0 {
		text := "damaged: " + oneLine(v.Damaged[0])
		if n := len(v.Damaged) - 1; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		parts = append(parts, text)
	}
	if v.Sound {
		parts = append(parts, "sound")
	}
	ranges("not archived yet", v.Pending, "")
	if len(v.Foreign) > 0 {
		parts = append(parts, fmt.Sprintf("foreign keys: %d", len(v.Foreign)))
	}
	return strings.Join(parts, "; ")
}
