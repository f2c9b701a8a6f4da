package protocol

// snapshot is what a node would flush: everything it holds above its archived-through, one object for each run of one
// label, with the node's watermark of this very moment (A3). Without all it ends at the watermark.
func (w *world) snapshot(n *wnode, all bool) []object {
	l := n.shard.logs[testLog]
	if l == nil {
		return nil
	}
	var out []object
	top, _ := l.held.highest()
	if !all {
		top = min(top, l.clsn)
	}
	for x := l.archived + 1; x <= top; x++ {
		label, ok := l.held.best(x)
		if !ok {
			continue
		}
		st, err := DecodeStored(x, label, n.recs[recKey{label, x}])
		if err != nil {
			continue
		}
		if k := len(out) - 1; k < 0 || out[k].label != label || out[k].last+1 != x {
			out = append(out, object{label: label, first: x, clsn: l.clsn, recs: map[LSN]string{}})
		}
		o := &out[len(out)-1]
		o.last = x
		o.recs[x] = string(st.Data)
	}
	return out
}

// put stores objects in the archive; the proven part of each is what a cold reader serves (A3, H11).
func (w *world) put(objs []object) {
	for _, o := range objs {
		w.archive = append(w.archive, o)
		for x := o.first; x <= min(o.last, o.clsn); x++ {
			w.oracle.served("archive", x, o.recs[x])
		}
	}
}

// look shows the archive to a node.
func (w *world) look(n *wnode) {
	var objs []ArchivedObject
	if t := w.reg.trimmed; t > 0 {
		// Archived-through counts untrimmed LSNs only (P3): what is trimmed stands for an object that nobody needs.
		objs = append(objs, ArchivedObject{w.reg.epoch, 1, t, t})
	}
	for _, o := range w.archive {
		objs = append(objs, ArchivedObject{o.label, o.first, o.last, o.clsn})
	}
	w.out.Reset()
	n.shard.Archived(w.now, testLog, objs, &w.out)
	w.commit(n)
}

// coldRead is a reader with the watermark of a node, the record's whole history and the objects of the archive (H10).
func (w *world) coldRead(n *wnode) {
	l := n.shard.logs[testLog]
	if l == nil {
		return
	}
	for _, o := range w.archive {
		for x := o.first; x <= min(o.last, l.clsn); x++ {
			if x > o.clsn && !w.reg.history.Void(o.label, x) {
				w.oracle.served("cold read with the watermark of "+n.name, x, o.recs[x])
			}
		}
	}
}
