package btrlog

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"sort"
	"strings"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// choose picks the nodes of a new log: as evenly over the zones as possible, and within a zone by weighted random order of
// (log, node), so that logs spread over the nodes in proportion to their shards, every client picks the same for one log,
// and a new node takes its share of new logs only.
func choose(id protocol.LogID, nodes []meta.NodeRecord, n, zones int) (protocol.Ensemble, error) {
	type candidate struct {
		rec   meta.NodeRecord
		score float64
	}
	byZone := map[string][]candidate{}
	var active, unfit []string
	for _, r := range nodes {
		if r.State != meta.Active {
			unfit = append(unfit, fmt.Sprintf("%s (%s)", r.ID, r.State))
			continue
		}
		active = append(active, string(r.ID))
		byZone[r.Zone] = append(byZone[r.Zone], candidate{r, score(id, r.ID, r.Shards)})
	}
	if len(active) < n {
		return nil, fmt.Errorf("%d nodes are needed, %d are registered and active [%s]%s: start more nodes, or ask for a smaller N",
			n, len(active), strings.Join(active, " "), unfitNote(unfit))
	}
	if len(byZone) < zones {
		return nil, fmt.Errorf("%d zones are needed, the active nodes are in %d: start nodes in more zones", zones, len(byZone))
	}
	order := make([]string, 0, len(byZone))
	for z, cs := range byZone {
		sort.Slice(cs, func(i, j int) bool {
			return cs[i].score > cs[j].score || (cs[i].score == cs[j].score && cs[i].rec.ID < cs[j].rec.ID)
		})
		order = append(order, z)
	}
	// Round robin over the zones: no zone has two nodes more than another that still had one to give.
	sort.Slice(order, func(i, j int) bool {
		a, b := byZone[order[i]][0].score, byZone[order[j]][0].score
		return a > b || (a == b && order[i] < order[j])
	})
	var out protocol.Ensemble
	for round := 0; len(out) < n; round++ {
		for _, z := range order {
			if round < len(byZone[z]) && len(out) < n {
				r := byZone[z][round].rec
				out = append(out, protocol.Member{Node: r.ID, Incarnation: r.Incarnation, Zone: r.Zone})
			}
		}
	}
	return out, nil
}

func unfitNote(unfit []string) string {
	if len(unfit) == 0 {
		return ""
	}
	return "; not active: " + strings.Join(unfit, ", ")
}

// score is a node's place in the weighted random order of a log: the highest of weighted exponential draws comes first.
func score(id protocol.LogID, node protocol.NodeID, weight int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%v/%s", id, node)
	x := h.Sum64()
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	u := (float64(x>>11) + 0.5) / (1 << 53)
	return math.Log(u) / float64(max(weight, 1))
}

// named makes an ensemble of the current incarnations of the named nodes.
func (c *Client) named(ctx context.Context, names []string) (protocol.Ensemble, error) {
	out := make(protocol.Ensemble, 0, len(names))
	for _, name := range names {
		rec, err := c.cat.LoadNode(ctx, protocol.NodeID(name))
		if errors.Is(err, meta.ErrNotFound) {
			err = c.unregistered(ctx, name)
		}
		if err != nil {
			return nil, err
		}
		if rec.Record.State == meta.Retired {
			return nil, invalid("", "", "node %q is retired", name)
		}
		out = append(out, protocol.Member{Node: rec.Record.ID, Incarnation: rec.Record.Incarnation, Zone: rec.Record.Zone})
	}
	return sorted(out)
}

// unregistered says that there is no node of that name, and which there are.
func (c *Client) unregistered(ctx context.Context, name string) error {
	nodes, err := c.nodeRecords(ctx)
	if err != nil {
		return err
	}
	known := make([]string, len(nodes))
	for i, n := range nodes {
		known[i] = string(n.ID)
	}
	if len(known) == 1 {
		return invalid("", "", "node %q is not registered; %s is", name, known[0])
	}
	return invalid("", "", "node %q is not registered; %s are", name, strings.Join(known, " "))
}

// sorted brings an ensemble into the order in which it is stored, in which all comparisons are made.
func sorted(e protocol.Ensemble) (protocol.Ensemble, error) {
	_, out, err := meta.EnsembleID(e)
	if err != nil {
		return nil, &Error{Kind: ErrInvalid, Err: err}
	}
	return out, nil
}
