package sim

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
)

// The explorer's world is a tuple of parts: a part is one node (its process and its disk), one client (its opener and its writer), or
// the log's record. Each state that a part can be in is known by a number, and so is each message. What an input does to a part in a
// state is worked out once, by the real machine, and remembered; a step of the world is then a look into a table.
//
// A machine cannot be copied, so a part is brought into a state by feeding a new machine what led there first.

// inputKind is a kind of input of a part.
type inputKind uint8

const (
	inMessage   inputKind = iota
	inStart               // client: a token was taken; a new process opens the log
	inReopen              // client: a token was taken; the live writer opens its log again
	inInstalled           // client: the compare-and-swap took effect
	inRefused             // client: it did not, the token is another's
	inAppend
	inTick
	inRestart // node: the process dies and starts again on its disk
	inDamage  // node: and one record there cannot be read any more
)

// input is one input of a part; arg is a message, a start, or the content of an append.
type input struct {
	kind inputKind
	arg  uint32
}

// start is what an open begins with.
type start struct {
	epoch    protocol.Epoch
	recorded protocol.Ensemble
	history  protocol.History
	target   protocol.Ensemble
}

// local is a state of a part.
type local struct {
	node   bool
	part   int // slot of the node, or number of the client
	inc    protocol.Incarnation
	parent int32 // -1: the machine is new
	in     input
	prints []fingerprint // under each renaming

	// Of a node: what a reader is served, and what it holds, as one bit for each LSN and content.
	served []fact
	holds  uint64
	stored []protocol.Ref
	// Of a client.
	epoch    protocol.Epoch    // its last token
	reign    protocol.Epoch    // under which it writes
	target   protocol.Ensemble // of its open under way
	opening  bool
	writing  bool
	install  *protocol.Install // wanted
	promised protocol.Epoch    // of a node
	stage    protocol.Stage
	asked    uint64
}

// fact is a record at its LSN.
type fact struct {
	lsn  protocol.LSN
	data byte
}

func (f fact) bit() uint64 { return 1 << (uint(f.lsn)*8 + uint(f.data-'a')) }

// effect is what an input does.
type effect struct {
	next   int32
	out    []uint32 // messages
	acked  []fact   // told to the writer's client
	gave   []fact
	opened bool // an open completed, with tail
	epoch  protocol.Epoch
	tail   protocol.LSN
	// status of the answer of a node to a request, for what may be forgotten
	final bool
	bad   string
}

// letter is a message with its way.
type letter struct {
	m        protocol.Message
	from, to int // node slot, or nodes + client
	prints   []fingerprint
	epoch    protocol.Epoch
	inc      protocol.Incarnation
}

// machine is a part brought to life.
type machine struct {
	x *explorer
	l *local

	shard *protocol.Shard
	state []byte
	recs  map[protocol.Ref][]byte

	opener *protocol.Opener
	writer *protocol.Writer
	given  map[protocol.LSN]byte
	told   protocol.LSN
	epoch  protocol.Epoch
	target protocol.Ensemble

	install *protocol.Install
	stopped bool
}

// exNow is the time at which everything happens; every timer has fired.
const exNow = 1000 * protocol.Millisecond

func (x *explorer) build(id int32) *machine {
	var path []input
	l := &x.locals[id]
	at := l
	for at.parent >= 0 {
		path = append(path, at.in)
		at = &x.locals[at.parent]
	}
	m := &machine{x: x, l: l}
	if l.node {
		m.shard, m.recs = protocol.NewShard(l.inc, x.o.Rules), map[protocol.Ref][]byte{}
	} else {
		m.given = map[protocol.LSN]byte{}
	}
	for _, in := range slices.Backward(path) {
		m.step(in)
	}
	return m
}

// step feeds one input and returns what the machine sent.
func (m *machine) step(in input) (e effect, out []letter) {
	if m.l.node {
		if m.shard != nil {
			zeroTimes(reflect.ValueOf(m.shard))
		}
		return m.stepNode(in)
	}
	zeroTimes(reflect.ValueOf(m.opener))
	zeroTimes(reflect.ValueOf(m.writer))
	forget(m.writer)
	return m.stepClient(in)
}

func (m *machine) stepNode(in input) (e effect, out []letter) {
	if in.kind == inDamage {
		m.recs[refOf(in.arg)] = []byte{0}
	}
	if in.kind == inRestart || in.kind == inDamage {
		m.shard = protocol.NewShard(m.l.inc, m.x.o.Rules)
		if m.state == nil {
			return e, nil
		}
		if err := m.shard.Restore(exLog, m.state); err != nil {
			e.bad = err.Error()
			return e, nil
		}
		for _, r := range m.refs() {
			if _, err := m.shard.RestoreRecord(exLog, r.Label, r.LSN, m.recs[r], exNow); err != nil {
				e.bad = err.Error()
				return e, nil
			}
		}
		m.shard.RestoreDone(exLog)
		return e, nil
	}
	msg := &m.x.letters[in.arg]
	var o protocol.Out
	if w, ok := msg.m.(openWithTail); ok {
		m.shard.Step(exNow, protocol.Peer(msg.from), w.Open, &o)
		m.shard.Step(exNow, protocol.Peer(msg.from), w.read, &o)
	} else {
		m.shard.Step(exNow, protocol.Peer(msg.from), msg.m, &o)
	}
	m.shard.Finish(&o)
	for _, t := range o.Trims {
		for r := range m.recs {
			if r.Label == t.Label && (t.Whole || r.LSN <= t.Through) {
				delete(m.recs, r)
			}
		}
	}
	for _, r := range o.Records {
		m.recs[protocol.Ref{Label: r.Label, LSN: r.LSN}] = append(slices.Clone(r.Head), r.Data...)
	}
	for _, s := range o.State {
		m.state = slices.Clone(s.Value)
	}
	// A refusal for good is lost always: a client who never hears of it goes on, and can do all that one who does can do, who stops.
	for i := range o.Acks {
		a := o.Acks[i].Ack
		if a.Status == protocol.StatusFenced || a.Status == protocol.StatusWrongIncarnation {
			e.final = true
			continue
		}
		a.CLSN, a.Activated = 0, 0 // see forget
		a.Promised = 0
		e.final = a.Status == protocol.StatusOK
		out = append(out, letter{m: &a, from: m.l.part, to: int(o.Acks[i].To), epoch: a.Epoch})
	}
	for i := range o.Replies {
		r := &o.Replies[i]
		m.fill(r)
		l := letter{m: r.Msg, from: m.l.part, to: int(r.To)}
		switch r := r.Msg.(type) {
		case *protocol.OpenReply:
			l.epoch = r.Epoch
			if r.Status == protocol.StatusFenced {
				e.final = true
				continue
			}
		case *protocol.FetchReply:
			l.epoch = r.Epoch
			if r.Status == protocol.StatusFenced || r.Status == protocol.StatusWrongIncarnation {
				e.final = true
				continue
			}
			if i > 0 {
				l.m = promiseWithTail{out[len(out)-1].m.(*protocol.OpenReply), r} // the promise without it is in out too: it may be lost
			}
		}
		out = append(out, l)
	}
	return e, out
}

// refOf and argOf turn a stored record into the argument of an input and back.
func refOf(arg uint32) protocol.Ref {
	return protocol.Ref{Label: protocol.Epoch(arg / 16), LSN: protocol.LSN(arg % 16)}
}
func argOf(r protocol.Ref) uint32 { return uint32(r.Label)*16 + uint32(r.LSN) }

// refs lists what is stored, in order.
func (m *machine) refs() []protocol.Ref {
	refs := make([]protocol.Ref, 0, len(m.recs))
	for r := range m.recs {
		refs = append(refs, r)
	}
	slices.SortFunc(refs, func(a, b protocol.Ref) int { return cmp.Compare(argOf(a), argOf(b)) })
	return refs
}

func (m *machine) fill(r *protocol.ReplyOut) {
	var records *[]protocol.Record
	var damaged *[]protocol.Range
	switch msg := r.Msg.(type) {
	case *protocol.FetchReply:
		records, damaged = &msg.Records, &msg.Damaged
	case *protocol.ReadReply:
		records, damaged = &msg.Records, &msg.Damaged
	default:
		return
	}
	for _, ref := range r.Refs {
		if st, err := protocol.DecodeStored(ref.LSN, ref.Label, m.recs[ref]); err == nil {
			*records = append(*records, st.Record)
		} else {
			*damaged = append(*damaged, protocol.Range{From: ref.LSN, To: ref.LSN})
		}
	}
}

// look reads a node as readers do, and notes what it shows.
func (m *machine) look(l *local) {
	read := func(raw bool) []protocol.Record {
		var o protocol.Out
		m.shard.Step(exNow, 0, &protocol.Read{Log: exLog, From: 1, To: exMaxLSN, MaxBytes: 1 << 20, Raw: raw}, &o)
		m.fill(&o.Replies[0])
		return o.Replies[0].Msg.(*protocol.ReadReply).Records
	}
	for _, r := range read(false) {
		l.served = append(l.served, fact{r.LSN, r.Data[0]})
	}
	for _, r := range read(true) {
		l.holds |= fact{r.LSN, r.Data[0]}.bit()
	}
	l.stored = m.refs()
	if st, ok := m.shard.Log(exLog); ok {
		l.promised = st.Promised
	}
}

func (m *machine) stepClient(in input) (e effect, out []letter) {
	x := m.x
	held := 0
	switch in.kind {
	case inStart, inReopen:
		s := &x.starts[in.arg]
		tail := 0
		if x.o.Tails {
			tail = 1 << 10
		}
		m.epoch, m.target, m.install = s.epoch, s.target, nil
		if in.kind == inStart {
			m.writer, m.given = nil, map[protocol.LSN]byte{}
		} else if err := m.writer.TokenTaken(s.epoch); err != nil {
			return e, nil
		}
		op, err := protocol.NewOpener(protocol.OpenerConfig{Log: exLog, Epoch: s.epoch, Recorded: s.recorded, Qw: x.o.Qw, History: s.history, Target: s.target,
			TargetQw: x.o.Qw, BlockBytes: 1 << 10, TailBytes: tail, Deadline: 1 << 60, Rules: x.o.Rules,
			Settings: protocol.Settings{Name: "log", Window: 16, SegmentBytes: protocol.MinSegmentBytes}})
		if err != nil {
			e.bad = err.Error()
			return e, nil
		}
		m.opener = op
		op.Start(exNow)
	case inMessage:
		msg := x.letters[in.arg].m
		var tail *protocol.FetchReply
		if w, ok := msg.(promiseWithTail); ok {
			msg, tail = w.OpenReply, w.read
		}
		if r, ok := msg.(*protocol.OpenReply); ok {
			mine := *r // an opener keeps it, and notes there what it learns later
			msg = &mine
		}
		if m.opener != nil {
			m.opener.Handle(exNow, msg)
			if tail != nil {
				m.opener.Handle(exNow, tail)
			}
		}
		if a, ok := msg.(*protocol.Ack); ok && m.writer != nil {
			m.writer.HandleAck(exNow, a)
		}
	case inInstalled, inRefused:
		var err error
		if in.kind == inRefused {
			err = protocol.ErrFenced
		}
		m.install = nil
		m.opener.Installed(exNow, err)
	case inAppend:
		data := []byte{byte(in.arg)}
		lsn, err := m.writer.Append(exNow, data)
		if err == nil {
			m.given[lsn] = data[0]
			e.gave = append(e.gave, fact{lsn, data[0]})
		}
	case inTick:
		if m.writer != nil {
			held = m.writer.Held()
		}
		if m.opener != nil {
			m.opener.Tick(exNow)
		} else if m.writer != nil {
			m.writer.Tick(exNow)
		}
	}
	m.pump(&e, &out, in.kind == inTick, held)
	return e, out
}

// pump takes what a client's machines want: what they send, the compare-and-swap, a completed open, a raised watermark. held is how many
// records the writer held before a tick.
func (m *machine) pump(e *effect, out *[]letter, tick bool, held int) {
	x := m.x
	from := x.o.Nodes + m.l.part
	if o := m.opener; o != nil {
		for _, s := range o.Sends(nil) {
			if f, ok := s.Msg.(*protocol.Fetch); ok && f.From == 0 {
				l := &(*out)[len(*out)-1] // Open, to the same node
				l.m = openWithTail{l.m.(*protocol.Open), f}
				continue
			}
			*out = append(*out, letter{m: s.Msg, from: from, to: int(s.To[0] - 'a'), epoch: m.epoch})
		}
		if i := o.PendingInstall(); i != nil {
			m.install = i
		}
		switch {
		case o.Err() != nil:
			if contradicts(o.Err()) {
				e.bad = o.Err().Error()
			}
			m.opener = nil
		case o.Result() != nil:
			cfg := o.Result().Config
			if cfg.Flights = x.o.Flights; cfg.Flights == 0 {
				cfg.Flights = exFlights
			}
			m.opener = nil
			e.opened, e.epoch, e.tail = true, cfg.Epoch, cfg.Tail
			if m.writer != nil {
				if m.writer.Reopened(exNow, cfg) == nil { // a refusal is the writer's end, which its error says
					for lsn := cfg.Tail + 1; lsn <= exMaxLSN; lsn++ {
						if c := m.given[lsn]; c != 0 {
							e.gave = append(e.gave, fact{lsn, c}) // given out again, under the new epoch
						}
					}
				}
			} else if w, err := protocol.NewWriter(cfg, exNow); err == nil {
				m.writer, m.told = w, cfg.Tail
			} else {
				e.bad = err.Error()
			}
		}
	}
	w := m.writer
	if w == nil {
		return
	}
	for _, s := range w.TakeSends(nil) {
		to := w.Ensemble()[s.Node]
		l := letter{from: from, to: int(to.Node[0] - 'a'), epoch: w.Epoch()}
		switch s.Kind {
		case protocol.SendAppend:
			if tick && s.From < w.Next()-protocol.LSN(held) {
				continue // it is under way already: nothing is ever lost for good
			}
			a := &protocol.Append{}
			w.Fill(s, a, nil)
			if a.Count == 0 {
				continue
			}
			l.m = a
		case protocol.SendActivate:
			l.m = w.Activation(s.Node)
		case protocol.SendWatermark:
			l.m = w.PushMessage(s.Node)
		}
		*out = append(*out, l)
	}
	w.NeedsRecordCheck() // one who never looks at the record is the bolder writer
	for m.told < w.Committed() {
		m.told++
		if c, ok := m.given[m.told]; ok {
			e.acked = append(e.acked, fact{m.told, c})
		}
		e.epoch = w.Epoch()
	}
	if w.Err() != nil {
		m.stopped = true
	}
}

// print notes the state that a machine is in and returns its number.
func (m *machine) intern(parent int32, in input) int32 {
	x := m.x
	d := dumper{r: x.renamings[0], buf: x.buf[:0]}
	m.dump(&d)
	x.buf = d.buf
	key := print128(d.buf)
	if id, ok := x.localOf[key]; ok {
		return id
	}
	l := local{node: m.l.node, part: m.l.part, inc: m.l.inc, parent: parent, in: in, prints: []fingerprint{key}, epoch: m.epoch, install: m.install}
	for _, r := range x.renamings[1:] {
		d := dumper{r: r, buf: x.buf[:0]}
		m.dump(&d)
		x.buf = d.buf
		l.prints = append(l.prints, print128(d.buf))
	}
	if l.node {
		m.look(&l)
	} else {
		if m.writer != nil && m.writer.Err() == nil {
			l.reign = m.writer.Epoch()
		}
		l.opening, l.writing = m.opener != nil, m.writer != nil && m.writer.Err() == nil
		if l.opening {
			l.target, l.stage = m.target, m.opener.Stage()
			l.asked = reflect.ValueOf(m.opener).Elem().FieldByName("req").Uint()
		}
	}
	id := int32(len(x.locals))
	x.locals = append(x.locals, l)
	x.localOf[key] = id
	return id
}

func (m *machine) dump(d *dumper) {
	if m.l.node {
		d.word(1)
		d.word(uint64(d.r.to[m.l.part]))
		d.value(reflect.ValueOf(m.shard))
		d.text(string(m.renamedState(d.r)))
		refs := m.refs()
		d.sorted(len(refs), func(i int) {
			d.word(uint64(refs[i].Label))
			d.word(uint64(refs[i].LSN))
			d.text(string(m.recs[refs[i]]))
		})
		return
	}
	d.word(2)
	d.word(uint64(m.l.part))
	d.word(uint64(m.epoch))
	d.flag(m.opener != nil)
	if m.opener != nil {
		d.value(reflect.ValueOf(m.opener).Elem())
		d.value(reflect.ValueOf(m.target))
		d.flag(m.install != nil)
	}
	d.flag(m.writer != nil)
	if m.writer != nil {
		if m.writer.Err() != nil && m.opener == nil {
			d.word(3) // a writer that has lost does nothing more
			return
		}
		d.value(reflect.ValueOf(m.writer).Elem())
	}
	d.word(uint64(m.told))
	for lsn := protocol.LSN(1); lsn <= exMaxLSN; lsn++ {
		d.word(uint64(m.given[lsn]))
	}
}

// renamedState is the node's state value as a node of another name would have it.
func (m *machine) renamedState(r renaming) []byte {
	if m.state == nil {
		return nil
	}
	s := protocol.NewShard(m.l.inc, protocol.Rules{})
	if err := s.Restore(exLog, m.state); err != nil {
		return []byte(err.Error())
	}
	d := dumper{r: r}
	d.value(reflect.ValueOf(s))
	return d.buf
}

// post notes a message and returns its number.
func (x *explorer) post(l letter) uint32 {
	var first fingerprint
	for i, r := range x.renamings {
		d := dumper{r: r, buf: x.buf[:0]}
		to, from := l.to, l.from
		if to < x.o.Nodes {
			to = r.to[to]
		}
		if from < x.o.Nodes {
			from = r.to[from]
		}
		d.word(uint64(to))
		d.word(uint64(from))
		d.value(reflect.ValueOf(&l.m).Elem())
		x.buf = d.buf
		f := print128(d.buf)
		if i == 0 {
			if id, ok := x.letterOf[f]; ok {
				return id
			}
			first = f
		}
		l.prints = append(l.prints, f)
	}
	id := uint32(len(x.letters))
	x.letters = append(x.letters, l)
	x.letterOf[first] = id
	return id
}

// effect works out what an input does to a part in a state, or remembers it.
func (x *explorer) effect(id int32, in input) *effect {
	key := uint64(id)<<32 | uint64(in.kind)<<28 | uint64(in.arg)
	if e, ok := x.effects[key]; ok {
		return e
	}
	m := x.build(id)
	e, out := m.step(in)
	for _, l := range out {
		n := x.post(l)
		if !slices.Contains(e.out, n) {
			e.out = append(e.out, n)
		}
	}
	if !m.l.node {
		forget(m.writer)
	}
	e.next = m.intern(id, in)
	x.effects[key] = &e
	return &e
}

func (x *explorer) describe(l *letter) string {
	name := func(i int) string {
		if i < x.o.Nodes {
			return string(rune('a' + i))
		}
		return fmt.Sprintf("w%d", i-x.o.Nodes+1)
	}
	return fmt.Sprintf("%s → %s: %s", name(l.from), name(l.to), brief(l.m))
}
