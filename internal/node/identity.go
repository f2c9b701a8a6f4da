package node

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/lst/vfs"
)

// The data directory:
//
//	LOCK        held by the process that runs the node
//	node.json   whose directory this is
//	shard-0 …   the stores
//
// Order of a first start, and what is lost otherwise:
//
//	1 node.json with a fresh random incarnation and no shards
//	2 the shards' stores
//	3 node.json with their number
//	4 only then the node answers
//
// A shard that answered before step 3 could vanish without anyone noticing: at the next start its directory would look like
// one that is new, and the node would call absent what it had acknowledged, at the same incarnation (P4).

const (
	identityName   = "node.json"
	lockName       = "LOCK"
	shardPrefix    = "shard-"
	identityFormat = 1
	maxIdentity    = 64 << 10
)

// identity is the content of node.json.
type identity struct {
	Format      int             `json:"format"`
	Cluster     string          `json:"cluster_id"`
	Node        protocol.NodeID `json:"node"`
	Incarnation string          `json:"incarnation"`
	// Shards is how many stores the directory must hold; a missing one is a loss.
	Shards int `json:"shards"`
	// Start is the nonce of the last start and Previous that of the one before. The node's record in the object store names
	// one of them, unless this directory is an older copy of the one that started last (see checkStart).
	Start    string `json:"start,omitempty"`
	Previous string `json:"previous_start,omitempty"`
}

// directory is an opened data directory.
type directory struct {
	path    string
	lock    io.Closer
	id      identity
	inc     protocol.Incarnation
	cluster wire.ClusterID
	fresh   bool // node.json is not written yet
}

// openDirectory takes the lock of dir and reads whose it is. Nothing is written but the lock file.
func openDirectory(dir string, node protocol.NodeID) (*directory, error) {
	if err := vfs.OS.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("node: data directory %s: %w", dir, err)
	}
	lock, err := vfs.OS.Lock(filepath.Join(dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("node: data directory %s is in use by another process; stop it, or give this node a directory of its own", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("node: lock of data directory %s: %w", dir, err)
	}
	d := &directory{path: dir, lock: lock}
	if err := d.read(node); err != nil {
		lock.Close()
		return nil, err
	}
	return d, nil
}

func (d *directory) read(node protocol.NodeID) error {
	path := filepath.Join(d.path, identityName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d.initial(node)
	}
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, maxIdentity))
	if err != nil {
		return fmt.Errorf("node: read %s: %w", path, err)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := dec.Decode(&d.id); err != nil {
		return fmt.Errorf("node: %s is damaged (%w): wipe the directory and let the node join as a blank one", path, err)
	}
	if d.id.Format != identityFormat {
		return fmt.Errorf("node: %s has format %d, this program knows %d: use the version that wrote it, or a newer one", path, d.id.Format, identityFormat)
	}
	inc, err1 := strconv.ParseUint(d.id.Incarnation, 16, 64)
	cluster, err2 := strconv.ParseUint(d.id.Cluster, 16, 64)
	if err1 != nil || err2 != nil || inc == 0 || cluster == 0 || d.id.Shards < 0 || d.id.Shards > maxShards {
		return fmt.Errorf("node: %s is damaged: incarnation %q, cluster %q, %d shards", path, d.id.Incarnation, d.id.Cluster, d.id.Shards)
	}
	if d.id.Node != node {
		return fmt.Errorf("node: data directory %s belongs to node %q, not to %q: give this node its own directory", d.path, d.id.Node, node)
	}
	d.inc, d.cluster = protocol.Incarnation(inc), wire.ClusterID(cluster)
	return nil
}

// initial prepares the identity of an empty directory.
func (d *directory) initial(node protocol.NodeID) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), shardPrefix) {
			return fmt.Errorf("node: data directory %s holds %s but no %s: it is not whole; wipe it and let the node join as a blank one",
				d.path, e.Name(), identityName)
		}
	}
	var b [8]byte
	for d.inc == 0 {
		rand.Read(b[:])
		d.inc = protocol.Incarnation(binary.LittleEndian.Uint64(b[:]))
	}
	d.id = identity{Format: identityFormat, Node: node, Incarnation: d.inc.String()}
	d.fresh = true
	return nil
}

// join checks that the directory belongs to the cluster, or makes it so (step 1).
func (d *directory) join(cluster wire.ClusterID) error {
	if d.fresh {
		d.cluster = cluster
		d.id.Cluster = cluster.String()
		if err := d.write(); err != nil {
			return err
		}
		d.fresh = false
		return nil
	}
	if d.cluster != cluster {
		return fmt.Errorf("node: data directory %s belongs to cluster %v, the object store to cluster %v: one of them is not the right one", d.path, d.cluster, cluster)
	}
	return nil
}

// checkStart refuses an older copy of this directory. A node that lost what it acknowledged since the copy was made would
// call it absent, at an incarnation that counts (P4). recorded is the start that the node's record names for this
// incarnation. A copy that was made after the last start is not noticed.
func (d *directory) checkStart(recorded string) error {
	if recorded == d.id.Start || recorded == d.id.Previous {
		return nil
	}
	return fmt.Errorf("node: data directory %s is an older copy: the node's record names a start of incarnation %v that the directory does not know. "+
		"It lacks what was acknowledged since; wipe it and let the node join as a blank one", d.path, d.inc)
}

// setStart notes the start that is about to be registered. It is written before the record: the other way round, a crash in
// between would make the directory look like an older copy of itself.
func (d *directory) setStart(nonce, recorded string) error {
	d.id.Previous, d.id.Start = recorded, nonce
	return d.write()
}

// setShards records that n stores are there (step 3).
func (d *directory) setShards(n int) error {
	if d.id.Shards >= n {
		return nil
	}
	d.id.Shards = n
	return d.write()
}

// write replaces node.json so that any crash leaves the old or the new one.
func (d *directory) write() error {
	body, err := json.MarshalIndent(d.id, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(d.path, identityName)
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err == nil {
		_, err = f.Write(append(body, '\n'))
		// Synced before the rename: the other way round, a power cut could leave the name with an empty file, and the
		// directory without an owner.
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err == nil {
		err = vfs.OS.SyncDir(d.path)
	}
	if err != nil {
		return fmt.Errorf("node: write %s: %w", path, err)
	}
	return nil
}

func (d *directory) shardDir(i int) string { return filepath.Join(d.path, shardPrefix+strconv.Itoa(i)) }

func (d *directory) close() error { return d.lock.Close() }
