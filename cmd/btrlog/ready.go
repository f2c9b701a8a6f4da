package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/btrlog/btrlog/internal/node"
)

// readiness is what a node says when it serves.
type readiness struct {
	Node        string `json:"node"`
	Address     string `json:"address"`
	Incarnation string `json:"incarnation"`
	Cluster     string `json:"cluster"`
	Zone        string `json:"zone,omitempty"`
	Shards      int    `json:"shards"`
	Durability  string `json:"durability"`
	FileSystem  string `json:"file_system"`
	Dir         string `json:"dir"`
	Store       string `json:"store"`
	PID         int    `json:"pid"`
}

func readinessOf(n *node.Node, cfg *node.Config) readiness {
	s := n.Status()
	r := readiness{Node: string(s.Node), Address: s.Address, Incarnation: s.Incarnation, Cluster: s.Cluster, Zone: s.Zone, Shards: s.Shards,
		Durability: s.Durability, FileSystem: fileSystemOf(cfg.Dir), Dir: absolute(cfg.Dir), Store: s.Flush.Store, PID: os.Getpid()}
	for _, shard := range s.Detail {
		if shard.Problem == "" && !shard.Store.Direct && !cfg.Buffered {
			r.Durability = "O_DSYNC without direct I/O (" + shard.Store.DirectReason + ")"
		}
	}
	return r
}

func (r *readiness) line() string {
	zone := ""
	if r.Zone != "" {
		zone = ", zone " + r.Zone
	}
	return fmt.Sprintf("node %s ready at %s: durability %s, file system %s, directory %s, %s%s, incarnation %s, store %s", r.Node, r.Address, r.Durability,
		r.FileSystem, r.Dir, plural(int64(r.Shards), "shard"), zone, r.Incarnation, r.Store)
}

// fileSystems are the magic numbers of statfs(2) that a log node is likely to meet.
var fileSystems = map[int64]string{
	0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x2fc12fc1: "zfs", 0x01021994: "tmpfs", 0x794c7630: "overlay", 0x6969: "nfs",
	0xf2f52010: "f2fs", 0xca451a4e: "bcachefs",
}

func fileSystemOf(dir string) string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "unknown"
	}
	if name, ok := fileSystems[int64(st.Type)]; ok {
		return name
	}
	return fmt.Sprintf("type %#x", st.Type)
}
