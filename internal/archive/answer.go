package archive

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Scan reads records as Reader.Scan does.
type Scan func(ctx context.Context, from, to protocol.LSN, wm Watermark) iter.Seq2[Record, error]

// Answer fills the reply to an open that may lose records and asks the archive for copies as it asks nodes (P5). They are read as they
// would be served to a reader, into a segment of their own. What cannot be read is damaged; if the store did not answer, or ctx
// ended, the reply's status stays as it was and the open asks again.
func Answer(ctx context.Context, scan Scan, ask *protocol.ArchiveRead, reply *protocol.FetchReply) {
	f := &ask.Fetch
	reply.From, reply.Through = f.From, f.To
	wm := Watermark{LSN: ask.B, Epoch: f.Epoch, History: ask.History}
	off, next := uint64(0), f.From
	for rec, err := range scan(ctx, f.From, f.To, wm) {
		if errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return
		}
		if err != nil || rec.Label != f.Label {
			reply.Damaged = []protocol.Range{{From: next, To: next}}
			break
		}
		reply.Records = append(reply.Records, protocol.Record{LSN: rec.LSN, Label: rec.Label, More: rec.More, SegStart: f.From, SegOff: off, Data: slices.Clone(rec.Data)})
		off += uint64(protocol.EncodedSize(len(rec.Data)))
		next = rec.LSN + 1
		if off >= uint64(f.MaxBytes) {
			reply.Through = rec.LSN
			break
		}
	}
	reply.Status = protocol.StatusOK
}
