package node

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/lst/vfs"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/httpstore"
)

func checkRecords(t testing.TB, log protocol.LogID, rs []protocol.Record, from, to protocol.LSN, size int) {
	t.Helper()
	if len(rs) != int(to-from)+1 {
		t.Fatalf("%d records, want %d to %d", len(rs), from, to)
	}
	for i, r := range rs {
		if lsn := from + protocol.LSN(i); r.LSN != lsn || !bytes.Equal(r.Data, payload(log, lsn, size)) {
			t.Fatalf("record %d is %+v", lsn, r)
		}
	}
}

func TestAppendReadAndCrash(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 1})
	cfg := testConfig(t, "a", newStore())
	cfg.FS, cfg.Buffered = disk, false
	n := startNode(t, cfg)
	inc := n.Incarnation()
	c, w := dial(t, n), newWriter(7)
	c.begin(w)
	for range 20 {
		a := c.ack(to(inc, w.append(2, 100)), protocol.StatusOK)
		w.cLSN = a.Last
	}
	c.ack(w.watermark(inc, 0), protocol.StatusOK)
	read := func(c *client) {
		t.Helper()
		r := c.call(&protocol.Read{Log: 7, Req: 3, From: 1, To: protocol.MaxLSN}).(*protocol.ReadReply)
		if r.CLSN != 40 || r.Req != 3 {
			t.Fatalf("read: %+v", r)
		}
		checkRecords(t, 7, r.Records, 1, 40, 100)
	}
	read(c)
	// The power goes. What was acknowledged is there, and the fence is too.
	after := disk.Crash()
	c.send(to(inc, w.append(1, 100)))
	if err := <-n.Failed(); !strings.Contains(err.Error(), "shard 0") {
		t.Fatalf("the node failed with %v", err)
	}
	n.Close()
	cfg.FS = after
	n = startNode(t, cfg)
	if n.Incarnation() != inc {
		t.Fatal("another incarnation after a restart")
	}
	c = dial(t, n)
	read(c)
	old := newWriter(7)
	if r := c.call(old.open(1)).(*protocol.OpenReply); r.Status != protocol.StatusOK || r.Activated != 1 || len(r.Held) != 1 || r.Held[0].To != 40 {
		t.Fatalf("open again: %+v", r)
	}
	if r := c.call(old.open(2)).(*protocol.OpenReply); r.Status != protocol.StatusOK {
		t.Fatalf("open at 2: %+v", r)
	}
	w.next = 41
	if a := c.ack(to(inc, w.append(1, 100)), protocol.StatusFenced); a.Promised != 2 {
		t.Fatalf("fenced by %d", a.Promised)
	}
	stopNode(t, n)
}

// Many writers at once, over both ways, with both shards: what was acknowledged is there after the power went.
func TestManyWritersAndACrash(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 4})
	cfg := testConfig(t, "a", newStore())
	cfg.FS, cfg.Shards = disk, 2
	n := startNode(t, cfg)
	const logs = 8
	var acked [logs + 1]atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for log := 1; log <= logs; log++ {
		c, w := dial(t, n), newWriter(protocol.LogID(log))
		c.begin(w)
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				a := to(c.inc, w.append(1+i%3, 50+i%500))
				var got protocol.Message
				if i%4 == 0 {
					var err error
					if got, err = c.post(a); err != nil {
						return // the node is down
					}
				} else {
					c.send(a)
					c.conn.SetReadDeadline(time.Now().Add(waitFor / 10))
					k, _, err := c.conn.ReadFromUDP(c.buf)
					var r wire.Reader
					if err != nil || r.Reset(c.buf[:k], c.cluster) != nil || !r.Next() {
						return
					}
					got, _ = r.Message()
				}
				if k, ok := got.(*protocol.Ack); !ok || k.Status != protocol.StatusOK || k.Last != a.Last() {
					return // the node is down; the checks below say whether it was right before
				}
				acked[log].Store(int64(a.Last()))
			}
		})
	}
	eventually(t, "every writer to have some records", func() bool {
		for log := 1; log <= logs; log++ {
			if acked[log].Load() < 50 {
				return false
			}
		}
		return true
	})
	after := disk.Crash()
	close(stop)
	wg.Wait()
	n.Close()
	cfg.FS = after
	n = startNode(t, cfg)
	for log := 1; log <= logs; log++ {
		l, _ := logAt(n, protocol.LogID(log))
		if int64(l.Highest) < acked[log].Load() {
			t.Fatalf("log %d: record %d was acknowledged, the highest after the crash is %d", log, acked[log].Load(), l.Highest)
		}
		r, err := dial(t, n).post(&protocol.Read{Log: protocol.LogID(log), From: 1, To: protocol.MaxLSN, MaxBytes: 8 << 20, Raw: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.(*protocol.ReadReply); len(got.Damaged) != 0 || int64(len(got.Records)) < acked[log].Load() && len(got.Records) < 4000 {
			t.Fatalf("log %d: %d records, damaged %v, %d acknowledged", log, len(got.Records), got.Damaged, acked[log].Load())
		}
	}
}

// A store that failed must not acknowledge again, and the node ends with the error (P14, O1, O2).
func TestRunReturnsWhatBrokeAShard(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 2})
	cfg := testConfig(t, "a", newStore())
	cfg.FS, cfg.Buffered, cfg.Shards = disk, false, 2
	c, result, _ := runNode(t, cfg)
	w := newWriter(9)
	c.begin(w)
	disk.Inject(vfs.Fault{Ops: vfs.OpWrite, Err: syscall.EIO})
	c.send(to(c.inc, w.append(1, 10)))
	err := <-result
	if err == nil || !strings.Contains(err.Error(), "input/output error") || !strings.Contains(err.Error(), ".lst") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("the node ended with %v", err)
	}
}

// Until the program has ended, nobody is sent to it.
func TestFailedShardIsNotReady(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 3})
	cfg := testConfig(t, "a", newStore())
	cfg.FS = disk
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(9)
	c.begin(w)
	disk.Inject(vfs.Fault{Ops: vfs.OpSync, Err: syscall.EIO})
	c.send(to(c.inc, w.append(1, 10)))
	<-n.Failed()
	code, text := httpGet(t, n, "/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(text, "shard 0") {
		t.Fatalf("readyz: %d %s", code, text)
	}
	if code, text := httpGet(t, n, "/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(text, string(StoreLatched)) {
		t.Fatalf("healthz: %d %s", code, text)
	}
	if s := n.Status(); s.Ready == "ready" || s.Detail[0].Problem == "" {
		t.Fatalf("status: %+v", s)
	}
}

func TestRunStops(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	c, result, cancel := runNode(t, cfg)
	c.begin(newWriter(1))
	cancel()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	stopNode(t, startNode(t, cfg)) // the directory is free again
}

func TestLargeMessagesAndLongPollOverHTTP(t *testing.T) {
	n := startNode(t, func() Config { c := testConfig(t, "a", newStore()); c.SegmentBytes = 32 << 20; return c }())
	inc := n.Incarnation()
	c, w := dial(t, n), newWriter(5)
	c.begin(w)
	const size = 3 << 20
	if a, ok := c.mustPost(to(inc, w.append(1, size))).(*protocol.Ack); !ok || a.Status != protocol.StatusOK || a.Last != 1 {
		t.Fatalf("append over HTTP: %+v", a)
	}
	w.cLSN = 1
	c.ack(to(inc, w.append(1, 10)), protocol.StatusOK)
	// A datagram cannot carry it and says so; HTTP can.
	r := c.call(&protocol.Read{Log: 5, From: 1, To: 2}).(*protocol.ReadReply)
	if len(r.Records) != 0 || r.Through != 0 || r.CLSN != 1 {
		t.Fatalf("read of a large record by datagram: %d records, through %d, committed %d", len(r.Records), r.Through, r.CLSN)
	}
	r = c.mustPost(&protocol.Read{Log: 5, From: 1, To: 2, MaxBytes: 8 << 20}).(*protocol.ReadReply)
	checkRecords(t, 5, r.Records, 1, 1, size)
	w2 := newWriter(5)
	c.call(w2.open(2))
	f := c.mustPost(&protocol.Fetch{Log: 5, Epoch: 2, Incarnation: inc, From: 1, To: 9, MaxBytes: 8 << 20}).(*protocol.FetchReply)
	if f.Status != protocol.StatusOK || len(f.Records) != 2 || f.Through != 9 {
		t.Fatalf("fetch: %v, %d records, through %d", f.Status, len(f.Records), f.Through)
	}
	w2.history = w.history
	c.ack(w2.activate(inc, 2, 3), protocol.StatusOK) // raises the watermark to 2

	// A follower waits for the next commit, and gets it as soon as it is there.
	got := make(chan *protocol.ReadReply, 1)
	go func() {
		m, err := c.post(&protocol.Read{Log: 5, From: 3, To: protocol.MaxLSN, WaitAbove: 2})
		r, _ := m.(*protocol.ReadReply)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	eventually(t, "the read to be parked", func() bool { return n.Status().Detail[0].Parked == 1 })
	w2.cLSN = 3
	c.ack(to(inc, w2.append(1, 50)), protocol.StatusOK)
	if r := <-got; r == nil || r.CLSN != 3 {
		t.Fatalf("long poll: %+v", r)
	} else {
		checkRecords(t, 5, r.Records, 3, 3, 50)
	}
	// Without a commit it is answered after a while.
	began := time.Now()
	if r := c.mustPost(&protocol.Read{Log: 5, From: 4, To: 9, WaitAbove: 100}).(*protocol.ReadReply); r.CLSN != 3 || len(r.Records) != 0 {
		t.Fatalf("long poll without a commit: %+v", r)
	}
	if d := time.Since(began); d < longPoll/2 || d > 10*longPoll {
		t.Fatalf("answered after %v", d)
	}
	// HTTP/1 works too, and what is no message is refused.
	if _, err := postTo(http.DefaultClient, "http://"+n.Address()+MessagePath, n.Cluster(), &protocol.Read{Log: 5}); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"", "nonsense", strings.Repeat("x", 5000)} {
		resp, err := http.Post("http://"+n.Address()+MessagePath, "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Fatalf("%d for %d bytes of nonsense", resp.StatusCode, len(body))
		}
	}
	if _, err := postTo(http2Client, "http://"+n.Address()+MessagePath, n.Cluster()+2, &protocol.Read{Log: 5}); err == nil {
		t.Fatal("a message of another cluster was answered")
	}
}

func TestStatusIdentityAndStore(t *testing.T) {
	store := newStore()
	n := startNode(t, testConfig(t, "a", store))
	c, w := dial(t, n), newWriter(0xbeef)
	c.begin(w)
	c.ack(to(n.Incarnation(), w.append(3, 10)), protocol.StatusOK)
	code, body := httpGet(t, n, StatusPath)
	var s Status
	if err := json.Unmarshal([]byte(body), &s); code != http.StatusOK || err != nil {
		t.Fatalf("status: %d, %v", code, err)
	}
	if s.Node != "a" || s.Ready != "ready" || s.Incarnation != n.Incarnation().String() || len(s.Detail) != 1 || len(s.Detail[0].Logs) != 1 {
		t.Fatalf("status: %s", body)
	}
	if l := s.Detail[0].Logs[0]; l.Log != "000000000000beef" || l.Highest != 3 || l.Activated != 1 || l.Durability != "disk" {
		t.Fatalf("log: %+v", l)
	}
	if s.Detail[0].Counters.Messages < 3 || s.Detail[0].Core.Records != 3 || s.Detail[0].Store.Streams != 1 {
		t.Fatalf("counters: %+v", s.Detail[0])
	}
	code, body = httpGet(t, n, IdentityPath)
	var id Identity
	if err := json.Unmarshal([]byte(body), &id); code != http.StatusOK || err != nil || id.Cluster != n.Cluster().String() || len(id.Ports) != 1 || id.Ports[0] != n.Port() {
		t.Fatalf("identity: %d %s", code, body)
	}
	if code, body := httpGet(t, n, "/"); code != http.StatusOK || !strings.Contains(body, "/metrics") {
		t.Fatalf("index: %d %s", code, body)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, _ := httpGet(t, n, path); code != http.StatusOK {
			t.Fatalf("%s: %d", path, code)
		}
	}
	// The store is served below the root and nowhere else.
	hs, err := httpstore.New([]string{"http://" + n.Address()}, httpstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer hs.Close()
	if _, _, err := objstore.ReadAll(context.Background(), hs, "cluster/cluster.json", 1<<16); err != nil {
		t.Fatal(err)
	}
	if _, err := hs.Put(context.Background(), "elsewhere/x", []byte("x"), nil, objstore.IfAbsent()); err == nil {
		t.Fatal("a key outside the root was written")
	}
}

func TestGarbageIsCountedAndNotAnswered(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	c, w := dial(t, n), newWriter(3)
	c.begin(w)
	good := func(cluster wire.ClusterID, m protocol.Message) []byte {
		var p wire.Writer
		p.Reset(nil, wire.MaxDatagramBytes, cluster, 0)
		if err := p.Message(m); err != nil {
			t.Fatal(err)
		}
		return append([]byte(nil), p.Finish()...)
	}
	read := &protocol.Read{Log: 3, Req: 1}
	flipped := good(n.Cluster(), read)
	flipped[len(flipped)-1] ^= 1
	c.sendRaw(nil)
	c.sendRaw([]byte("hello"))
	c.sendRaw(bytes.Repeat([]byte{0xff}, 60000))
	c.sendRaw(flipped)
	c.sendRaw(good(n.Cluster()+2, read))
	c.sendRaw(good(n.Cluster(), &protocol.Ack{Log: 3}))
	c.sendRaw(wire.AppendNotice(nil, n.Cluster()))
	for i := range len(flipped) {
		c.sendRaw(flipped[:i])
	}
	// The next answer that comes is the one to the next question.
	if r := c.call(&protocol.Read{Log: 3, Req: 77}).(*protocol.ReadReply); r.Req != 77 {
		t.Fatalf("answer to question %d", r.Req)
	}
	k := n.Status().Detail[0].Counters
	if want := uint64(5 + len(flipped)); k.BadPackets != want || k.OtherCluster != 1 || k.Unexpected != 1 {
		t.Fatalf("counters %+v, want %d bad packets", k, want)
	}
	// Another version is told ours, once, and no more.
	foreign := good(n.Cluster(), read)
	foreign[4] = wire.Version + 1
	c.sendRaw(foreign)
	c.conn.SetReadDeadline(time.Now().Add(waitFor))
	got, _, err := c.conn.ReadFromUDP(c.buf)
	if err != nil {
		t.Fatal(err)
	}
	var r wire.Reader
	if err := r.Reset(c.buf[:got], n.Cluster()); err != wire.ErrNotice {
		t.Fatalf("answer to another version: %v", err)
	}
}

func TestTwoShardsHandOver(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.Shards = 2
	n := startNode(t, cfg)
	inc := n.Incarnation()
	seen := map[uint16]bool{}
	for log := protocol.LogID(1); log <= 8; log++ {
		c, w := dial(t, n), newWriter(log)
		c.send(w.open(1)) // always to the well-known port
		ms, port := c.receive()
		if r, ok := ms[0].(*protocol.OpenReply); !ok || r.Log != log || r.Status != protocol.StatusOK {
			t.Fatalf("open of log %d: %+v", log, ms[0])
		}
		owner := n.owner(log)
		if port != n.threads[owner].port {
			t.Fatalf("log %d answered with port %d, its shard %d has %d", log, port, owner, n.threads[owner].port)
		}
		seen[port] = true
		c.to = &net.UDPAddr{IP: c.to.IP, Port: int(port)}
		c.ack(w.activate(inc, 1, 1), protocol.StatusOK)
		forwarded := n.threads[0].counters.forwarded.Load()
		c.ack(to(inc, w.append(1, 30)), protocol.StatusOK)
		if n.threads[0].counters.forwarded.Load() != forwarded {
			t.Fatalf("log %d: a message to its own shard was forwarded", log)
		}
	}
	if len(seen) != 2 {
		t.Fatalf("8 logs live in %d shards", len(seen))
	}
}

func TestOpenReplyFitsItsDatagram(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	n := startNode(t, cfg)
	inc := n.Incarnation()
	c, w := dial(t, n), newWriter(3)
	c.begin(w)
	// Every other LSN is missing, so each is an extent of its own: more than a datagram takes.
	const held = 4000
	var batch []protocol.Message
	for range held {
		w.next++
		w.off += 1000
		batch = append(batch, to(inc, w.append(1, 20)))
		if len(batch) == 50 {
			c.send(batch...)
			for got := 0; got < len(batch); {
				ms, _ := c.receive()
				for _, m := range ms {
					if a := m.(*protocol.Ack); a.Status != protocol.StatusOK {
						t.Fatalf("append: %+v", a)
					}
				}
				got += len(ms)
			}
			batch = batch[:0]
		}
	}
	r := c.call(w.open(2)).(*protocol.OpenReply)
	if len(r.Held) == 0 || len(r.Held) >= held || r.Through != 2*protocol.LSN(len(r.Held))+1 {
		t.Fatalf("%d extents, through %d", len(r.Held), r.Through)
	}
	full := c.mustPost(w.open(2)).(*protocol.OpenReply)
	if len(full.Held) != held || full.Through != protocol.MaxLSN {
		t.Fatalf("over HTTP: %d extents, through %d", len(full.Held), full.Through)
	}
}

// The answer goes to the port that the packet names, at the address that it came from.
func TestReplyToOfAClient(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	c, other := dial(t, n), dial(t, n)
	var p wire.Writer
	p.Reset(nil, 2048, n.Cluster(), uint16(other.conn.LocalAddr().(*net.UDPAddr).Port))
	if err := p.Message(&protocol.Read{Log: 1, Req: 9}); err != nil {
		t.Fatal(err)
	}
	c.sendRaw(p.Finish())
	ms, _ := other.receive()
	if r, ok := ms[0].(*protocol.ReadReply); !ok || r.Req != 9 {
		t.Fatalf("answer %+v", ms[0])
	}
}
