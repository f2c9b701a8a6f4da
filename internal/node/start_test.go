package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

func TestDirectoryRefusals(t *testing.T) {
	store := newStore()
	cfg := testConfig(t, "a", store)
	refused := func(cfg Config, want string) {
		t.Helper()
		n, err := Start(context.Background(), cfg)
		if err == nil {
			n.Close()
			t.Fatalf("started, want an error with %q", want)
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("error is %q, want one line with %q", err, want)
		}
	}
	n := startNode(t, cfg)
	inc := n.Incarnation()
	refused(cfg, "in use by another process")
	twin := testConfig(t, "a", store) // another machine with the same name
	refused(twin, "a live process")
	stopNode(t, n)

	other := cfg
	other.Node = "b"
	refused(other, `belongs to node "a"`)
	other = cfg
	other.Store = newStore()
	refused(other, "belongs to cluster")

	// Half of it is gone.
	aside := filepath.Join(t.TempDir(), "aside")
	if err := os.Rename(filepath.Join(cfg.Dir, "shard-0"), aside); err != nil {
		t.Fatal(err)
	}
	refused(cfg, "missing or empty")
	refused(cfg, "missing or empty") // and the first refusal has not made what the second would take
	os.RemoveAll(filepath.Join(cfg.Dir, "shard-0"))
	if err := os.Rename(aside, filepath.Join(cfg.Dir, "shard-0")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(cfg.Dir, identityName), aside); err != nil {
		t.Fatal(err)
	}
	refused(cfg, "not whole")
	if err := os.WriteFile(filepath.Join(cfg.Dir, identityName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(cfg, "damaged")
	if err := os.Rename(aside, filepath.Join(cfg.Dir, identityName)); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, cfg)
	if n.Incarnation() != inc {
		t.Fatal("another incarnation")
	}
	stopNode(t, n)
	// A wiped directory is another incarnation (P4).
	if err := os.RemoveAll(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, cfg)
	if n.Incarnation() == inc {
		t.Fatal("a wiped directory kept its incarnation")
	}
}

func TestStoreRefusals(t *testing.T) {
	cfg := testConfig(t, "a", brokenStore{newStore()})
	if n, err := Start(context.Background(), cfg); err == nil {
		n.Close()
		t.Fatal("a node started on a store that ignores conditions")
	} else if !strings.Contains(err.Error(), "broken") {
		t.Fatal(err)
	}
	down := &countingStore{Store: newStore()}
	down.down.Store(1 << 40)
	cfg = testConfig(t, "b", down)
	cfg.StartTimeout = 300 * time.Millisecond
	if n, err := Start(context.Background(), cfg); err == nil {
		n.Close()
		t.Fatal("a node started without its store")
	} else if !strings.Contains(err.Error(), "did not answer within") || strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
	// A store that comes back in time is enough.
	down.down.Store(30)
	cfg.StartTimeout = waitFor
	stopNode(t, startNode(t, cfg))
}

func TestConfigRefusals(t *testing.T) {
	base := testConfig(t, "a", newStore())
	for want, change := range map[string]func(*Config){
		"no data directory": func(c *Config) { c.Dir = "" },
		"no object store":   func(c *Config) { c.Store = nil },
		"node: id":          func(c *Config) { c.Node = "a/b" },
		"node: zone":        func(c *Config) { c.Zone = "-" },
		"300 shards":        func(c *Config) { c.Shards = 300 },
		"at least 1 MiB":    func(c *Config) { c.SegmentBytes = 1000 },
		"memory budget":     func(c *Config) { c.MemoryBudgetBytes = 1 << 19 },
		"at least 3 files":  func(c *Config) { c.DiskBudgetBytes = 1 << 20 },
		"listen address":    func(c *Config) { c.Listen = "nowhere" },
		"advertise":         func(c *Config) { c.Listen = "0.0.0.0:0" },
	} {
		cfg := base
		change(&cfg)
		n, err := Start(context.Background(), cfg)
		if err == nil {
			n.Close()
			t.Errorf("started, want an error with %q", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("error is %q, want %q in it", err, want)
		}
	}
	// Nothing of that is in the way of a right configuration.
	stopNode(t, startNode(t, base))
	for _, listen := range []string{"0.0.0.0:0", ":0"} {
		base.Listen, base.Advertise, base.Shards = listen, "127.0.0.1", 2
		n := startNode(t, base)
		if want := fmt.Sprintf("127.0.0.1:%d", n.Port()); n.Address() != want {
			t.Fatalf("advertised %s, want %s", n.Address(), want)
		}
		dial(t, n).begin(newWriter(1))
		if code, _ := httpGet(t, n, "/readyz"); code != 200 {
			t.Fatalf("readyz: %d", code)
		}
		stopNode(t, n)
	}
}

func TestRestartWithOtherShardCounts(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.Root = "" // a store of its own
	const logs = 12
	var inc protocol.Incarnation
	writers := map[protocol.LogID]*writer{}
	where := map[protocol.LogID]int{}
	for round, shards := range []int{1, 4, 2, 3} {
		cfg.Shards = shards
		n := startNode(t, cfg)
		inc = n.Incarnation()
		c := dial(t, n)
		for log, w := range writers { // everything of the rounds before is where it was, and goes on
			l, at := logAt(n, log)
			if at != where[log] || l.Activated != 1 || l.Highest != w.next-1 {
				t.Fatalf("round %d: log %d is in shard %d with %+v, was in %d with highest %d", round, log, at, l, where[log], w.next-1)
			}
			c.ack(to(inc, w.append(1, 40)), protocol.StatusOK)
		}
		for k := range protocol.LogID(logs) {
			log := protocol.LogID(round+1)*1000 + k
			w := newWriter(log)
			c.begin(w)
			c.ack(to(inc, w.append(1, 40)), protocol.StatusOK)
			_, at := logAt(n, log)
			if at < 0 || at >= shards {
				t.Fatalf("round %d: a new log went to shard %d of %d", round, at, shards)
			}
			writers[log], where[log] = w, at
		}
		stopNode(t, n)
	}
}

// brokenStore accepts every write, whatever the condition.
type brokenStore struct{ objstore.Store }

func (s brokenStore) Put(ctx context.Context, key string, body []byte, m map[string]string, _ objstore.Condition) (objstore.Info, error) {
	return s.Store.Put(ctx, key, body, m, objstore.Always())
}

// What node.json of this version holds must stay readable.
func TestIdentityFile(t *testing.T) {
	dir := t.TempDir()
	const golden = `{
 "format": 1,
 "cluster_id": "00000000000c1001",
 "node": "a",
 "incarnation": "00000000000abc01",
 "shards": 2
}
`
	d := &directory{path: dir, id: identity{Format: identityFormat, Cluster: "00000000000c1001", Node: "a", Incarnation: "00000000000abc01", Shards: 1}}
	if err := d.setShards(2); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, identityName)
	if got, err := os.ReadFile(path); err != nil || string(got) != golden {
		t.Fatalf("%s, %v", got, err)
	}
	open := func() (*directory, error) { return openDirectory(dir, "a") }
	d, err := open()
	if err != nil || d.inc != 0xabc01 || d.cluster != 0xc1001 || d.id.Shards != 2 || d.fresh {
		t.Fatalf("%+v, %v", d, err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"newer": strings.Replace(golden, `"format": 1`, `"format": 2`, 1), "zero": strings.Replace(golden, "abc01", "00000", 1),
		"hex": strings.Replace(golden, "abc01", "abcxy", 1), "shards": strings.Replace(golden, ": 2", ": 2000", 1), "cut": golden[:len(golden)/2], "empty": "",
	} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if d, err := open(); err == nil {
			d.close()
			t.Errorf("%s: opened", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v does not name the file", name, err)
		}
	}
}
