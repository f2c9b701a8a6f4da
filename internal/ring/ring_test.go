//go:build linux && (amd64 || arm64)

package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait of these tests; nothing comes near it unless it is broken.
const patience = 10 * time.Second

// underTest is the engine of the loops that listen makes.
var underTest Engine

// eachEngine runs a test with every engine. Only without io_uring in the kernel there is but one.
func eachEngine(t *testing.T, f func(*testing.T)) {
	for _, e := range []Engine{Plain, URing} {
		l, taken, why, err := Open(netip.MustParseAddrPort("127.0.0.1:0"), Config{}, e)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if taken != e {
			t.Logf("not tested with %s: %v", e, why)
			continue
		}
		t.Run(string(e), func(t *testing.T) {
			underTest = e
			// The goroutine is the owner of its loops.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			f(t)
		})
	}
}

func listen(t testing.TB, addr string, cfg Config) Loop {
	t.Helper()
	s, taken, _, err := Open(netip.MustParseAddrPort(addr), cfg, underTest)
	if err == nil && taken != underTest {
		t.Fatalf("%s instead of %s", taken, underTest)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	return s
}

// receive waits for n datagrams and returns copies.
func receive(t testing.TB, s Loop, n int) (from []Addr, data [][]byte) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for len(data) < n {
		packets, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packets {
			from, data = append(from, p.From), append(data, bytes.Clone(p.Data))
		}
		if len(packets) > 0 {
			continue
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d datagrams came; %+v", len(data), n, s.Stats())
		}
		if _, err := s.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	return from, data
}

// loopbacks lists the loopback addresses that this machine has.
func loopbacks(t *testing.T) []string {
	addrs := []string{"127.0.0.1:0"}
	have, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range have {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.Equal(net.IPv6loopback) {
			addrs = append(addrs, "[::1]:0")
		}
	}
	return addrs
}

func TestBatchesOfAllSizes(t *testing.T) { eachEngine(t, testBatchesOfAllSizes) }

func testBatchesOfAllSizes(t *testing.T) {
	for _, addr := range loopbacks(t) {
		t.Run(addr, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			a, b := listen(t, addr, Config{}), listen(t, addr, Config{})
			sizes := []int{0, 1, 160, 1400, 9000, 65000, 65507}
			var want [][]byte
			for i, size := range sizes {
				data := bytes.Repeat([]byte{byte('a' + i)}, size)
				want = append(want, data)
				if size < 32 {
					a.Send(b.LocalAddr(), data)
				} else {
					a.SendParts(b.LocalAddr(), data[:32], data[32:])
				}
			}
			if err := a.Flush(); err != nil {
				t.Fatal(err)
			}
			from, got := receive(t, b, len(want))
			for i := range want {
				if from[i] != a.LocalAddr() || !bytes.Equal(got[i], want[i]) {
					t.Errorf("datagram %d: %d bytes from %v, want %d from %v", i, len(got[i]), from[i], len(want[i]), a.LocalAddr())
				}
			}
			if sa, sb := a.Stats(), b.Stats(); sa.Sent != uint64(len(want)) || sb.Received != sa.Sent || sb.ReceivedBytes != sa.SentBytes || sa.SentBytes == 0 {
				t.Errorf("sender %+v\nreceiver %+v", sa, sb)
			}
		})
	}
}

func TestOneBodyToManyNodes(t *testing.T) { eachEngine(t, testOneBodyToManyNodes) }

func testOneBodyToManyNodes(t *testing.T) {
	a := listen(t, "127.0.0.1:0", Config{})
	body := []byte("the same for all")
	var nodes []Loop
	for i := range 3 {
		nodes = append(nodes, listen(t, "127.0.0.1:0", Config{}))
		var head [8]byte
		binary.LittleEndian.PutUint64(head[:], uint64(i)) // overwritten in the next turn: it must have been copied
		a.SendParts(nodes[i].LocalAddr(), head[:], body)
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		_, got := receive(t, n, 1)
		if binary.LittleEndian.Uint64(got[0]) != uint64(i) || string(got[0][8:]) != string(body) {
			t.Errorf("node %d got %q", i, got[0])
		}
	}
}

func TestFullQueueIsFlushed(t *testing.T) { eachEngine(t, testFullQueueIsFlushed) }

func testFullQueueIsFlushed(t *testing.T) {
	a, b := listen(t, "127.0.0.1:0", Config{Batch: 4}), listen(t, "127.0.0.1:0", Config{Batch: 3})
	for i := range 11 {
		a.Send(b.LocalAddr(), []byte{byte(i)})
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	_, got := receive(t, b, 11)
	for i := range got {
		if got[i][0] != byte(i) {
			t.Errorf("datagram %d is %d", i, got[i][0])
		}
	}
}

func TestDualStack(t *testing.T) { eachEngine(t, testDualStack) }

func testDualStack(t *testing.T) {
	if len(loopbacks(t)) < 2 {
		t.Log("this machine has no IPv6 loopback; only the IPv4 tests run")
		return
	}
	d, four := listen(t, "[::]:0", Config{}), listen(t, "127.0.0.1:0", Config{})
	four.Send(AddrFrom(netip.MustParseAddrPort("127.0.0.1:1")).WithPort(d.LocalAddr().Port()), []byte("ping"))
	if err := four.Flush(); err != nil {
		t.Fatal(err)
	}
	from, _ := receive(t, d, 1)
	if from[0] != four.LocalAddr() || !from[0].Is4() {
		t.Fatalf("from %v, want %v", from[0], four.LocalAddr())
	}
	d.Send(from[0], []byte("pong"))
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, got := receive(t, four, 1); string(got[0]) != "pong" {
		t.Errorf("got %q", got[0])
	}
}

func TestOversizedDatagramIsDroppedAndCounted(t *testing.T) {
	eachEngine(t, testOversizedDatagramIsDroppedAndCounted)
}

func testOversizedDatagramIsDroppedAndCounted(t *testing.T) {
	a, b := listen(t, "127.0.0.1:0", Config{}), listen(t, "127.0.0.1:0", Config{MaxDatagram: 100})
	a.Send(b.LocalAddr(), make([]byte, 101))
	a.Send(b.LocalAddr(), make([]byte, 100))
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, got := receive(t, b, 1); len(got) != 1 || len(got[0]) != 100 || b.Stats().Truncated != 1 {
		t.Errorf("%d datagrams, %+v", len(got), b.Stats())
	}
}

func TestWhatTheKernelRefusesIsCountedAndDoesNotStopTheRest(t *testing.T) {
	eachEngine(t, testWhatTheKernelRefusesIsCountedAndDoesNotStopTheRest)
}

func testWhatTheKernelRefusesIsCountedAndDoesNotStopTheRest(t *testing.T) {
	a, b := listen(t, "127.0.0.1:0", Config{}), listen(t, "127.0.0.1:0", Config{})
	a.Send(b.LocalAddr(), []byte("first"))
	a.Send(b.LocalAddr(), make([]byte, 65508)) // larger than UDP can carry
	a.Send(AddrFrom(netip.MustParseAddrPort("[2001:db8::1]:9")), []byte("an IPv6 address on an IPv4 socket"))
	a.Send(b.LocalAddr(), []byte("last"))
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, got := receive(t, b, 2); string(got[0]) != "first" || string(got[1]) != "last" {
		t.Errorf("got %q", got)
	}
	if st := a.Stats(); st.Sent != 2 || st.SendFailed != 2 || st.LastSendError == nil {
		t.Errorf("%+v", st)
	}
}

// TestFullSocketBufferDropsSoon uses a pair of local sockets, which, unlike UDP on loopback, can push back.
func TestFullSocketBufferDropsSoon(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[0])
	defer syscall.Close(pair[1])
	s := &Socket{fd: pair[0], wakefd: -1}
	b := s.NewBatch(maxBatch)
	peer := AddrFrom(netip.MustParseAddrPort("127.0.0.1:1"))
	for b.Add(peer, make([]byte, 2000)) {
		h := &b.hdrs[b.Len()-1].hdr
		h.Name, h.Namelen = nil, 0 // the pair is connected
	}
	start := time.Now()
	sent, err := s.SendBatch(b)
	if err != nil || sent == 0 || sent == maxBatch {
		t.Fatalf("%d sent, %v", sent, err)
	}
	if st := s.Stats(); st.Sent != uint64(sent) || st.SendDropped != uint64(maxBatch-sent) || st.SentBytes != uint64(sent)*2000 {
		t.Errorf("%d of %d sent, %+v", sent, maxBatch, st)
	}
	if d := time.Since(start); d > patience {
		t.Errorf("a full buffer held the sender up for %v", d)
	}
	if b.Len() != 0 {
		t.Error("the batch is not empty")
	}
}

func TestWaitUntilDeadline(t *testing.T) { eachEngine(t, testWaitUntilDeadline) }

func testWaitUntilDeadline(t *testing.T) {
	s := listen(t, "127.0.0.1:0", Config{})
	if ev, err := s.Wait(0); ev != 0 || err != nil {
		t.Fatalf("poll: %v, %v", ev, err)
	}
	start := time.Now()
	const pause = 20 * time.Millisecond
	for {
		ev, err := s.Wait(pause - time.Since(start))
		if ev != 0 || err != nil {
			t.Fatalf("%v, %v", ev, err)
		}
		if time.Since(start) >= pause {
			break
		}
	}
	if d := time.Since(start); d > patience {
		t.Errorf("waited %v for a deadline of %v", d, pause)
	}
}

func TestWakeIsCoalescedAndKept(t *testing.T) { eachEngine(t, testWakeIsCoalescedAndKept) }

func testWakeIsCoalescedAndKept(t *testing.T) {
	s := listen(t, "127.0.0.1:0", Config{})
	for range 100 {
		s.Wake()
	}
	if ev, err := s.Wait(patience); ev != Woken || err != nil {
		t.Fatalf("%v, %v", ev, err)
	}
	if ev, err := s.Wait(0); ev != 0 || err != nil {
		t.Fatalf("a second wake-up for the same Wakes: %v, %v", ev, err)
	}
	if n := s.Stats().Wakes; n != 1 {
		t.Errorf("%d wake-ups reached the kernel, want 1", n)
	}
	s.Wake()
	if ev, err := s.Wait(patience); ev != Woken || err != nil {
		t.Fatalf("%v, %v", ev, err)
	}
}

// TestNoWakeIsLost: what was published before a Wake is seen after the Wait, however they interleave.
func TestNoWakeIsLost(t *testing.T) { eachEngine(t, testNoWakeIsLost) }

func testNoWakeIsLost(t *testing.T) {
	s := listen(t, "127.0.0.1:0", Config{})
	const producers, each = 4, 50_000
	var published atomic.Int64
	var wg sync.WaitGroup
	for range producers {
		wg.Go(func() {
			for range each {
				published.Add(1)
				s.Wake()
			}
		})
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for seen := int64(0); seen < producers*each; {
		start := time.Now()
		ev, err := s.Wait(patience)
		if err != nil {
			t.Fatal(err)
		}
		if ev&Woken == 0 && time.Since(start) >= patience {
			t.Fatalf("no wake-up in %v; %d of %d seen, %d published", patience, seen, producers*each, published.Load())
		}
		seen = published.Load()
	}
	wg.Wait()
}

func TestConcurrentSenders(t *testing.T) { eachEngine(t, testConcurrentSenders) }

func testConcurrentSenders(t *testing.T) {
	a, b := listen(t, "127.0.0.1:0", Config{}), listen(t, "127.0.0.1:0", Config{})
	const senders, rounds, per = 4, 50, 8
	var wg sync.WaitGroup
	credit := make([]chan struct{}, senders) // a round is sent when the last was received, so that no buffer overflows
	for i := range senders {
		credit[i] = make(chan struct{}, rounds)
		credit[i] <- struct{}{}
		wg.Go(func() {
			batch := a.NewBatch(per)
			for r := range rounds {
				<-credit[i]
				for k := range per {
					if !batch.AddParts(b.LocalAddr(), []byte{byte(i), byte(r), byte(k)}, []byte("body")) {
						t.Errorf("sender %d: batch full at %d", i, k)
					}
				}
				if n, err := a.SendBatch(batch); n != per || err != nil {
					t.Errorf("sender %d: %d sent, %v", i, n, err)
				}
			}
		})
	}
	next := [senders]int{}
	for range senders * rounds * per {
		_, got := receive(t, b, 1)
		for _, d := range got {
			i := int(d[0])
			if at := int(d[1])*per + int(d[2]); at != next[i] || string(d[3:]) != "body" {
				t.Fatalf("sender %d: datagram %d with %q, want %d", i, at, d[3:], next[i])
			}
			if next[i]++; next[i]%per == 0 {
				credit[i] <- struct{}{}
			}
		}
		if sum(next[:]) == senders*rounds*per {
			break
		}
	}
	wg.Wait()
	if got := sum(next[:]); got != senders*rounds*per || a.Stats().Sent != uint64(got) {
		t.Errorf("%d datagrams, %+v", got, a.Stats())
	}
}

func sum(v []int) (n int) {
	for _, x := range v {
		n += x
	}
	return n
}

func TestSteadyStateDoesNotAllocate(t *testing.T) { eachEngine(t, testSteadyStateDoesNotAllocate) }

func testSteadyStateDoesNotAllocate(t *testing.T) {
	for _, addr := range loopbacks(t) {
		a, b := listen(t, addr, Config{}), listen(t, addr, Config{})
		batch := a.NewBatch(8)
		body := make([]byte, 1000)
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := &Write{FD: int(f.Fd()), Buf: body}
		var fault error
		var head [32]byte // not in the function: through the interface it escapes
		n := testing.AllocsPerRun(200, func() {
			head[0] = 1
			for range 4 {
				a.SendParts(b.LocalAddr(), head[:], body)
				batch.AddParts(b.LocalAddr(), head[:], body)
			}
			if err := a.Flush(); err != nil {
				fault = err
			}
			if sent, err := a.SendBatch(batch); sent != 4 || err != nil {
				fault = fmt.Errorf("%d sent, %w", sent, err)
			}
			for got := 0; got < 8; {
				ev, err := b.Wait(patience)
				if ev == 0 || err != nil {
					fault = fmt.Errorf("event %d, %w", ev, err)
					break
				}
				packets, err := b.Recv()
				if err != nil {
					fault = err
				}
				for i := range packets {
					if len(packets[i].Data) != 1032 || packets[i].From != a.LocalAddr() {
						fault = fmt.Errorf("%d bytes from another address", len(packets[i].Data))
					}
				}
				got += len(packets)
			}
			b.Wake()
			if ev, _ := b.Wait(patience); ev != Woken {
				fault = fmt.Errorf("event %d after Wake", ev)
			}
			b.Submit(w)
			if ev, _ := b.Wait(patience); ev != Done {
				fault = fmt.Errorf("event %d after Submit", ev)
			}
			if done := b.Completed(); len(done) != 1 || done[0].Err != nil {
				fault = fmt.Errorf("%d writes done", len(done))
			}
		})
		if fault != nil {
			t.Fatal(fault)
		}
		if n != 0 {
			t.Errorf("%s: %v allocations per round", addr, n)
		}
	}
}

// TestWaitDoesNotHoldUpTheCollector: a collection must finish while the owner blocks in Wait.
func TestWaitDoesNotHoldUpTheCollector(t *testing.T) {
	eachEngine(t, testWaitDoesNotHoldUpTheCollector)
}

func testWaitDoesNotHoldUpTheCollector(t *testing.T) {
	s := listen(t, "127.0.0.1:0", Config{})
	entering, done := make(chan struct{}), make(chan Event, 1)
	go func() {
		runtime.LockOSThread()
		close(entering)
		for {
			if ev, err := s.Wait(patience); ev != 0 || err != nil {
				done <- ev
				return
			}
		}
	}()
	<-entering
	start := time.Now()
	runtime.GC()
	if d := time.Since(start); d >= patience {
		t.Errorf("the collection took %v", d)
	}
	s.Wake()
	if ev := <-done; ev != Woken {
		t.Errorf("event %d", ev)
	}
}

func TestClose(t *testing.T) { eachEngine(t, testClose) }

func testClose(t *testing.T) {
	for range 20 {
		s := listen(t, "127.0.0.1:0", Config{})
		peer := s.LocalAddr()
		waiting := make(chan error, 1)
		go func() {
			runtime.LockOSThread()
			for {
				if _, err := s.Wait(patience); err != nil {
					waiting <- err
					return
				}
			}
		}()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				b := s.NewBatch(1)
				for {
					s.Wake()
					b.Add(peer, []byte("x"))
					if _, err := s.SendBatch(b); err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Errorf("Wait: %v", err)
		}
		_, err := s.Recv()
		if !errors.Is(err, ErrClosed) || !errors.Is(s.Close(), ErrClosed) {
			t.Errorf("Recv after Close: %v", err)
		}
		s.Send(peer, []byte("x"))
		if err := s.Flush(); !errors.Is(err, ErrClosed) {
			t.Errorf("Flush after Close: %v", err)
		}
		s.Wake()
	}
}

func TestListenErrors(t *testing.T) { eachEngine(t, testListenErrors) }

func testListenErrors(t *testing.T) {
	s := listen(t, "127.0.0.1:0", Config{})
	if _, err := Listen(s.LocalAddr().AddrPort(), Config{}); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), s.LocalAddr().String()) {
		t.Errorf("second socket on %v: %v", s.LocalAddr(), err)
	}
	for _, cfg := range []Config{{Batch: -1}, {Batch: maxBatch + 1}, {MaxDatagram: maxDatagram + 1}, {SocketBytes: -5}} {
		if l, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), cfg); err == nil {
			l.Close()
			t.Errorf("%+v was accepted", cfg)
		}
	}
	if st := s.Stats(); st.RecvBuffer <= 0 || st.SendBuffer <= 0 {
		t.Errorf("buffers %d and %d", st.RecvBuffer, st.SendBuffer)
	}
}

func TestAddr(t *testing.T) {
	seen := map[Addr]string{}
	for _, text := range []string{"127.0.0.1:7", "127.0.0.1:8", "[::1]:7", "[fe80::1%3]:7", "[fe80::1%12]:7", "[2001:db8::1]:65535"} {
		a := AddrFrom(netip.MustParseAddrPort(text))
		if a.String() != text || AddrFrom(a.AddrPort()) != a || !a.IsValid() {
			t.Errorf("%s became %v", text, a)
		}
		if was, dup := seen[a]; dup {
			t.Errorf("%s equals %s", text, was)
		}
		seen[a] = text
	}
	if a := AddrFrom(netip.MustParseAddrPort("[::ffff:10.0.0.1]:7")); !a.Is4() || a.String() != "10.0.0.1:7" {
		t.Errorf("mapped address became %v", a)
	}
	if (Addr{}).IsValid() || (Addr{}).String() != "no address" {
		t.Error("the zero Addr is an address")
	}
	if a := AddrFrom(netip.MustParseAddrPort("10.0.0.1:7")); a.WithPort(9).Hash() == a.Hash() || a.WithPort(7).Hash() != a.Hash() {
		t.Error("hash")
	}
}

// BenchmarkEcho is one datagram there and back between two locked threads.
func BenchmarkEcho(b *testing.B) {
	for _, e := range []Engine{Plain, URing} {
		b.Run(string(e), func(b *testing.B) {
			underTest = e
			benchmarkEcho(b)
		})
	}
}

func benchmarkEcho(b *testing.B) {
	client, server := listen(b, "127.0.0.1:0", Config{}), listen(b, "127.0.0.1:0", Config{})
	go func() {
		runtime.LockOSThread()
		for {
			packets, err := server.Recv()
			for _, p := range packets {
				server.Send(p.From, p.Data)
			}
			if err == nil {
				_, err = server.Wait(time.Second)
			}
			if err != nil {
				return
			}
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	data := make([]byte, 160)
	b.ReportAllocs()
	for b.Loop() {
		client.Send(server.LocalAddr(), data)
		if _, err := client.Wait(patience); err != nil {
			b.Fatal(err)
		}
		receiveOne(b, client)
	}
}

func receiveOne(b *testing.B, s Loop) {
	for {
		packets, err := s.Recv()
		if err != nil {
			b.Fatal(err)
		}
		if len(packets) > 0 {
			return
		}
		if _, err := s.Wait(patience); err != nil {
			b.Fatal(err)
		}
	}
}
