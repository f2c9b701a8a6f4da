//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/btrlog/btrlog/torture/fabric"
)

// kind of fault.
type kind string

const (
	control          kind = "control"
	nodeKill         kind = "node-kill"
	nodeKillTakeover kind = "node-kill+takeover"
	nodePause        kind = "node-pause"
	nodeCut          kind = "node-cut"
	nodeDeaf         kind = "node-deaf"
	nodeMute         kind = "node-mute"
	roughNetwork     kind = "rough-network"
	clientCut        kind = "client-cut"
	clientPause      kind = "client-pause"
	clientKill       kind = "client-kill"
	takeover         kind = "takeover"
	storeCut         kind = "store-cut"
	wipeAdopt        kind = "wipe+adopt"
	wipeReplace      kind = "wipe+replace"
	wipePause        kind = "wipe+pause"
	diskFull         kind = "disk-full"
	clockJump        kind = "clock-jump"
	quorumPause      kind = "quorum-pause"
	allKill          kind = "all-kill"
	duel             kind = "duel"
	flapping         kind = "flapping"
	storm            kind = "storm"
)

// kinds are all faults, with what they do.
var kinds = []struct {
	kind kind
	does string
}{
	{nodeKill, "kill -9 of one node of three; it starts again on its directory"},
	{nodeKillTakeover, "the same, and the other client host takes the logs over meanwhile"},
	{nodePause, "SIGSTOP of one node"},
	{nodeCut, "one node behind cut links, both ways (switch)"},
	{nodeDeaf, "one node receives nothing, and sends (nft)"},
	{nodeMute, "one node sends nothing, and receives (nft)"},
	{roughNetwork, "loss, delay, reordering, duplication on all links (switch)"},
	{clientCut, "a client host behind cut links; the other takes its logs over"},
	{clientPause, "SIGSTOP of a client that writes; the other takes its logs over, and it comes back"},
	{clientKill, "kill -9 of a client; the other takes its logs over"},
	{takeover, "each log is taken over by the other client host, without any fault"},
	{storeCut, "the object store behind cut links, both ways (switch)"},
	{wipeAdopt, "kill -9 of one node, its directory removed; it starts empty, every log adopts it"},
	{wipeReplace, "the same, and every log takes the spare node instead"},
	{wipePause, "one disk wiped and another node paused, and takeovers meanwhile: nobody may decide before that node is back"},
	{diskFull, "the file system of one node (tmpfs) is filled, and large records are appended"},
	{clockJump, "the wall clock of one node jumps, and jumps back"},
	{quorumPause, "SIGSTOP of two nodes of three"},
	{allKill, "kill -9 of all nodes at once; they start again at once"},
	{duel, "the clients take each log from each other, again and again, before the last one is through too"},
	{flapping, "one-way links between any two hosts are cut and joined, several at a time (switch)"},
	{storm, "a rough network with flapping links, kill -9 of one node, and takeovers, all at once"},
}

// fault is one window of the schedule.
type fault struct {
	Kind kind `json:"kind"`
	// At is when it begins if nothing before it took longer than its time; For is how long it holds.
	At  time.Duration `json:"at_ns"`
	For time.Duration `json:"for_ns"`
	// Nodes that are hit. To is the node that replaces one. Client is the host that is hit.
	Nodes  []string          `json:"nodes,omitempty"`
	To     string            `json:"to,omitempty"`
	Client string            `json:"client,omitempty"`
	Rough  fabric.Conditions `json:"rough,omitzero"`
	Jump   time.Duration     `json:"jump_ns,omitempty"`
	Steps  []step            `json:"steps,omitempty"`
	// Rotate: new logs are begun behind it, and the old ones end.
	Rotate bool `json:"rotate,omitempty"`
}

// step is a part of a fault that consists of many: after so long the link from one host to another is cut or joined, or each log
// is taken over, by the client that does not have it or, if both are set, by both at once.
type step struct {
	After time.Duration `json:"after_ns"`
	From  string        `json:"from,omitempty"`
	To    string        `json:"to,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
	Take  bool          `json:"take,omitempty"`
	Both  bool          `json:"both,omitempty"`
}

const (
	controlTime = 4 * time.Second // without a fault, before each window
	settleTime  = 3 * time.Second // after each window, counted with it
	leastWindow = 4 * time.Second
	mostWindow  = 7 * time.Second
)

var (
	allNodes = []string{"n1", "n2", "n3", "n4"}
	smallFS  = []string{"n3", "n4"} // nodes on a small tmpfs; one of them is in use always
	clients  = []string{"c1", "c2"}
)

// plan is the schedule of a run: a pure function of its arguments.
type plan struct {
	Seed     uint64        `json:"seed"`
	Duration time.Duration `json:"duration_ns"`
	Faults   []fault       `json:"faults"`
}

// kindsOf returns the kinds that a run can have: all, or those named, without clock jumps where clocks cannot be moved.
func kindsOf(only []string, moveClocks bool) ([]kind, error) {
	var out []kind
	known := 0
	for _, k := range kinds {
		named := slices.Contains(only, string(k.kind))
		if named {
			known++
		}
		if (named || len(only) == 0) && (k.kind != clockJump || moveClocks) {
			out = append(out, k.kind)
		}
	}
	if known < len(only) || len(out) == 0 {
		return nil, fmt.Errorf("kinds of faults are named that do not exist or cannot be had here: %v", only)
	}
	return out, nil
}

// makePlan draws the schedule. Every kind comes once before any comes twice, a node kill first if there are any.
func makePlan(seed uint64, duration time.Duration, from []kind) plan {
	p := plan{Seed: seed, Duration: duration}
	r := rand.New(rand.NewPCG(seed, 1))
	members := slices.Clone(allNodes[:3])
	spare := allNodes[3]
	var deck []kind
	for at := controlTime; ; {
		if len(deck) == 0 {
			deck = slices.Clone(from)
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			if i := slices.Index(deck, nodeKill); i >= 0 && len(p.Faults) == 0 {
				deck[0], deck[i] = deck[i], deck[0]
			}
		}
		f := fault{Kind: deck[0], At: at, For: (leastWindow + time.Duration(r.Int64N(int64(mostWindow-leastWindow)))).Round(time.Millisecond)}
		deck = deck[1:]
		i := r.IntN(3)
		switch f.Kind {
		case nodeKill, nodeKillTakeover, nodePause, nodeCut, nodeDeaf, nodeMute, wipeAdopt:
			f.Nodes = []string{members[i]}
		case clockJump:
			f.Nodes = []string{members[i]}
			f.Jump = time.Duration(1+r.IntN(3600)) * time.Second
			if r.IntN(3) == 0 {
				f.Jump *= 24 * 365
			}
			if r.IntN(2) == 0 {
				f.Jump = -f.Jump
			}
		case quorumPause, wipePause:
			f.Nodes = []string{members[i], members[(i+1)%3]}
		case allKill:
			f.Nodes = slices.Clone(members)
		case wipeReplace:
			f.Nodes, f.To = []string{members[i]}, spare
			members[i], spare = spare, members[i]
		case diskFull:
			for !slices.Contains(smallFS, members[i]) {
				i = (i + 1) % 3
			}
			f.Nodes = []string{members[i]}
		case clientCut, clientPause, clientKill:
			f.Client = clients[r.IntN(2)]
		case roughNetwork:
			f.Rough = drawRough(r)
		}
		if f.Kind == storm {
			f.Nodes = []string{members[i]}
			f.Rough = drawRough(r)
		}
		f.Steps = drawSteps(r, f.Kind, f.For, members)
		f.Rotate = len(p.Faults)%2 == 1
		at += f.For + settleTime
		if at > duration {
			return p
		}
		p.Faults = append(p.Faults, f)
		at += controlTime
	}
}

func drawRough(r *rand.Rand) fabric.Conditions {
	part := func(most float64) float64 { return float64(1+r.IntN(100)) / 100 * most }
	return fabric.Conditions{Loss: part(0.08), Duplicate: part(0.1), Reorder: part(0.1), Delay: time.Duration(r.IntN(2000)) * time.Microsecond,
		Jitter: time.Duration(r.IntN(2000)) * time.Microsecond, Late: time.Duration(1+r.IntN(20)) * time.Millisecond}
}

// drawSteps draws what happens within a window. All of it is over before the window's last tenth.
func drawSteps(r *rand.Rand, k kind, holds time.Duration, members []string) []step {
	var steps []step
	end := holds * 9 / 10
	if k == flapping || k == storm {
		hosts := append(append([]string{"store"}, members...), clients...)
		cut := make(map[[2]string]bool)
		for at := time.Duration(0); at < end; at += time.Duration(20+r.IntN(200)) * time.Millisecond {
			i := r.IntN(len(hosts))
			link := [2]string{hosts[i], hosts[(i+1+r.IntN(len(hosts)-1))%len(hosts)]}
			cut[link] = !cut[link]
			steps = append(steps, step{After: at, From: link[0], To: link[1], Cut: cut[link]})
		}
	}
	if k == duel || k == storm {
		pause := 600
		if k == storm {
			pause = 2000
		}
		for at := time.Duration(0); at < end; at += time.Duration(5+r.IntN(pause)) * time.Millisecond {
			steps = append(steps, step{After: at, Take: true, Both: r.IntN(3) == 0})
		}
		steps = append(steps, step{After: end, Take: true}) // one of them has it in the end
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.After, b.After) })
	return steps
}

func (f fault) String() string {
	s := fmt.Sprintf("%-18s for %5.1fs", f.Kind, f.For.Seconds())
	for _, n := range f.Nodes {
		s += " " + n
	}
	if f.To != "" {
		s += " by " + f.To
	}
	if f.Client != "" {
		s += " " + f.Client
	}
	if f.Jump != 0 {
		s += fmt.Sprintf(" by %v", f.Jump)
	}
	if n := len(f.Steps); n > 0 {
		s += fmt.Sprintf(" in %d steps", n)
	}
	if f.Kind == roughNetwork || f.Kind == storm {
		s += fmt.Sprintf(" loss %.1f%%, duplicates %.1f%%, reordered %.1f%%, delay %v to %v, late %v", f.Rough.Loss*100, f.Rough.Duplicate*100,
			f.Rough.Reorder*100, f.Rough.Delay, f.Rough.Delay+f.Rough.Jitter, f.Rough.Late)
	}
	return s
}

func (p *plan) print(w io.Writer) {
	fmt.Fprintf(w, "seed %d, %v: %d faults\n", p.Seed, p.Duration, len(p.Faults))
	for i, f := range p.Faults {
		fmt.Fprintf(w, "%3d  at %6.1fs  %v\n", i+1, f.At.Seconds(), f)
	}
}
