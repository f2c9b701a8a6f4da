package protocol

import "fmt"

// simReader is a reader of the simulation: it reads the record, asks nodes one by one while the world goes on, and then
// decides a tail (X11) and serves copies under a watermark from elsewhere (P8), all through Merge.
type simReader struct {
	m       Merge
	asking  bool
	floor   LSN // committed when the question was asked
	highest LSN
	replies []*ReadReply
	tails   int
}

func (s *sim) view() ReadView {
	return ReadView{Ensemble: s.reg.ensemble, Qw: s.reg.qw, History: s.reg.history, Lost: s.reg.lost}
}

func (s *sim) readerStep() {
	r := &s.reader
	if !r.asking {
		*r = simReader{m: r.m, asking: true, floor: s.oracle.high, tails: r.tails}
		// A reader keeps an old record as long as it can, but a tail needs a fresh one.
		r.m.SetView(s.view())
		s.say("reader begins: committed %d, history %s", r.floor, historyString(s.reg.history))
		r.replies = make([]*ReadReply, len(s.reg.ensemble))
		return
	}
	v := r.m.View()
	i := s.rng.IntN(len(v.Ensemble))
	if n := s.byInc(v.Ensemble[i].Incarnation); n != nil && n.shard != nil {
		var out Out
		n.shard.Step(s.now, 1<<30, &Read{Log: testLog, From: 1, To: MaxLSN, MaxBytes: 1 << 20, Raw: true}, &out)
		n.fill(&out.Replies[0])
		reply := out.Replies[0].Msg.(*ReadReply)
		s.say("reader hears %s: activated=%d clsn=%d uncommitted=%s", n.name, reply.Activated, reply.CLSN, extents(reply.Uncommitted))
		before := r.m.Known()
		if r.m.Observe(reply) == i {
			r.replies[i] = reply
		}
		if now := r.m.Known(); now < before || now > s.oracle.high {
			s.oracle.violate("P9: a reader's watermark went from %d to %d, committed is %d", before, now, s.oracle.high)
		}
		if !reply.rawPrefixOK(s) {
			return
		}
	}
	if s.rng.IntN(3) > 0 {
		return
	}
	if !s.readerServes() {
		r.asking = false
		return
	}
	answered := 0
	for _, reply := range r.replies {
		if reply != nil {
			answered++
		}
	}
	if answered < v.Qr() {
		return
	}
	r.highest = max(r.highest, r.m.Highest(r.replies))
	tail, decided, _ := r.m.Tail(r.highest, r.replies)
	if decided {
		s.readerTail(tail)
	}
	r.asking = false
}

// rawPrefixOK: what an answer holds at or below its own watermark is served without further question.
func (r *ReadReply) rawPrefixOK(s *sim) bool {
	for _, rec := range r.Records {
		if rec.LSN <= r.CLSN {
			s.oracle.served(fmt.Sprintf("node %s, at or below its watermark %d", r.Incarnation, r.CLSN), rec.LSN, string(rec.Data))
		}
	}
	return len(s.oracle.bad) == 0
}

// readerServes reads every LSN from the raw copies, under the watermark that the reader has. It reports whether the round
// goes on: not when the record had to be read again.
func (s *sim) readerServes() bool {
	r := &s.reader
	if r.m.NeedsRecord() {
		r.m.SetView(s.view())
		return false // what was asked under the old record is not judged under the new one
	}
	for x := LSN(1); x <= s.oracle.high+3; x++ {
		if l, lost := s.reg.lost.At(x); lost {
			x = l.To // a reader of the product looks there first
			continue
		}
		if rec := r.m.Raw(x, r.replies); rec != nil {
			s.oracle.served("raw read", x, string(rec.Data))
		}
	}
	return true
}

// readerTail: a reader was told that the log ends at tail. What was committed before it asked is in it, and it stays.
func (s *sim) readerTail(tail LSN) {
	r := &s.reader
	if tail < r.floor {
		s.oracle.violate("S3: a reader's tail is %d, %d was committed before it asked", tail, r.floor)
	}
	v := r.m.View()
	for x := s.oracle.high + 1; x <= tail; x++ {
		if l, lost := s.reg.lost.At(x); lost {
			x = l.To
			continue
		}
		var best *Record
		for _, reply := range r.replies {
			if reply == nil {
				continue
			}
			for i := range reply.Records {
				if c := &reply.Records[i]; c.LSN == x && !v.History.Void(c.Label, x) && (best == nil || c.Label > best.Label) {
					best = c
				}
			}
		}
		if best == nil {
			s.oracle.violate("S4: a reader's tail is %d and nobody that it asked has LSN %d", tail, x)
			return
		}
		s.say("reader counts LSN %d %q as committed", x, best.Data)
		s.oracle.commit("tail of a reader", x, string(best.Data))
	}
	r.m.Counted(tail)
	r.tails++
}
