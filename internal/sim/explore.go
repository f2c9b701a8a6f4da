package sim

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Exploration bounds a world for Explore. The network loses, doubles and reorders what it likes, without bound: a message that was sent
// may be delivered at any time later, any number of times, or never.
type Exploration struct {
	Nodes, Qw int
	Writers   int // how many open the log, one after another or at once; each keeps writing as long as it believes that it may
	Records   int // how many records are appended, by whichever writers
	Crashes   int // of nodes, which start again on their disks
	Wipes     int // of disks, within the failure model
	Damages   int // of records on a disk, which counts as one that is lost: 0 or 1, and then no wipe
	Reopens   int // how many of the opens may be a live writer's
	Flights   int // sends of a writer under way before it holds a record; 0 stands for more than there are records
	Rules     protocol.Rules
	// Opened begins with a log that the first writer has opened, with every node active. It leaves out what goes wrong in the first open, and
	// gets one open deeper with the same effort.
	Opened bool
	// Tails has the tail read with Open, as the client does; it makes many more states.
	Tails bool
	// NoSymmetry counts worlds apart that differ only in the names of nodes.
	NoSymmetry bool
	// classes, if not nil, gets what the states are up to the names of nodes, for a test of the reduction.
	classes *printSet
	// MaxStates ends the search, which is then not exhausted; 0 is no limit.
	MaxStates int
	// Progress, if not nil, is called now and then.
	Progress func(states, frontier, depth int)
}

// check says why a world cannot be explored.
func (o *Exploration) check() error {
	switch {
	case o.Nodes < 1 || o.Nodes > 5 || o.Qw < 1 || o.Qw > o.Nodes:
		return fmt.Errorf("%d nodes with write quorum %d: 1 to 5 nodes, and a quorum of them", o.Nodes, o.Qw)
	case o.Writers < 1 || o.Writers > 6:
		return fmt.Errorf("%d opens: 1 to 6", o.Writers)
	case o.Records < 0 || o.Records > 6:
		return fmt.Errorf("%d records: 0 to 6", o.Records)
	case o.Damages < 0 || o.Damages > 1:
		return fmt.Errorf("%d damaged records: 0 or 1", o.Damages)
	case o.Flights < 0 || o.Flights > exFlights:
		return fmt.Errorf("%d flights: 0 to %d", o.Flights, exFlights)
	case min(o.Crashes, o.Wipes, o.Reopens, o.MaxStates) < 0 || max(o.Crashes, o.Wipes, o.Reopens) > 15:
		return fmt.Errorf("%d crashes, %d wipes, %d re-opens: 0 to 15", o.Crashes, o.Wipes, o.Reopens)
	}
	return nil
}

// Explored is what an exploration found.
type Explored struct {
	States    int           `json:"states"`  // distinct, up to the names of nodes
	Steps     int           `json:"steps"`   // transitions looked at
	Depth     int           `json:"depth"`   // of the deepest state
	Parts     int           `json:"parts"`   // states of single nodes, clients and records
	Letters   int           `json:"letters"` // distinct messages
	Opens     int           `json:"opens"`   // states in which an open has just completed, and so on: what was reached
	Commits   int           `json:"commits"`
	Takeovers int           `json:"takeovers"`
	Exhausted bool          `json:"exhausted"`
	Rule      string        `json:"rule,omitempty"` // that was found broken
	Message   string        `json:"message,omitempty"`
	Trace     []string      `json:"trace,omitempty"` // a shortest way there
	Elapsed   time.Duration `json:"elapsed_ns"`
	CPU       time.Duration `json:"cpu_ns"`
}

const (
	exLog     protocol.LogID = 7
	exMaxLSN  protocol.LSN   = 6
	exFlights                = 7 // more than there are records
	exAsks                   = 6 // recovery reads of one open at most: a source that does not answer is not asked for ever
)

// record is the log's record (P1, P7).
type record struct {
	epoch    protocol.Epoch
	owner    int
	ensemble protocol.Ensemble
	history  protocol.History
	prints   []fingerprint
}

// exState is a state of the world.
type exState struct {
	nodes                                            []int32 // part states
	clients                                          []int32
	record                                           int32
	letters                                          []uint32 // what was sent and may still do something, ascending
	opens, appends, crashes, wipes, reopens, damages uint8
	// What was told: the content of each LSN, the epoch that gave each content out, and the tail of each completed open plus 1.
	told  [exMaxLSN + 1]byte
	gave  [8]uint8
	tails [8]uint8
}

type explorer struct {
	o         Exploration
	renamings []renaming
	buf       []byte

	locals   []local
	localOf  map[fingerprint]int32
	letters  []letter
	letterOf map[fingerprint]uint32
	effects  map[uint64]*effect
	starts   []start
	startOf  map[fingerprint]uint32
	records  []record
	recordOf map[fingerprint]int32

	seen    printSet
	parents []uint32
	actions []action
	found   *Explored
}

// action is a step of the world.
type action struct {
	kind actionKind
	part uint8
	arg  uint32
}

type actionKind uint8

const (
	actToken actionKind = iota
	actReopen
	actDeliver
	actInstall
	actAppend
	actTick
	actCrash
	actWipe
	actDamage
)

// Explore walks through every state that a small world of the real state machines can get into, nearest first, and judges each by S1 to
// S6 on the contents of records. A violation comes with a shortest way to it.
func Explore(o Exploration) *Explored {
	begun, cpu := time.Now(), cpuTime()
	x := &explorer{o: o, renamings: renamings(o.Nodes, !o.NoSymmetry || o.classes != nil), localOf: map[fingerprint]int32{}, letterOf: map[fingerprint]uint32{},
		effects: map[uint64]*effect{}, startOf: map[fingerprint]uint32{}, recordOf: map[fingerprint]int32{}, found: &Explored{}}
	x.run()
	f := x.found
	f.States, f.Parts, f.Letters = len(x.parents), len(x.locals)+len(x.records), len(x.letters)
	f.Elapsed, f.CPU = time.Since(begun), cpuTime()-cpu
	return f
}

// root adds the state of a new machine.
func (x *explorer) root(node bool, part int, inc protocol.Incarnation) int32 {
	l := local{node: node, part: part, inc: inc, parent: -1}
	m := &machine{x: x, l: &l, given: map[protocol.LSN]byte{}, recs: map[protocol.Ref][]byte{}}
	if node {
		m.shard = protocol.NewShard(inc, x.o.Rules)
	}
	return m.intern(-1, input{})
}

func (x *explorer) first() *exState {
	s := &exState{}
	var e protocol.Ensemble
	for i := range x.o.Nodes {
		s.nodes = append(s.nodes, x.root(true, i, incOf(i, 0)))
		e = append(e, protocol.Member{Node: protocol.NodeID(rune('a' + i)), Incarnation: incOf(i, 0)})
	}
	for i := range x.o.Writers {
		s.clients = append(s.clients, x.root(false, i, 0))
	}
	s.record = x.internRecord(record{ensemble: e, owner: -1})
	if x.o.Opened {
		s = x.token(s, 0, e, false)
		for progress := true; progress; {
			progress = false
			if x.locals[s.clients[0]].install != nil {
				s, progress = x.installed(s, 0), true
			}
			for _, n := range s.letters {
				to, in := x.letters[n].to, input{inMessage, n}
				var t *exState
				if to < x.o.Nodes {
					t = x.node(s, to, in)
				} else {
					t = x.client(s, to-x.o.Nodes, in)
				}
				if t != nil {
					s, progress = t, true
					break
				}
			}
		}
	}
	return s
}

func (x *explorer) internRecord(r record) int32 {
	for i, ren := range x.renamings {
		d := dumper{r: ren, buf: x.buf[:0]}
		d.word(3)
		d.word(uint64(r.epoch))
		d.word(uint64(r.owner))
		d.value(reflect.ValueOf(r.ensemble))
		d.value(reflect.ValueOf(r.history))
		x.buf = d.buf
		f := print128(d.buf)
		if i == 0 {
			if id, ok := x.recordOf[f]; ok {
				return id
			}
			x.recordOf[f] = int32(len(x.records))
		}
		r.prints = append(r.prints, f)
	}
	x.records = append(x.records, r)
	return int32(len(x.records) - 1)
}

func (x *explorer) internStart(s start) uint32 {
	d := dumper{r: x.renamings[0], buf: x.buf[:0]}
	d.value(reflect.ValueOf(s))
	x.buf = d.buf
	f := print128(d.buf)
	if id, ok := x.startOf[f]; ok {
		return id
	}
	id := uint32(len(x.starts))
	x.starts = append(x.starts, s)
	x.startOf[f] = id
	return id
}

// run is the search.
func (x *explorer) run() {
	o := &x.o
	s := x.first()
	x.seen.add(x.print(s, false))
	if o.classes != nil {
		o.classes.add(x.print(s, true))
	}
	x.parents, x.actions = append(x.parents, 0), append(x.actions, action{})
	frontier, next := x.encode(nil, 0, s), []byte(nil)
	for depth := 0; len(frontier) > 0; depth++ {
		x.found.Depth = depth
		width, done := 0, 0
		for rest := frontier; len(rest) > 0; {
			var number uint32
			var from *exState
			number, from, rest = x.decode(rest)
			done++
			more := x.successors(from, func(a action, to *exState) bool {
				x.found.Steps++
				fresh := x.seen.add(x.print(to, false))
				if fresh && o.classes != nil {
					o.classes.add(x.print(to, true))
				}
				if x.found.Rule == "" && !fresh {
					return true
				}
				x.parents, x.actions = append(x.parents, number), append(x.actions, a)
				if x.found.Rule != "" {
					return false
				}
				next = x.encode(next, uint32(len(x.parents)-1), to)
				width++
				return o.MaxStates == 0 || len(x.parents) < o.MaxStates
			})
			if x.found.Rule != "" {
				x.trace(len(x.parents) - 1)
				return
			}
			if !more {
				return
			}
			if o.Progress != nil && done%(1<<16) == 0 {
				o.Progress(len(x.parents), width, depth)
			}
		}
		frontier, next = next, frontier[:0]
	}
	x.found.Exhausted = true
}

// successors calls visit for each step that the world can take.
func (x *explorer) successors(s *exState, visit func(action, *exState) bool) bool {
	o := &x.o
	for c, id := range s.clients {
		l := x.locals[id]
		fresh := l.epoch == 0 && (c == 0 || x.locals[s.clients[c-1]].epoch != 0) // writers are alike: the first that is left
		live := l.writing && !l.opening && x.records[s.record].owner == c && int(s.reopens) < o.Reopens
		if int(s.opens) < o.Writers && (fresh || live) {
			for _, target := range x.targets(s) {
				t := x.token(s, c, target, live)
				kind := actToken
				if live {
					kind = actReopen
				}
				if t != nil && !visit(action{kind, uint8(c), uint32(t.opens)}, t) {
					return false
				}
			}
		}
		if l.install != nil {
			if !visit(action{actInstall, uint8(c), 0}, x.installed(s, c)) {
				return false
			}
		}
		if l.writing && int(s.appends) < o.Records {
			t := x.client(s, c, input{inAppend, uint32('a' + s.appends)})
			if t != nil {
				t.appends++
				if !visit(action{actAppend, uint8(c), uint32('a' + s.appends)}, t) {
					return false
				}
			}
		}
		if l.opening && l.asked > 0 && l.asked < exAsks {
			if t := x.client(s, c, input{inTick, 0}); t != nil && !visit(action{actTick, uint8(c), 0}, t) {
				return false
			}
		}
	}
	for _, n := range s.letters {
		var t *exState
		if to := x.letters[n].to; to < o.Nodes {
			t = x.node(s, to, input{inMessage, n})
		} else {
			t = x.client(s, to-o.Nodes, input{inMessage, n})
		}
		if t != nil && !visit(action{actDeliver, 0, n}, t) {
			return false
		}
	}
	for i := range s.nodes {
		if int(s.crashes) < o.Crashes {
			if t := x.node(s, i, input{inRestart, 0}); t != nil {
				t.crashes++
				if !visit(action{actCrash, uint8(i), 0}, t) {
					return false
				}
			}
		}
		if int(s.damages) < o.Damages && s.wipes == 0 && x.mayWipe(s, i) {
			for _, r := range x.locals[s.nodes[i]].stored {
				if t := x.node(s, i, input{inDamage, argOf(r)}); t != nil {
					t.damages++
					if !visit(action{actDamage, uint8(i), argOf(r)}, t) {
						return false
					}
				}
			}
		}
		if int(s.wipes) < o.Wipes && s.damages == 0 && x.mayWipe(s, i) {
			if !visit(action{actWipe, uint8(i), 0}, x.wipe(s, i)) {
				return false
			}
		}
	}
	return true
}

// current returns the members that the recorded nodes are now.
func (x *explorer) current(s *exState, e protocol.Ensemble) protocol.Ensemble {
	out := slices.Clone(e)
	for i := range out {
		out[i].Incarnation = x.locals[s.nodes[int(out[i].Node[0]-'a')]].inc
	}
	return out
}

func (x *explorer) targets(s *exState) []protocol.Ensemble {
	recorded := x.records[s.record].ensemble
	out := []protocol.Ensemble{recorded}
	if now := x.current(s, recorded); !now.Equal(recorded) {
		out = append(out, now)
	}
	return out
}

func (x *explorer) token(s *exState, c int, target protocol.Ensemble, live bool) *exState {
	r := x.records[s.record]
	in := input{inStart, x.internStart(start{r.epoch + 1, r.ensemble, r.history, target})}
	if live {
		in.kind = inReopen
	}
	t := x.client(s, c, in)
	if t == nil {
		return nil
	}
	t.opens++
	if live {
		t.reopens++
	}
	r.epoch++
	r.owner, r.prints = c, nil
	t.record = x.internRecord(r)
	return t
}

func (x *explorer) installed(s *exState, c int) *exState {
	l := x.locals[s.clients[c]]
	r := x.records[s.record]
	if r.owner != c || r.epoch != l.epoch {
		return x.client(s, c, input{inRefused, 0})
	}
	r.ensemble, r.history, r.prints = l.install.Ensemble, l.install.History, nil
	u := *s
	u.record = x.internRecord(r)
	return x.client(&u, c, input{inInstalled, 0})
}

// client steps a client; nil is a step without any effect.
func (x *explorer) client(s *exState, c int, in input) *exState {
	e := x.effect(s.clients[c], in)
	if e.next == s.clients[c] && !x.news(s, e) {
		return nil
	}
	t := s.clone()
	t.clients[c] = e.next
	x.sent(t, e.out)
	if e.bad != "" {
		x.violated("machine", "%s", e.bad)
	}
	epoch := uint8(e.epoch)
	for _, f := range e.gave {
		t.gave[f.data-'a'] = uint8(x.locals[e.next].reign)
	}
	for _, f := range e.acked {
		x.found.Commits++
		x.told(t, f, fmt.Sprintf("w%d", c+1))
		for later := int(epoch) + 1; later < len(t.tails); later++ {
			if t.tails[later] != 0 && uint8(f.lsn) > t.tails[later]-1 {
				x.violated("S5", "w%d is told that LSN %d of epoch %d is committed, but epoch %d was opened with tail %d", c+1, f.lsn, epoch, later, t.tails[later]-1)
			}
		}
	}
	if len(e.acked) > 0 {
		x.kept(t)
	}
	if e.opened {
		x.opened(t, c, e)
	}
	x.push(t, c)
	x.tidy(t)
	return t
}

// push lets a writer's timer fire: that its watermark is under way forces nobody to take it.
func (x *explorer) push(t *exState, c int) {
	if l := &x.locals[t.clients[c]]; l.writing && !l.opening {
		e := x.effect(t.clients[c], input{inTick, 0})
		t.clients[c] = e.next
		x.sent(t, e.out)
	}
}

// node steps a node; nil is a step without any effect.
func (x *explorer) node(s *exState, i int, in input) *exState {
	e := x.effect(s.nodes[i], in)
	if e.next == s.nodes[i] && !x.news(s, e) {
		return nil
	}
	t := s.clone()
	t.nodes[i] = e.next
	x.sent(t, e.out)
	if e.bad != "" {
		x.violated("machine", "%s", e.bad)
	}
	x.look(t, i)
	x.tidy(t)
	return t
}

func (x *explorer) wipe(s *exState, i int) *exState {
	t := s.clone()
	t.wipes++
	_, generation := slotOf(x.locals[s.nodes[i]].inc)
	t.nodes[i] = x.root(true, i, incOf(i, generation+1))
	x.kept(t)
	x.tidy(t)
	return t
}
