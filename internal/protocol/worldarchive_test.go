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
			x = l.skip(x, 0) - 1
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
	objs = append(objs, w.objects(0)...)
	w.out.Reset()
	n.shard.Archived(w.now, testLog, objs, &w.out)
	w.commit(n)
}

// coldRead is a reader with the watermark of a node, the record's whole history and lost ranges, and the objects of the archive (H10).
func (w *world) coldRead(n *wnode) {
	l := n.shard.logs[testLog]
	if l == nil {
		return
	}
	for _, o := range w.archive {
		for x := o.first; x <= min(o.last, l.clsn); x++ {
			if _, lost := w.reg.lost.At(x); x > o.clsn && !lost && !w.reg.history.Void(o.label, x) {
				w.oracle.served("cold read with the watermark of "+n.name, x, o.recs[x])
			}
		}
	}
}

// objects lists what the archive holds that ends above an LSN.
func (w *world) objects(after LSN) []ArchivedObject {
	var objs []ArchivedObject
	for _, o := range w.archive {
		if o.last > after {
			objs = append(objs, ArchivedObject{o.label, o.first, o.last, o.clsn})
		}
	}
	return objs
}

// archiveRead answers an opener that reads copies of the archive, as a cold reader is served.
func (w *world) archiveRead(r *ArchiveRead) *FetchReply {
	f := &r.Fetch
	out := &FetchReply{Log: f.Log, Epoch: f.Epoch, Req: f.Req, Incarnation: f.Incarnation, From: f.From, Through: f.To}
	off := uint64(0)
	for x := f.From; x <= min(f.To, r.B); x++ {
		data, ok := "", false
		for _, o := range w.archive {
			if d, has := o.recs[x]; has && o.label == f.Label && !r.History.Void(o.label, x) {
				data, ok = d, true
			}
		}
		if !ok {
			out.Damaged = append(out.Damaged, Range{x, x})
			break
		}
		out.Records = append(out.Records, Record{LSN: x, Label: f.Label, SegStart: f.From, SegOff: off, Data: []byte(data)})
		off += uint64(EncodedSize(len(data)))
	}
	return out
}
