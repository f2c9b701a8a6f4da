package protocol

import (
	"errors"
	"fmt"
	"sort"
	"strings"
)

// The test world: shards with a durable copy each, clients (openers and writers), the log's record as a register with
// compare-and-swap, an archive, and a network in which every message waits until the test delivers, drops or doubles it.
// Scripts and the randomized simulation drive the same world, and the same oracle watches both.

const testLog LogID = 7

type recKey struct {
	label Epoch
	lsn   LSN
}

// wnode is a log node: what is in state and recs is on its disk, the shard is its process.
type wnode struct {
	name   string
	inc    Incarnation
	shard  *Shard // nil: the process is down
	state  []byte
	recs   map[recKey][]byte
	unread map[recKey]bool // reads of these fail (I/O error)
}

type packet struct {
	id       int
	from, to string
	msg      Message
	held     bool
}

// register is the log's record (P1, P7, A6).
type register struct {
	epoch    Epoch
	owner    *client
	ensemble Ensemble
	qw       int
	history  History
	trimmed  LSN
	deleted  bool
	lost     LostRanges
}

type object struct {
	label       Epoch
	first, last LSN
	clsn        LSN
	recs        map[LSN]string
}

type client struct {
	name             string
	opener           *Opener
	writer           *Writer
	epoch            Epoch
	given            map[LSN]string
	acked            LSN
	dead             bool
	holdCAS          bool
	install          *Install
	opened, reopened int // completed opens, and those of a live writer
	lastErr          error
	// highAtCAS is what was committed when this client's compare-and-swap took effect, which is where its open takes
	// place: a later token may have moved on before the last Activate is acknowledged.
	highAtCAS LSN
}

type world struct {
	now      Time
	rules    Rules
	settings Settings
	nodes    []*wnode
	clients  []*client
	reg      register
	net      []*packet
	nextPkt  int
	nextInc  Incarnation
	holds    []string        // patterns of messages that wait
	cuts     map[string]bool // "x->y": dropped at once
	archive  []object
	ever     map[Incarnation]map[recKey]bool
	oracle   oracle
	events   []string
	window   uint32
	block    int
	tail     int // bytes that are asked for with Open
	flights  int // of a writer; 0: the default
	deadline Time
	out      Out
	replies  int
}

func newWorld() *world {
	return &world{cuts: map[string]bool{}, ever: map[Incarnation]map[recKey]bool{}, nextInc: 100, deadline: 5000 * Millisecond,
		settings: Settings{Name: "log", Window: 16, SegmentBytes: MinSegmentBytes}, oracle: oracle{committed: map[LSN]string{}}, block: 64}
}

func (w *world) event(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

func (w *world) takeEvents() string {
	s := strings.Join(w.events, "\n")
	w.events = w.events[:0]
	return s
}

func (w *world) addNode(name string) *wnode {
	n := &wnode{name: name}
	w.nodes = append(w.nodes, n)
	w.wipe(n)
	return n
}

func (w *world) node(name string) *wnode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (w *world) client(name string) *client {
	for _, c := range w.clients {
		if c.name == name {
			return c
		}
	}
	return nil
}

func (w *world) byInc(inc Incarnation) *wnode {
	for _, n := range w.nodes {
		if n.inc == inc {
			return n
		}
	}
	return nil
}

// wipe gives the node an empty disk, which is another incarnation.
func (w *world) wipe(n *wnode) {
	w.nextInc++
	n.inc, n.state, n.recs, n.unread = w.nextInc, nil, map[recKey][]byte{}, map[recKey]bool{}
	n.shard = NewShard(n.inc, w.rules)
	w.ever[n.inc] = map[recKey]bool{}
}

func (w *world) crash(n *wnode) { n.shard = nil }

func (w *world) restart(n *wnode) error {
	n.shard = NewShard(n.inc, w.rules)
	if n.state == nil {
		return nil
	}
	if err := n.shard.Restore(testLog, n.state); err != nil {
		return err
	}
	for _, k := range n.sortedRecs() {
		if _, err := n.shard.RestoreRecord(testLog, k.label, k.lsn, n.recs[k], w.now); err != nil {
			return err
		}
	}
	n.shard.RestoreDone(testLog)
	return nil
}

func (n *wnode) sortedRecs() []recKey {
	keys := make([]recKey, 0, len(n.recs))
	for k := range n.recs {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		return keys[i].label < keys[j].label || keys[i].label == keys[j].label && keys[i].lsn < keys[j].lsn
	})
	return keys
}

// step runs one batch of requests through a node: Step, Finish, commit, replies. With crash the process dies after the
// step and before the commit.
func (w *world) step(n *wnode, crash bool, pkts ...*packet) {
	w.out.Reset()
	for _, p := range pkts {
		n.shard.Step(w.now, Peer(w.clientIndex(p.from)), p.msg, &w.out)
	}
	if crash {
		w.crash(n)
		return
	}
	w.commit(n)
}

func (w *world) clientIndex(name string) int {
	for i, c := range w.clients {
		if c.name == name {
			return i
		}
	}
	return -1
}

// commit makes the batch in w.out durable, trims before records, and then sends its replies.
func (w *world) commit(n *wnode) {
	n.shard.Finish(&w.out)
	for _, t := range w.out.Trims {
		for k := range n.recs {
			if k.label == t.Label && (t.Whole || k.lsn <= t.Through) {
				delete(n.recs, k)
			}
		}
	}
	for _, r := range w.out.Records {
		k := recKey{r.Label, r.LSN}
		n.recs[k] = append(append([]byte(nil), r.Head...), r.Data...)
		w.ever[n.inc][k] = true
	}
	for _, s := range w.out.State {
		n.state = append([]byte(nil), s.Value...)
	}
	for _, a := range w.out.Acks {
		ack := a.Ack
		w.send(n.name, w.clients[a.To].name, &ack)
	}
	for i := range w.out.Replies {
		r := &w.out.Replies[i]
		n.fill(r)
		if int(r.To) < len(w.clients) {
			w.send(n.name, w.clients[r.To].name, r.Msg)
		}
	}
}

// fill reads the records that a reply names from the node's disk, as a driver does.
func (n *wnode) fill(r *ReplyOut) {
	var recs *[]Record
	var damaged *[]Range
	var through *LSN
	switch m := r.Msg.(type) {
	case *FetchReply:
		recs, damaged, through = &m.Records, &m.Damaged, &m.Through
	case *ReadReply:
		recs, damaged, through = &m.Records, &m.Damaged, &m.Through
	default:
		return
	}
	bytes := 0
	for _, ref := range r.Refs {
		if len(*recs) > 0 && bytes >= r.MaxBytes {
			*through = ref.LSN - 1
			return
		}
		k := recKey{ref.Label, ref.LSN}
		st, err := DecodeStored(ref.LSN, ref.Label, n.recs[k])
		if err != nil || n.unread[k] {
			*damaged = append(*damaged, Range{ref.LSN, ref.LSN})
			continue
		}
		*recs = append(*recs, st.Record)
		bytes += len(st.Data)
	}
}

func (w *world) send(from, to string, m Message) {
	if w.cuts[from+"->"+to] {
		return
	}
	w.nextPkt++
	p := &packet{id: w.nextPkt, from: from, to: to, msg: m}
	for _, pat := range w.holds {
		if p.matches(pat) {
			p.held = true
		}
	}
	w.net = append(w.net, p)
}

// matches reports whether all words of a pattern are in the packet's description; "w1->a" also matches by parts.
func (p *packet) matches(pattern string) bool {
	desc := p.String()
	for _, f := range strings.Fields(pattern) {
		switch {
		case strings.HasPrefix(f, "->"):
			if p.to != f[2:] {
				return false
			}
		case strings.HasSuffix(f, "->"):
			if p.from != f[:len(f)-2] {
				return false
			}
		case !strings.Contains(" "+desc+" ", " "+f+" "):
			return false
		}
	}
	return true
}

func (p *packet) String() string { return fmt.Sprintf("%s->%s %s", p.from, p.to, describe(p.msg)) }

func (w *world) remove(p *packet) {
	for i, q := range w.net {
		if q == p {
			w.net = append(w.net[:i], w.net[i+1:]...)
			return
		}
	}
}

// deliver hands a packet to its receiver and takes it off the network.
func (w *world) deliver(p *packet, crash bool) {
	w.remove(p)
	if n := w.node(p.to); n != nil {
		if n.shard != nil {
			w.step(n, crash, p)
		}
		return
	}
	c := w.client(p.to)
	if c == nil || c.dead {
		return
	}
	w.handle(c, p.msg)
}

func (w *world) handle(c *client, m Message) {
	if c.opener != nil {
		c.opener.Handle(w.now, m)
	}
	if a, ok := m.(*Ack); ok && c.writer != nil {
		c.writer.HandleAck(w.now, a)
	}
	w.pump(c)
}

// members returns the ensemble of the named nodes at the incarnations they have now.
func (w *world) members(names ...string) Ensemble {
	var e Ensemble
	for _, name := range names {
		e = append(e, Member{Node: NodeID(name), Incarnation: w.node(name).inc})
	}
	return e
}

// open takes the token for a client by compare-and-swap and starts its opener. A client with a live writer re-opens.
func (w *world) open(c *client, target Ensemble, qw int, loss *AcceptLoss) error {
	w.reg.epoch++
	w.reg.owner = c
	c.epoch = w.reg.epoch
	c.install = nil
	if target == nil {
		target, qw = w.reg.ensemble, w.reg.qw
	}
	o, err := NewOpener(OpenerConfig{Log: testLog, Epoch: c.epoch, Recorded: w.reg.ensemble, Qw: w.reg.qw, History: w.reg.history,
		Trimmed: w.reg.trimmed, Lost: w.reg.lost, Loss: loss, Target: target, TargetQw: qw, Settings: w.settings, BlockBytes: w.block, FetchBytes: 64, TailBytes: w.tail,
		Deadline: w.now + w.deadline, Rules: w.rules})
	if err != nil {
		return err
	}
	c.opener = o
	if c.writer != nil {
		c.writer.TokenTaken(c.epoch)
	}
	o.Start(w.now)
	w.pump(c)
	return nil
}

// cas is P7's compare-and-swap: epoch and owner still the client's.
func (w *world) cas(c *client) {
	i := c.install
	c.install = nil
	if i == nil || c.opener == nil {
		return
	}
	if w.reg.epoch != c.epoch || w.reg.owner != c || w.reg.deleted {
		c.opener.Installed(w.now, ErrFenced)
	} else {
		w.reg.ensemble, w.reg.history = i.Ensemble, i.History
		w.reg.qw = c.opener.cfg.TargetQw
		c.highAtCAS = w.oracle.high
		lost, err := w.reg.lost.With(i.Lost)
		if err := errors.Join(err, w.reg.history.Validate()); err != nil {
			w.oracle.violate("record: %v", err)
		}
		w.reg.lost = lost
		if b := w.reg.history.Last().Start - 1; len(i.Lost) > 0 && i.Lost[len(i.Lost)-1].To == b {
			w.oracle.high = max(w.oracle.high, b) // skipped: as good as committed
		}
		c.opener.Installed(w.now, nil)
	}
	w.pump(c)
}

// pump moves what a client's machines want into the world.
func (w *world) pump(c *client) {
	if c.dead {
		return
	}
	if o := c.opener; o != nil {
		for _, s := range o.Sends(nil) {
			w.send(c.name, string(s.To), s.Msg)
		}
		if after, ok := o.PendingLook(); ok {
			w.event("%s: looks at the archive above LSN %d", c.name, after)
			o.Looked(w.now, w.objects(after), nil)
			w.pump(c)
			return
		}
		if r := o.PendingRead(); r != nil {
			o.Handle(w.now, w.archiveRead(r))
			w.pump(c)
			return
		}
		if i := o.PendingInstall(); i != nil {
			c.install = i
			if !c.holdCAS {
				w.cas(c)
				return
			}
		}
		switch {
		case o.Err() != nil:
			w.event("%s: open failed: %v", c.name, o.Err())
			c.lastErr, c.opener = o.Err(), nil
		case o.Result() != nil:
			w.openDone(c, o)
		}
	}
	if wr := c.writer; wr != nil {
		for _, s := range wr.TakeSends(nil) {
			to := string(wr.Ensemble()[s.Node].Node)
			switch s.Kind {
			case SendAppend:
				m := &Append{}
				wr.Fill(s, m, nil)
				w.send(c.name, to, m)
			case SendActivate:
				w.send(c.name, to, wr.Activation(s.Node))
			case SendWatermark:
				w.send(c.name, to, wr.PushMessage(s.Node))
			}
		}
		if wr.NeedsRecordCheck() {
			wr.RecordSeen(w.reg.epoch, w.reg.deleted)
		}
		if got := wr.Committed(); got > c.acked {
			w.oracle.writerCommitted(w, c, c.acked+1, got)
			c.acked = got
			w.event("%s: committed %d", c.name, got)
		}
		if wr.Err() != nil && c.lastErr != wr.Err() {
			c.lastErr = wr.Err()
			w.event("%s: writer stopped: %v", c.name, wr.Err())
		}
	}
}

func (w *world) openDone(c *client, o *Opener) {
	res := o.Result()
	w.oracle.openDone(w, c, o)
	c.opener = nil
	c.opened++
	cfg := res.Config
	w.event("%s: open at epoch %d: R=%d T=%d repaired=%d copied=%d%s", c.name, cfg.Epoch, cfg.Start, cfg.Tail, res.Repaired, res.Copied, lostString(res.Lost))
	var err error
	if c.writer != nil {
		if err = c.writer.Reopened(w.now, cfg); err != nil {
			w.event("%s: re-open refused: %v", c.name, err)
		} else {
			c.reopened++
		}
	} else {
		cfg.Flights = w.flights
		c.writer, err = NewWriter(cfg, w.now)
		c.acked = cfg.Tail
		c.lastErr = err
	}
	w.pump(c)
}

func (w *world) append(c *client, data string) (LSN, error) {
	x, err := c.writer.Append(w.now, []byte(data))
	if err == nil {
		c.given[x] = data
	}
	w.pump(c)
	return x, err
}

func (w *world) batch(c *client, data ...string) error {
	var recs [][]byte
	for _, d := range data {
		recs = append(recs, []byte(d))
	}
	first, _, err := c.writer.AppendBatch(w.now, recs)
	if err == nil {
		for i, d := range data {
			c.given[first+LSN(i)] = d
		}
	}
	w.pump(c)
	return err
}

// tick runs every machine whose time has come.
func (w *world) tick() {
	for _, c := range w.clients {
		if c.dead {
			continue
		}
		if c.opener != nil && c.opener.NextTick() <= w.now {
			c.opener.Tick(w.now)
		}
		if c.writer != nil && c.writer.NextTick() <= w.now {
			c.writer.Tick(w.now)
		}
		w.pump(c)
	}
}

// run delivers everything that is not held, in order, to quiescence, and goes on through the timers for d.
func (w *world) run(d Time) {
	end := w.now + d
	for guard := 0; guard < 200000; guard++ {
		var next *packet
		for _, p := range w.net {
			if !p.held {
				next = p
				break
			}
		}
		if next != nil {
			w.deliver(next, false)
			continue
		}
		at := never
		for _, c := range w.clients {
			if !c.dead && c.opener != nil {
				at = min(at, c.opener.NextTick())
			}
			if !c.dead && c.writer != nil {
				at = min(at, c.writer.NextTick())
			}
		}
		if at > end {
			w.now = end
			return
		}
		w.now = max(at, w.now+1)
		w.tick()
	}
	w.oracle.violate("the world does not come to rest")
}

// hotRead reads [from, to] at one node and has the oracle look at it (S4).
func (w *world) hotRead(n *wnode, from, to LSN) *ReadReply {
	var out Out
	n.shard.Step(w.now, 1<<30, &Read{Log: testLog, From: from, To: to, MaxBytes: 1 << 20}, &out)
	n.fill(&out.Replies[0])
	r := out.Replies[0].Msg.(*ReadReply)
	for _, rec := range r.Records {
		w.oracle.served(fmt.Sprintf("hot read at %s", n.name), rec.LSN, string(rec.Data))
	}
	return r
}
