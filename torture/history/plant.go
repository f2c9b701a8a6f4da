//go:build linux

package history

import "slices"

// Plant returns a copy of the log's history with one lie in it, at the last place where it is one for certain: a tail that says that
// the log is empty, called when an append had been acknowledged. false: there is no such place. A check that passes the
// copy checks nothing.
func (l *Log) Plant() (*Log, bool) {
	acked := int64(Forever)
	for _, o := range l.Ops {
		if o.Op == Append && o.Out == OK {
			acked = min(acked, o.Ret)
		}
	}
	for i := len(l.Ops) - 1; i >= 0; i-- {
		if o := l.Ops[i]; o.Op == Tail && o.Out == OK && o.Call > acked {
			lie := *l
			lie.Ops = slices.Clone(l.Ops)
			lie.Ops[i].LSN = 0
			return &lie, true
		}
	}
	return nil, false
}
