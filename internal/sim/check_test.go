package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
)

// story is a history told to the checker; broken is the rule that it must name, empty for none.
type story struct {
	name   string
	tell   func(c *checker)
	broken string
}

const storyLog protocol.LogID = 7

func one(id uint64) []byte { return makePayload(id, 0, 1, 40) }

// TestChecker plants bad histories: a checker that cannot fail is none.
func TestChecker(t *testing.T) {
	gave := func(c *checker, e protocol.Epoch, lsn protocol.LSN, id uint64) { c.gave(storyLog, e, lsn, one(id)) }
	acked := func(c *checker, e protocol.Epoch, lsn protocol.LSN, id uint64) {
		c.acked(storyLog, e, lsn, one(id), "w")
	}
	stories := []story{
		{"good", func(c *checker) {
			c.opened(storyLog, 1, 1, 0, "w")
			gave(c, 1, 1, 1)
			gave(c, 1, 2, 2)
			acked(c, 1, 1, 1)
			c.read(storyLog, 1, one(1), "r")
			c.opened(storyLog, 2, 2, 2, "v")
			c.read(storyLog, 2, one(2), "r")
			acked(c, 1, 2, 2) // late, and true
			c.tailRead(storyLog, 2, 2, 2, "r")
			c.final(storyLog, 2, map[protocol.LSN][]byte{1: one(1), 2: one(2)}, "a")
		}, ""},
		{"other bytes", func(c *checker) {
			gave(c, 1, 1, 1)
			gave(c, 2, 1, 2)
			acked(c, 1, 1, 1)
			c.read(storyLog, 1, one(2), "r")
		}, "S1"},
		{"two contents acknowledged", func(c *checker) { acked(c, 1, 1, 1); acked(c, 2, 1, 2) }, "S2"},
		{"open below an acknowledged record", func(c *checker) { acked(c, 1, 1, 1); acked(c, 1, 2, 2); c.opened(storyLog, 2, 2, 1, "v") }, "S1"},
		{"open below an older one", func(c *checker) { c.opened(storyLog, 1, 1, 5, "w"); c.opened(storyLog, 2, 5, 4, "v") }, "S3"},
		{"epoch opened twice", func(c *checker) { c.opened(storyLog, 2, 1, 0, "w"); c.opened(storyLog, 2, 1, 0, "v") }, "S5"},
		{"acknowledged behind a newer epoch", func(c *checker) {
			c.opened(storyLog, 1, 1, 0, "w")
			c.opened(storyLog, 2, 1, 0, "v")
			acked(c, 1, 1, 1)
		}, "S5"},
		{"forged", func(c *checker) { gave(c, 1, 1, 1); c.read(storyLog, 1, one(9), "r") }, "S4"},
		{"two readers differ", func(c *checker) {
			gave(c, 1, 1, 1)
			gave(c, 2, 1, 2)
			c.read(storyLog, 1, one(1), "r")
			c.read(storyLog, 1, one(2), "s")
		}, "S4"},
		{"read, then gone", func(c *checker) { gave(c, 1, 1, 1); c.read(storyLog, 1, one(1), "r"); c.opened(storyLog, 2, 1, 0, "v") }, "S4"},
		{"read, then acknowledged with other bytes", func(c *checker) { gave(c, 1, 1, 1); c.read(storyLog, 1, one(1), "r"); acked(c, 2, 1, 2) }, "S4"},
		{"older record behind an open", func(c *checker) { gave(c, 1, 1, 1); c.opened(storyLog, 2, 1, 0, "v"); c.read(storyLog, 1, one(1), "r") }, "S3"},
		{"re-sent by a live re-open", func(c *checker) {
			gave(c, 1, 1, 1)
			c.opened(storyLog, 2, 1, 0, "w")
			gave(c, 2, 1, 1)
			acked(c, 2, 1, 1)
			c.read(storyLog, 1, one(1), "r")
			c.final(storyLog, 1, map[protocol.LSN][]byte{1: one(1)}, "a")
		}, ""},
		{"lost", func(c *checker) { acked(c, 1, 1, 1); c.lost(storyLog, 1, "r") }, "S6"},
		{"seen, then not in the end", func(c *checker) { gave(c, 1, 1, 1); c.read(storyLog, 1, one(1), "r"); c.final(storyLog, 0, nil, "a") }, "S4"},
		{"watermark falls", func(c *checker) {
			c.watermark(storyLog, 5, "r")
			c.watermark(storyLog, 3, "s")
			c.watermark(storyLog, 4, "r")
		}, "S4"},
		{"stale tail", func(c *checker) { c.tailRead(storyLog, 1, 5, 4, "r") }, "S4"},
		{"tail, then gone", func(c *checker) { c.tailRead(storyLog, 1, 5, 6, "r"); c.opened(storyLog, 2, 6, 5, "v") }, "S4"},
		{"missing at the end", func(c *checker) {
			gave(c, 1, 2, 2)
			acked(c, 1, 1, 1)
			c.final(storyLog, 2, map[protocol.LSN][]byte{2: one(2)}, "a")
		}, "S6"},
		{"short at the end", func(c *checker) { acked(c, 1, 1, 1); c.final(storyLog, 0, nil, "a") }, "S6"},
		{"lost with consent", func(c *checker) {
			gave(c, 1, 1, 1)
			gave(c, 1, 3, 3)
			acked(c, 1, 1, 1)
			acked(c, 1, 2, 2)
			acked(c, 1, 3, 3)
			c.consented(storyLog, 2)
			lost := protocol.LostRanges{{From: 2, To: 2, Epoch: 2}}
			c.log(storyLog).recorded(2, lost)
			c.record = func(protocol.LogID) (protocol.LSN, protocol.LostRanges) { return 1, lost }
			c.dataLoss(storyLog, 2, "r")
			c.lost(storyLog, 2, "r")
			c.read(storyLog, 2, one(9), "one who has not read the record since")
			c.final(storyLog, 3, map[protocol.LSN][]byte{1: one(1), 3: one(3)}, "a")
		}, ""},
		{"lost without consent", func(c *checker) {
			c.log(storyLog).recorded(2, protocol.LostRanges{{From: 2, To: 2, Epoch: 2}})
			c.dataLoss(storyLog, 2, "r")
		}, "A5"},
		{"lost beside what was accepted", func(c *checker) {
			c.consented(storyLog, 2)
			c.log(storyLog).recorded(2, protocol.LostRanges{{From: 2, To: 2, Epoch: 2}})
			c.dataLoss(storyLog, 3, "r")
		}, "A5"},
		{"on record as lost without consent", func(c *checker) {
			c.record = func(protocol.LogID) (protocol.LSN, protocol.LostRanges) {
				return 1, protocol.LostRanges{{From: 1, To: 1, Epoch: 2}}
			}
			c.final(storyLog, 1, nil, "a")
		}, "P5"},
		{"served though lost", func(c *checker) {
			c.consented(storyLog, 2)
			c.log(storyLog).recorded(2, protocol.LostRanges{{From: 2, To: 2, Epoch: 2}})
			c.resurrected(storyLog, 2, 1, "a node that has not activated it")
			c.resurrected(storyLog, 2, 2, "n")
		}, "P5"},
		{"served though lost, by one who was told before the trim", func(c *checker) {
			c.consented(storyLog, 2)
			h := c.log(storyLog)
			h.recorded(2, protocol.LostRanges{{From: 2, To: 2, Epoch: 2}})
			h.recorded(4, nil)
			h.recorded(9, nil)
			c.resurrected(storyLog, 2, 5, "a node that was called gone, and is activated by an open that knows no loss")
			c.resurrected(storyLog, 2, 4, "n")
		}, "P5"},
		{"served after the trim has forgotten its loss", func(c *checker) {
			c.consented(storyLog, 2)
			h := c.log(storyLog)
			h.recorded(2, protocol.LostRanges{{From: 2, To: 2, Epoch: 2}})
			h.recorded(4, nil)
			h.recorded(9, nil)
			c.resurrected(storyLog, 2, 5, "n")
		}, ""},
		{"trimmed", func(c *checker) {
			gave(c, 1, 2, 2)
			acked(c, 1, 1, 1)
			acked(c, 1, 2, 2)
			c.trimming(storyLog, 2)
			c.record = func(protocol.LogID) (protocol.LSN, protocol.LostRanges) { return 2, nil }
			c.trimmedRead(storyLog, 1, "r")
			c.final(storyLog, 2, map[protocol.LSN][]byte{2: one(2)}, "a")
		}, ""},
		{"trimmed by nobody", func(c *checker) { c.trimming(storyLog, 2); c.trimmedRead(storyLog, 2, "r") }, "A5"},
		{"trim point that nobody asked for", func(c *checker) {
			c.trimming(storyLog, 2)
			c.record = func(protocol.LogID) (protocol.LSN, protocol.LostRanges) { return 3, nil }
			c.final(storyLog, 2, nil, "a")
		}, "A5"},
		{"acknowledged after its log was deleted", func(c *checker) {
			gave(c, 1, 1, 1)
			c.deleted(storyLog)
			acked(c, 1, 1, 1) // it was given out before
			gave(c, 1, 2, 2)
			acked(c, 1, 2, 2)
		}, "A5"},
		{"acknowledged after its log was deleted, and another record of its LSN given out by one who was fenced", func(c *checker) {
			gave(c, 2, 1, 1)
			c.deleted(storyLog)
			gave(c, 1, 1, 2)
			acked(c, 2, 1, 1)
		}, ""},
		{"given out again after its log was deleted, and acknowledged of that epoch", func(c *checker) {
			gave(c, 1, 1, 1)
			c.deleted(storyLog)
			gave(c, 2, 1, 1)
			acked(c, 2, 1, 1)
		}, "A5"},
		{"half a batch", func(c *checker) {
			a, b := makePayload(5, 0, 2, 40), makePayload(5, 1, 2, 40)
			c.gave(storyLog, 1, 1, a)
			c.gave(storyLog, 1, 2, b)
			c.final(storyLog, 1, map[protocol.LSN][]byte{1: a}, "a")
		}, "S1"},
	}
	for _, s := range stories {
		var broken []string
		c := newChecker(&counters{}, func(rule, format string, args ...any) {
			broken = append(broken, rule)
			t.Logf("%s: %s: %s", s.name, rule, fmt.Sprintf(format, args...))
		})
		s.tell(c)
		if s.broken == "" && len(broken) > 0 || s.broken != "" && (len(broken) == 0 || broken[0] != s.broken) {
			t.Errorf("%s: found %v, want %q", s.name, broken, s.broken)
		}
	}
}

// An accepted loss can skip 10^12 LSNs, and a judge that went through them would not end: seed 7001 and those behind it stood still for a quarter
// of an hour.
func TestJudgeOfTheTailPassesOverASkip(t *testing.T) {
	const far = protocol.LSN(1e12)
	j := onlyCommitted{seen: map[protocol.LSN]told{3: {[]byte("a"), "reader", 1}, far + 3: {[]byte("b"), "reader", 9}}, top: far + 3}
	if c := j.opened(openFact{epoch: 5, tail: 3, who: "writer"}); c != "" {
		t.Errorf("nothing above the tail is of an earlier epoch: %s", c)
	}
	if c := j.opened(openFact{epoch: 12, tail: 3, who: "writer"}); c == "" {
		t.Errorf("LSN %d of epoch 9 was read, and is not in what epoch 12 opened", far+3)
	}
	if c := j.final(2, "auditor"); !strings.Contains(string(c), "told LSN 3") {
		t.Errorf("the lowest that is missing is LSN 3: %s", c)
	}
}
