package protocol

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Scenario scripts: testdata/*.txt holds blocks of commands, a line "----" and the recorded output up to an empty line.
// `go test -run TestScripts -rewrite` records anew; review the difference like code.
//
//	nodes a b c [qw=2]         create nodes and the log's record           node d          one more node, on no record
//	set window=4 block=64      options of what is opened from here on; tail=64: bytes of the tail that are asked for with Open;
//	                           flights=8: sends under way before a writer holds a record
//	open w [a b d] [qw=2] [hold-cas]   take the token and start an open     cas w           let a held compare-and-swap happen
//	open … accept-loss [gone=b,c]      and give up what cannot be had once nobody has said anything for 200 ms
//	append w x y ..            append records                              batch w x y ..  append them as one batch
//	deliver|drop|dup PATTERN   the first message with all words of PATTERN; deliver also takes "all" and "crash" as last word
//	hold|release PATTERN       messages that run does not deliver          cut|heal x->y   drop all messages of a link
//	run [100ms]                deliver everything that is not held to quiescence, going on through the timers
//	net                        what is under way
//	crash|restart|wipe n       the process dies / comes back / comes back with an empty disk
//	damage n 1@1               the stored copy turns bad on disk           unread n 1@1    reads of it fail
//	full n [wholly] | space n  the node refuses data for want of room, repairs too if it is wholly full, or takes it again
//	kill w                     the client dies                             seal w          close the writer's segment
//	snapshot n [all] | put     prepare the objects that n would flush / store them; flush n [all] does both
//	segments n                 what n would flush by itself
//	look n                     show the archive to n                       idle n          release what is archived, window included
//	read n 1-3                 hot read                                    cold n          cold read with n's watermark
//	drop-log n e2              tell n that the log was deleted at e2
//	status | nodes-status      state of nodes and clients
//	check                      every committed record is somewhere
//	mutant RULE                run all that stands above in a world in which RULE is broken: what does the oracle see?
var rewrite = flag.Bool("rewrite", false, "record the output of the scripts anew")

type block struct{ text, cmds, want string }

func readScript(t *testing.T, path string) []block {
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	var b block
	inOut := false
	for _, line := range strings.Split(string(raw), "\n") {
		switch {
		case inOut && line == "":
			out, b, inOut = append(out, b), block{}, false
		case inOut:
			b.want += line + "\n"
		case line == "----":
			inOut = true
		default:
			b.text += line + "\n"
			if s := strings.TrimSpace(strings.SplitN(line, "#", 2)[0]); s != "" {
				b.cmds += s + "\n"
			}
		}
	}
	if inOut {
		out = append(out, b)
	} else if strings.TrimSpace(b.text) != "" {
		out = append(out, b) // a last block without its "----" yet
	}
	return out
}

type script struct {
	w    *world
	done []string // commands so far, for mutant
	obj  []object
}

func TestScripts(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) == 0 {
		t.Fatal("no scripts in testdata")
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			s := &script{w: newWorld()}
			var out strings.Builder
			for _, b := range readScript(t, path) {
				got := s.block(b.cmds)
				out.WriteString(b.text + "----\n" + got + "\n")
				if !*rewrite && got != b.want {
					t.Errorf("%s\ngot:\n%s\nwant:\n%s", b.cmds, got, b.want)
				}
			}
			// Whatever was recorded: the real rules lose and forge nothing, and a mutant is always seen.
			if len(s.w.oracle.bad) > 0 {
				t.Errorf("violations under the real rules:\n%s", strings.Join(s.w.oracle.bad, "\n"))
			}
			if strings.Contains(out.String(), ": nothing differs") {
				t.Errorf("a mutant behaves like the real rules:\n%s", out.String())
			}
			if *rewrite {
				if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func (s *script) block(cmds string) string {
	var out strings.Builder
	for _, cmd := range strings.Split(strings.TrimSpace(cmds), "\n") {
		if cmd == "" {
			continue
		}
		if got := s.command(cmd); got != "" {
			out.WriteString(got + "\n")
		}
	}
	if out.Len() == 0 {
		return "ok\n"
	}
	return out.String()
}

// command runs one command and returns its output with the events it caused.
func (s *script) command(cmd string) string {
	bad := len(s.w.oracle.bad)
	f := strings.Fields(cmd)
	got := s.run(f[0], f[1:], cmd)
	if ev := s.w.takeEvents(); ev != "" {
		got = strings.TrimPrefix(got+"\n"+ev, "\n")
	}
	for _, b := range s.w.oracle.bad[bad:] {
		got = strings.TrimPrefix(got+"\nVIOLATION "+b, "\n")
	}
	if f[0] != "mutant" {
		s.done = append(s.done, cmd)
	}
	return got
}

func opts(args []string) (rest []string, opt map[string]string) {
	opt = map[string]string{}
	for _, a := range args {
		if k, v, ok := strings.Cut(a, "="); ok {
			opt[k] = v
		} else {
			rest = append(rest, a)
		}
	}
	return rest, opt
}

func atoi(s string, def int) int {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return def
}

func parseKey(s string) recKey {
	lsn, label, _ := strings.Cut(s, "@")
	return recKey{Epoch(atoi(label, 0)), LSN(atoi(lsn, 0))}
}

func (s *script) run(name string, args []string, line string) string {
	w := s.w
	rest, opt := opts(args)
	pattern := strings.TrimSpace(strings.TrimPrefix(line, name))
	first := func() *packet {
		for _, p := range w.net {
			if p.matches(pattern) {
				return p
			}
		}
		return nil
	}
	switch name {
	case "nodes":
		for _, n := range rest {
			w.addNode(n)
		}
		w.reg.ensemble, w.reg.qw = w.members(rest...), atoi(opt["qw"], len(rest)/2+1)
	case "node":
		w.addNode(rest[0])
	case "set":
		w.settings.Window = uint32(atoi(opt["window"], int(w.settings.Window)))
		w.block = atoi(opt["block"], w.block)
		w.tail = atoi(opt["tail"], w.tail)
		w.flights = atoi(opt["flights"], w.flights)
		w.reg.trimmed = LSN(atoi(opt["trimmed"], int(w.reg.trimmed)))
	case "open":
		c := w.client(rest[0])
		if c == nil {
			c = &client{name: rest[0], given: map[LSN]string{}}
			w.clients = append(w.clients, c)
		}
		names := rest[1:]
		c.holdCAS = false
		var loss *AcceptLoss
		if i := slices.Index(names, "accept-loss"); i >= 0 {
			names = slices.Delete(names, i, i+1)
			loss = &AcceptLoss{Wait: 200 * Millisecond}
			for _, gone := range strings.Split(opt["gone"], ",") {
				for _, m := range w.reg.ensemble {
					if string(m.Node) == gone {
						loss.Gone = append(loss.Gone, m.Incarnation)
					}
				}
			}
		}
		if k := len(names) - 1; k >= 0 && names[k] == "hold-cas" {
			c.holdCAS, names = true, names[:k]
		}
		var target Ensemble
		if len(names) > 0 {
			target = w.members(names...)
		}
		if err := w.open(c, target, atoi(opt["qw"], w.reg.qw), loss); err != nil {
			return err.Error()
		}
	case "cas":
		w.client(rest[0]).holdCAS = false
		w.cas(w.client(rest[0]))
	case "append":
		c := w.client(rest[0])
		for _, d := range rest[1:] {
			if c.writer == nil {
				return c.name + " is not open"
			}
			if _, err := w.append(c, d); err != nil {
				return err.Error()
			}
		}
	case "batch":
		if err := w.batch(w.client(rest[0]), rest[1:]...); err != nil {
			return err.Error()
		}
	case "deliver":
		var last string
		if k := len(args) - 1; k >= 0 && (args[k] == "all" || args[k] == "crash") {
			last, pattern = args[k], strings.Join(args[:k], " ")
		}
		var out []string
		for p := first(); p != nil; p = first() {
			out = append(out, p.String())
			w.deliver(p, last == "crash")
			if last != "all" {
				return strings.Join(out, "\n")
			}
		}
		if len(out) == 0 {
			return "no such message"
		}
		return strings.Join(out, "\n")
	case "drop":
		p := first()
		if p == nil {
			return "no such message"
		}
		w.remove(p)
		return "dropped " + p.String()
	case "dup":
		p := first()
		if p == nil {
			return "no such message"
		}
		cp := *p
		w.nextPkt++
		cp.id = w.nextPkt
		w.net = append(w.net, &cp)
	case "hold":
		w.holds = append(w.holds, pattern)
		for _, p := range w.net {
			p.held = p.held || p.matches(pattern)
		}
	case "release":
		for i, h := range w.holds {
			if h == pattern {
				w.holds = append(w.holds[:i], w.holds[i+1:]...)
				break
			}
		}
		for _, p := range w.net {
			p.held = p.held && !p.matches(pattern)
		}
	case "cut":
		for _, l := range rest {
			w.cuts[l] = true
		}
	case "heal":
		for _, l := range rest {
			delete(w.cuts, l)
		}
	case "run":
		var d Time
		if len(rest) > 0 {
			v, err := time.ParseDuration(rest[0])
			if err != nil {
				return err.Error()
			}
			d = Time(v.Nanoseconds())
		}
		w.run(d)
	case "net":
		var out []string
		for _, p := range w.net {
			out = append(out, p.String())
		}
		return strings.Join(out, "\n")
	case "kill":
		w.client(rest[0]).dead = true
	case "seal":
		if !w.client(rest[0]).writer.Seal() {
			return "nothing to seal"
		}
		w.pump(w.client(rest[0]))
	case "cold":
		w.coldRead(w.node(rest[0]))
	case "check":
		w.checkDurable("check")
	case "put":
		w.put(s.obj)
		s.obj = nil
	case "status":
		return w.status()
	case "mutant":
		return s.mutant(rest[0])
	default:
		n := w.node(rest[0])
		if n == nil {
			return "no command " + line
		}
		return s.nodeCommand(name, n, rest[1:])
	}
	return ""
}

func (s *script) nodeCommand(name string, n *wnode, rest []string) string {
	w := s.w
	switch name {
	case "crash":
		w.crash(n)
	case "restart":
		if err := w.restart(n); err != nil {
			return err.Error()
		}
	case "wipe":
		w.wipe(n)
	case "damage":
		n.recs[parseKey(rest[0])][0] ^= 0xff
	case "unread":
		n.unread[parseKey(rest[0])] = true
	case "full":
		n.shard.SetSpace(SpaceRepairs)
		if len(rest) > 0 {
			n.shard.SetSpace(SpaceNone)
		}
	case "space":
		n.shard.SetSpace(SpaceFree)
	case "snapshot", "flush":
		s.obj = w.snapshot(n, len(rest) > 0)
		var out []string
		for _, o := range s.obj {
			out = append(out, fmt.Sprintf("object %d-%d@%d cLSN %d", o.first, o.last, o.label, o.clsn))
		}
		if name == "flush" {
			w.put(s.obj)
			s.obj = nil
		}
		return strings.Join(out, "\n")
	case "segments":
		var out []string
		n.shard.Flushable(w.now, func(g Segment) {
			out = append(out, fmt.Sprintf("segment %d: %d-%d@%d cLSN %d complete=%v", g.SegStart, g.First, g.Last, g.Label, g.CLSN, g.Complete))
		})
		return strings.Join(out, "\n")
	case "look":
		w.look(n)
	case "idle":
		w.out.Reset()
		n.shard.Release(w.now, 0, &w.out)
		w.commit(n)
	case "read":
		from, to, _ := strings.Cut(rest[0], "-")
		r := w.hotRead(n, LSN(atoi(from, 0)), LSN(atoi(to, 0)))
		out := fmt.Sprintf("%s clsn=%d archived=%d through=%d:", r.Status, r.CLSN, r.ArchivedThrough, r.Through)
		for _, rec := range r.Records {
			out += fmt.Sprintf(" %d@%d=%s", rec.LSN, rec.Label, rec.Data)
		}
		return out + ranges(" damaged ", r.Damaged)
	case "drop-log":
		e := Epoch(atoi(strings.TrimPrefix(rest[0], "e"), 0))
		w.reg.deleted, w.reg.epoch = true, max(w.reg.epoch, e)
		w.out.Reset()
		n.shard.Step(w.now, 0, &Drop{Log: testLog, Epoch: e, Incarnation: n.inc}, &w.out)
		ack := w.out.Acks[0].Ack
		w.out.Acks = w.out.Acks[:0]
		w.commit(n)
		return describe(&ack)
	default:
		return "no command " + name
	}
	return ""
}

// mutant repeats what was done so far with one rule broken and says what shows.
func (s *script) mutant(rule string) string {
	m := &script{w: newWorld()}
	v := reflect.ValueOf(&m.w.rules).Elem().FieldByName(rule)
	if !v.IsValid() {
		return "no rule " + rule
	}
	v.SetBool(true)
	r := &script{w: newWorld()}
	differs := ""
	for _, cmd := range s.done {
		want, got := r.command(cmd), m.command(cmd)
		if want != got && differs == "" {
			differs = fmt.Sprintf("%s: no violation; first difference at %q:\n%s", rule, cmd, got)
		}
	}
	switch {
	case len(m.w.oracle.bad) > 0:
		return rule + ": " + strings.Join(m.w.oracle.bad, "\n"+rule+": ")
	case differs != "":
		return differs
	}
	return rule + ": nothing differs"
}

func ranges(prefix string, rs []Range) string {
	if len(rs) == 0 {
		return ""
	}
	var out []string
	for _, r := range rs {
		out = append(out, span(r.From, r.To))
	}
	return prefix + strings.Join(out, ",")
}

func span(from, to LSN) string {
	switch {
	case from == to:
		return fmt.Sprint(uint64(from))
	case to == MaxLSN:
		return fmt.Sprintf("%d-", from)
	}
	return fmt.Sprintf("%d-%d", from, to)
}

func extents(es []Extent) string {
	var out []string
	for _, e := range es {
		out = append(out, fmt.Sprintf("%s@%d", span(e.From, e.To), e.Label))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ",")
}

func lostString(l LostRanges) string {
	out := ""
	for i, r := range l {
		out += map[bool]string{true: " lost=", false: ","}[i == 0] + span(r.From, r.To)
		if r.Skipped {
			out += "(skipped)"
		}
	}
	return out
}

func historyString(h History) string {
	out := "-"
	for i, e := range h {
		if i == 0 {
			out = ""
		} else {
			out += ","
		}
		out += fmt.Sprintf("%d:%d", e.Epoch, e.Start)
	}
	return out
}

// describe prints a message the way the patterns of the scripts match it.
func describe(m Message) string {
	switch m := m.(type) {
	case *Open:
		return fmt.Sprintf("open e%d", m.Epoch)
	case *OpenReply:
		if m.Status != StatusOK {
			return fmt.Sprintf("open-reply e%d %s promised=%d", m.Epoch, m.Status, m.Promised)
		}
		return fmt.Sprintf("open-reply e%d ok activated=%d start=%d clsn=%d archived=%d held=%s", m.Epoch, m.Activated, m.Start, m.CLSN,
			m.ArchivedThrough, extents(m.Held)) + ranges(" damaged=", m.Damaged)
	case *Append:
		kind := m.Kind.String()
		if m.Kind == AppendNormal {
			kind = "append"
		}
		return fmt.Sprintf("%s %s e%d @%d clsn=%d", kind, span(m.First, m.Last()), m.Epoch, m.Label, m.CLSN)
	case *Ack:
		kind := m.Kind.String()
		if m.Kind == AckAppend && m.Append != AppendNormal {
			kind = m.Append.String()
		}
		out := fmt.Sprintf("ack %s %s e%d %s", kind, span(m.First, m.Last), m.Epoch, m.Status)
		if m.Status == StatusFenced {
			out += fmt.Sprintf(" promised=%d", m.Promised)
		}
		return out
	case *Fetch:
		return fmt.Sprintf("fetch %s e%d @%d", span(m.From, m.To), m.Epoch, m.Label)
	case *FetchReply:
		return fmt.Sprintf("fetched %s e%d %s records=%d", span(m.From, m.Through), m.Epoch, m.Status, len(m.Records)) + ranges(" damaged=", m.Damaged)
	case *Activate:
		return fmt.Sprintf("activate e%d R=%d history=%s", m.Epoch, m.Start, historyString(m.History))
	case *Watermark:
		return fmt.Sprintf("watermark %d e%d sealed=%d", m.CLSN, m.Epoch, m.Sealed)
	}
	return fmt.Sprintf("%T", m)
}

func (w *world) status() string {
	var out []string
	for _, n := range w.nodes {
		if n.shard == nil {
			out = append(out, n.name+" down")
			continue
		}
		l := n.shard.logs[testLog]
		if l == nil {
			out = append(out, n.name+" blank")
			continue
		}
		held, _ := l.held.extents(0, MaxExtents)
		out = append(out, fmt.Sprintf("%s promised=%d activated=%d start=%d clsn=%d archived=%d held=%s", n.name, l.promised, l.activated, l.start,
			l.clsn, l.archived, extents(held))+ranges(" damaged=", l.damaged))
	}
	var ens []string
	for _, m := range w.reg.ensemble {
		name := string(m.Node)
		if w.byInc(m.Incarnation) == nil {
			name += "(gone)"
		}
		ens = append(ens, name)
	}
	out = append(out, fmt.Sprintf("record epoch=%d ensemble=%s qw=%d history=%s%s", w.reg.epoch, strings.Join(ens, ","), w.reg.qw, historyString(w.reg.history), lostString(w.reg.lost)))
	for _, c := range w.clients {
		switch {
		case c.dead:
			out = append(out, c.name+" dead")
		case c.opener != nil:
			out = append(out, fmt.Sprintf("%s opening at epoch %d: %s; %s", c.name, c.epoch, c.opener.Stage(), c.opener.lacks()))
		case c.writer != nil && c.writer.Err() != nil:
			out = append(out, fmt.Sprintf("%s stopped: %v", c.name, c.writer.Err()))
		case c.writer != nil:
			out = append(out, fmt.Sprintf("%s writes at epoch %d: committed %d, next %d", c.name, c.writer.Epoch(), c.writer.Committed(), c.writer.Next()))
		}
	}
	xs := make([]int, 0, len(w.oracle.committed))
	for x := range w.oracle.committed {
		xs = append(xs, int(x))
	}
	sort.Ints(xs)
	log := "log"
	for _, x := range xs {
		log += fmt.Sprintf(" %d=%s", x, w.oracle.committed[LSN(x)])
	}
	return strings.Join(append(out, log), "\n")
}
