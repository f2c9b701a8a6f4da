package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/objstore"
)

// probe makes sure that the store keeps its conditions, or the cluster's records could be overwritten by a writer that lost.
func (n *Node) probe(ctx context.Context) error {
	pause := 100 * time.Millisecond
	for {
		err := objstore.Probe(ctx, n.requests.probe.Wrap(n.cfg.Store), n.cfg.Root)
		if err == nil {
			return nil
		}
		// A store that answers wrongly is refused at once; one that does not answer gets time.
		if !objstore.Retryable(err) && !errors.Is(err, objstore.ErrUnknown) && ctx.Err() == nil {
			return fmt.Errorf("node: %w", err)
		}
		if sleep(ctx, pause) != nil {
			return fmt.Errorf("node: object store %s did not answer within %v: %w", n.cfg.Store, n.cfg.StartTimeout, err)
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// checkStart compares the directory with what the node's record says of its last start, before anything is opened.
func (n *Node) checkStart(ctx context.Context) error {
	old, err := n.catalog.LoadNode(ctx, n.cfg.Node)
	switch {
	case errors.Is(err, meta.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("node: %w", err)
	case old.Record.Incarnation != n.dir.inc:
		return nil // the directory of another incarnation; RegisterNode looks whether that one is alive
	}
	n.recorded = old.Record.Start
	return n.dir.checkStart(n.recorded)
}

// register writes the node's record, which clients and other nodes find it by.
func (n *Node) register(ctx context.Context) error {
	start := n.catalog.Nonce()
	if err := n.dir.setStart(start, n.recorded); err != nil {
		return err
	}
	_, err := n.catalog.RegisterNode(ctx, meta.Registration{
		Node: meta.NodeRecord{ID: n.cfg.Node, Incarnation: n.dir.inc, UDP: n.advertise, HTTP: n.advertise, Zone: n.cfg.Zone,
			Shards: len(n.threads), Start: start},
		Alive: alive,
	})
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	n.registered.Store(true)
	return nil
}

// aliveTimeout bounds the question whether another process runs under this node's name.
const aliveTimeout = 2 * time.Second

// alive asks the process that a record describes whether it answers with that incarnation.
func alive(ctx context.Context, old meta.NodeRecord) bool {
	if old.HTTP == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+old.HTTP+identityPath, nil)
	if err != nil {
		return false
	}
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy: it could answer for a node that is gone
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var who Identity
	if json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&who) != nil {
		return false
	}
	return resp.StatusCode == http.StatusOK && who.Node == old.ID && who.Incarnation == old.Incarnation.String()
}
