package meta

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

const (
	nodeDir     = "nodes/"
	ensembleDir = "ensembles/"
)

// ClusterRecord names the cluster.
type ClusterRecord struct {
	ID      uint64 // random, not zero; every packet carries it
	Created time.Time
	Write   string
}

type clusterJSON struct {
	Format  int       `json:"format"`
	ID      hex64     `json:"cluster_id"`
	Created time.Time `json:"created"`
	Write   string    `json:"write"`
}

func (*ClusterRecord) limit() int64 { return maxSmallBytes }
func (r *ClusterRecord) stamp(nonce string, c *Catalog, _ *ClusterRecord) {
	r.Write, r.Created = nonce, c.cfg.Now().UTC()
}
func (r *ClusterRecord) encode() ([]byte, error) {
	return json.MarshalIndent(clusterJSON{firstVersion, hex64(r.ID), r.Created, r.Write}, "", " ")
}

func (r *ClusterRecord) decode(body []byte) error {
	var j clusterJSON
	if err := strict(body, &j, &j.Format, firstVersion); err != nil {
		return err
	}
	*r = ClusterRecord{uint64(j.ID), j.Created, j.Write}
	return r.follows(nil)
}

func (r *ClusterRecord) follows(old *ClusterRecord) error {
	if old != nil {
		return fmt.Errorf("the cluster's record never changes")
	}
	if r.ID == 0 {
		return fmt.Errorf("cluster id is zero")
	}
	return nil
}

// Cluster returns the cluster's record and creates it if there is none: the first starter decides, all others read what he wrote.
func (c *Catalog) Cluster(ctx context.Context) (ClusterRecord, error) {
	id := c.random() | 1 // not zero
	v, err := swap(ctx, c, what{op: "open", object: "cluster"}, c.cfg.Root+"cluster.json", nil, func(old *ClusterRecord) (*ClusterRecord, error) {
		if old != nil {
			return nil, nil
		}
		return &ClusterRecord{ID: id}, nil
	})
	return v.Record, err
}

// LoadCluster returns the cluster's record and writes nothing; ErrNotFound when no node has made it yet. It is for clients: one
// with a mistyped root must not found a cluster.
func (c *Catalog) LoadCluster(ctx context.Context) (ClusterRecord, error) {
	w := what{op: "load", object: "cluster"}
	v, ok, err := load[ClusterRecord](ctx, c, w, c.cfg.Root+"cluster.json")
	if err == nil && !ok {
		err = w.err(ErrNotFound, nil)
	}
	return v.Record, err
}

// NodeState is what the operator wants with a node.
type NodeState string

const (
	// Active: new ensembles may use it.
	Active NodeState = "active"
	// Draining: no new ensemble uses it.
	Draining NodeState = "draining"
	// Retired: no log's record names it any more (P11); it must not start.
	Retired NodeState = "retired"
)

// NodeRecord says where a node is. Several logs' ensembles name its id and incarnation.
type NodeRecord struct {
	ID          protocol.NodeID
	Incarnation protocol.Incarnation // of its data directory, not zero
	UDP         string               // host:port of shard 0's well-known port
	HTTP        string               // host:port of the admin endpoint; may be empty
	Zone        string               // may be empty
	Shards      int
	State       NodeState
	Start       string // nonce of the process start that registered last
	Updated     time.Time
	Revision    int64
	Write       string
}

// Node is a node's record with its version.
type Node = Versioned[NodeRecord]

type nodeJSON struct {
	Format      int             `json:"format"`
	ID          protocol.NodeID `json:"node"`
	Incarnation hex64           `json:"incarnation"`
	UDP         string          `json:"udp"`
	HTTP        string          `json:"http"`
	Zone        string          `json:"zone"`
	Shards      int             `json:"shards"`
	State       NodeState       `json:"state"`
	Start       string          `json:"start"`
	Updated     time.Time       `json:"updated"`
	Revision    int64           `json:"revision"`
	Write       string          `json:"write"`
}

func (*NodeRecord) limit() int64 { return maxSmallBytes }

func (r *NodeRecord) stamp(nonce string, c *Catalog, old *NodeRecord) {
	r.Write, r.Updated, r.Revision = nonce, c.cfg.Now().UTC(), 1
	if old != nil {
		r.Revision = old.Revision + 1
	}
}

func (r *NodeRecord) encode() ([]byte, error) {
	return json.MarshalIndent(nodeJSON{firstVersion, r.ID, hex64(r.Incarnation), r.UDP, r.HTTP, r.Zone, r.Shards, r.State, r.Start,
		r.Updated, r.Revision, r.Write}, "", " ")
}

func (r *NodeRecord) decode(body []byte) error {
	var j nodeJSON
	if err := strict(body, &j, &j.Format, firstVersion); err != nil {
		return err
	}
	*r = NodeRecord{j.ID, protocol.Incarnation(j.Incarnation), j.UDP, j.HTTP, j.Zone, j.Shards, j.State, j.Start, j.Updated, j.Revision, j.Write}
	return r.validate()
}

func (r *NodeRecord) validate() error {
	if err := CheckName(string(r.ID)); err != nil {
		return fmt.Errorf("node id: %w", err)
	}
	if err := checkAddress(r.UDP); err != nil {
		return fmt.Errorf("UDP address: %w", err)
	}
	if r.HTTP != "" {
		if err := checkAddress(r.HTTP); err != nil {
			return fmt.Errorf("HTTP address: %w", err)
		}
	}
	switch {
	case r.Incarnation == 0:
		return fmt.Errorf("incarnation is zero")
	case r.Shards < 1 || r.Shards > 4096:
		return fmt.Errorf("%d shards; 1 to 4096 are allowed", r.Shards)
	case r.Zone != "" && CheckName(r.Zone) != nil:
		return fmt.Errorf("zone: %w", CheckName(r.Zone))
	case r.State != Active && r.State != Draining && r.State != Retired:
		return fmt.Errorf("state is %q", r.State)
	case r.Start == "" || len(r.Start) > 128:
		return fmt.Errorf("start nonce has %d bytes; 1 to 128 are allowed", len(r.Start))
	}
	return nil
}

func checkAddress(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" || len(a) > 300 {
		return fmt.Errorf("%q is not host:port", a)
	}
	return nil
}

func (r *NodeRecord) follows(old *NodeRecord) error {
	if err := r.validate(); err != nil {
		return err
	}
	if old != nil && (r.ID != old.ID || r.Revision != old.Revision+1 || r.Write == old.Write) {
		return fmt.Errorf("node %q revision %d after node %q revision %d", r.ID, r.Revision, old.ID, old.Revision)
	}
	return nil
}

func (c *Catalog) nodeKey(id protocol.NodeID) string {
	return c.cfg.Root + nodeDir + string(id) + jsonSuffix
}

func nodeWhat(op string, id protocol.NodeID) what {
	return what{op: op, object: fmt.Sprintf("node %q", id)}
}

// Registration is the argument of RegisterNode.
type Registration struct {
	// Node is what the node says about itself. Start is its nonce of this process start. State, Updated, Revision and Write are ignored: the
	// operator's state stays, a new node is Active.
	Node NodeRecord
	// Alive, if not nil, says whether the process that a record describes answers, with that incarnation.
	Alive func(ctx context.Context, old NodeRecord) bool
	// Force takes the id without asking Alive: the operator vouches that the other is gone.
	Force bool
}

// RegisterNode writes a node's record at its start.
//
// Two live processes must not have one id. With the same incarnation it is the same data directory, which a process locks, so the record is simply
// brought up to date. Another incarnation is a disk that was wiped or replaced, which is allowed and makes a new incarnation (P4),
// or a second machine that was given the same id by mistake, which must be refused. The record cannot tell these apart; Alive can, if the other
// process answers. If it does not answer although it lives (a partition), the newcomer wins the record, and the other one
// harms nobody: answers count by incarnation, not by name.
//
// Errors: ErrExists if the other one answers, or the node is retired; ErrInvalid; ErrCorrupt; ErrNewer; ErrUnavailable; ErrUnknown.
func (c *Catalog) RegisterNode(ctx context.Context, reg Registration) (Node, error) {
	n := reg.Node
	w := nodeWhat("register", n.ID)
	n.State, n.Updated, n.Revision, n.Write = Active, time.Time{}, 0, ""
	if err := n.validate(); err != nil {
		return Node{}, w.err(ErrInvalid, err)
	}
	return swap(ctx, c, w, c.nodeKey(n.ID), nil, func(old *NodeRecord) (*NodeRecord, error) {
		next := n
		if old == nil {
			return &next, nil
		}
		if old.Start == n.Start && old.Incarnation == n.Incarnation {
			return nil, nil // an earlier try of mine
		}
		if old.State == Retired {
			return nil, w.err(ErrExists, fmt.Errorf("the node was retired; give the machine a new node id"))
		}
		if old.Incarnation != n.Incarnation && !reg.Force && reg.Alive != nil && reg.Alive(ctx, *old) {
			return nil, w.err(ErrExists, fmt.Errorf("a live process at %s has this node id with incarnation %v, this directory has %v: give one of them another id",
				old.UDP, old.Incarnation, n.Incarnation))
		}
		next.State = old.State
		return &next, nil
	})
}

// LoadNode reads a node's record. Errors: ErrNotFound, ErrInvalid, ErrCorrupt, ErrNewer, ErrUnavailable.
func (c *Catalog) LoadNode(ctx context.Context, id protocol.NodeID) (Node, error) {
	w := nodeWhat("load", id)
	if err := CheckName(string(id)); err != nil {
		return Node{}, w.err(ErrInvalid, err)
	}
	v, ok, err := load[NodeRecord](ctx, c, w, c.nodeKey(id))
	switch {
	case err != nil:
		return Node{}, err
	case !ok:
		return Node{}, w.err(ErrNotFound, nil)
	case v.Record.ID != id:
		return Node{}, w.err(ErrCorrupt, fmt.Errorf("object %s holds the record of node %q", c.nodeKey(id), v.Record.ID))
	}
	return v, nil
}

// Nodes iterates over all nodes, in the order of their objects' keys, with errors as Logs.
func (c *Catalog) Nodes(ctx context.Context) iter.Seq2[Node, error] {
	return func(yield func(Node, error) bool) {
		for name, err := range c.names(ctx, what{op: "list", object: "nodes"}, nodeDir, "") {
			if err != nil {
				yield(Node{}, err)
				return
			}
			v, err := c.LoadNode(ctx, protocol.NodeID(name))
			if errors.Is(err, ErrNotFound) {
				continue
			}
			v.Record.ID = protocol.NodeID(name)
			if !yield(v, err) || errors.Is(err, ErrUnavailable) {
				return
			}
		}
	}
}

// SetNodeState changes what the operator wants with a node. The caller sees to it that a node is Retired only when no log's record names it.
func (c *Catalog) SetNodeState(ctx context.Context, id protocol.NodeID, s NodeState) (Node, error) {
	w := nodeWhat("set state of", id)
	if err := CheckName(string(id)); err != nil {
		return Node{}, w.err(ErrInvalid, err)
	}
	return swap(ctx, c, w, c.nodeKey(id), nil, func(old *NodeRecord) (*NodeRecord, error) {
		switch {
		case old == nil:
			return nil, w.err(ErrNotFound, nil)
		case old.State == s:
			return nil, nil
		}
		next := *old
		next.State = s
		return &next, nil
	})
}

type ensembleJSON struct {
	Format  int          `json:"format"`
	Members []memberJSON `json:"members"`
}

type memberJSON struct {
	Node        protocol.NodeID `json:"node"`
	Incarnation hex64           `json:"incarnation"`
	Zone        string          `json:"zone"`
}

func (*ensembleJSON) limit() int64                          { return maxSmallBytes }
func (*ensembleJSON) stamp(string, *Catalog, *ensembleJSON) {}
func (*ensembleJSON) encode() ([]byte, error) {
	return nil, fmt.Errorf("an ensemble is never replaced")
}
func (*ensembleJSON) follows(*ensembleJSON) error { return fmt.Errorf("an ensemble is never replaced") }
func (j *ensembleJSON) decode(body []byte) error  { return strict(body, j, &j.Format, firstVersion) }

// isEnsembleID checks the form of an ensemble's id: 32 hex digits.
func isEnsembleID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == 16 && strings.ToLower(id) == id
}

// EnsembleID returns the id of an ensemble, a hash of its members whatever their order, and the members in the order in which they
// are stored. It is an error if a member is malformed or a node or incarnation appears twice.
func EnsembleID(e protocol.Ensemble) (string, protocol.Ensemble, error) {
	if len(e) == 0 || len(e) > protocol.MaxEnsemble {
		return "", nil, fmt.Errorf("ensemble of %d nodes; 1 to %d are allowed", len(e), protocol.MaxEnsemble)
	}
	e = slices.Clone(e)
	slices.SortFunc(e, func(a, b protocol.Member) int { return strings.Compare(string(a.Node), string(b.Node)) })
	h := sha256.New()
	for i, m := range e {
		if err := CheckName(string(m.Node)); err != nil {
			return "", nil, fmt.Errorf("ensemble: %w", err)
		}
		if m.Zone != "" && CheckName(m.Zone) != nil {
			return "", nil, fmt.Errorf("ensemble: zone: %w", CheckName(m.Zone))
		}
		if m.Incarnation == 0 || (i > 0 && e[i-1].Node == m.Node) || e[:i].Index(m.Incarnation) >= 0 {
			return "", nil, fmt.Errorf("ensemble: node %q with incarnation %v is malformed or appears twice", m.Node, m.Incarnation)
		}
		fmt.Fprintf(h, "%s %v %s\n", m.Node, m.Incarnation, m.Zone)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), e, nil
}

// PutEnsemble stores an ensemble, if it is not there, and returns its id and its members in stored order. The caller owns the slice.
// Errors: ErrInvalid, ErrUnavailable.
func (c *Catalog) PutEnsemble(ctx context.Context, e protocol.Ensemble) (string, protocol.Ensemble, error) {
	w := what{op: "put", object: "ensemble"}
	id, e, err := EnsembleID(e)
	if err != nil {
		return "", nil, w.err(ErrInvalid, err)
	}
	c.mu.Lock()
	_, known := c.ensembles[id]
	c.mu.Unlock()
	if known {
		return id, e, nil
	}
	j := ensembleJSON{Format: firstVersion}
	for _, m := range e {
		j.Members = append(j.Members, memberJSON{m.Node, hex64(m.Incarnation), m.Zone})
	}
	// Whoever created it wrote the same members: the key is their hash, and LoadEnsemble checks it.
	if _, err := c.createOnce(ctx, w, c.ensembleKey(id), j); err != nil {
		return "", nil, err
	}
	c.remember(id, e)
	return id, e, nil
}

func (c *Catalog) ensembleKey(id string) string { return c.cfg.Root + ensembleDir + id + jsonSuffix }

func (c *Catalog) remember(id string, e protocol.Ensemble) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ensembles[id] = slices.Clone(e)
}

// LoadEnsemble returns the members of an ensemble, without a request if it was seen before. The caller owns the slice.
// Errors: ErrNotFound, ErrInvalid, ErrCorrupt, ErrNewer, ErrUnavailable.
func (c *Catalog) LoadEnsemble(ctx context.Context, id string) (protocol.Ensemble, error) {
	w := what{op: "load", object: "ensemble " + id}
	if !isEnsembleID(id) {
		return nil, w.err(ErrInvalid, fmt.Errorf("not an ensemble id"))
	}
	c.mu.Lock()
	e, known := c.ensembles[id]
	c.mu.Unlock()
	if known {
		return slices.Clone(e), nil
	}
	v, ok, err := load[ensembleJSON](ctx, c, w, c.ensembleKey(id))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, w.err(ErrNotFound, nil)
	}
	for _, m := range v.Record.Members {
		e = append(e, protocol.Member{Node: m.Node, Incarnation: protocol.Incarnation(m.Incarnation), Zone: m.Zone})
	}
	got, e, err := EnsembleID(e)
	if err == nil && got != id {
		err = fmt.Errorf("its members hash to %s", got)
	}
	if err != nil {
		return nil, w.err(ErrCorrupt, err)
	}
	c.remember(id, e)
	return e, nil
}
