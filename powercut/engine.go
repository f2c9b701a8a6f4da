package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/btrlog/btrlog/powercut/guest"
	"github.com/btrlog/btrlog/powercut/judge"
)

// engineCut is one way to cut the storage engine alone.
type engineCut struct {
	mode, style string // of the worker
	device      string // "cache" or "flakey"
	roll        bool   // cut at the first requests behind a roll
	lying       bool   // a device that answers flushes without doing them: a control
}

func (e *engineCut) name() string {
	n := fmt.Sprintf("lst-%s-%s-%s", e.mode, e.style, e.device)
	if e.roll {
		n += "-roll"
	}
	if e.lying {
		n += "-lying"
	}
	return n
}

// control says that the cut must lose something.
func (e *engineCut) control() bool { return e.lying || e.style == guest.StyleClaim }

var engineKinds = []engineCut{
	{mode: "direct", style: guest.StylePipeline, device: "cache", roll: true},
	{mode: "buffered", style: guest.StyleCommit, device: "cache"},
	{mode: "direct", style: guest.StyleCommit, device: "cache", roll: true},
	{mode: "buffered", style: guest.StylePipeline, device: "cache", roll: true},
	{mode: "direct", style: guest.StylePipeline, device: "cache"},
	{mode: "buffered", style: guest.StyleCommit, device: "flakey"},
	{mode: "buffered", style: guest.StyleSoft, device: "cache"},
	{mode: "direct", style: guest.StyleSoft, device: "cache"},
	{mode: "direct", style: guest.StylePipeline, device: "flakey"},
}

// engineControls must lose something, or the cuts cut nothing.
var engineControls = []engineCut{
	{mode: "buffered", style: guest.StyleClaim, device: "cache"},
	{mode: "buffered", style: guest.StyleClaim, device: "flakey"},
	{mode: "direct", style: guest.StyleCommit, device: "cache", lying: true},
}

// session is one worker, seen from outside.
type session struct {
	lis  net.Listener
	conn net.Conn
	stop chan struct{} // closed when the connection has ended

	mu     sync.Mutex
	opened bool
	failed string
	text   string
	acks   int
	last   guest.Event // the last acknowledgement
	rolls  int
}

// start starts a worker on the store of a judge and feeds it what the worker says.
func (w *world) startWorker(e *engineCut, style string, j *judge.Store, v *judge.Verdict) (*session, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	run := uint64(0)
	if style != "" {
		run = j.Run()
	}
	s := &session{lis: lis, stop: make(chan struct{})}
	args := []string{guest.AgentPath, "-host", fmt.Sprintf("10.0.2.2:%d", lis.Addr().(*net.TCPAddr).Port), "-dir", mountPoint(lstDevice) + "/" + j.Name,
		"-mode", e.mode, "-style", style, "-run", fmt.Sprint(run)}
	go s.read(j, v)
	if err := w.do(guest.Order{Do: guest.DoStart, Name: "worker", Args: args}); err != nil {
		lis.Close()
		return nil, err
	}
	if err := within(60*time.Second, func() bool { ok, _ := s.state(); return ok || s.over() }); err != nil {
		return s, fmt.Errorf("the worker does not get under way: %w", err)
	}
	if ok, why := s.state(); !ok {
		return s, fmt.Errorf("the worker has ended: %s; see %s", why, w.m.Console())
	}
	return s, nil
}

func (s *session) state() (opened bool, failed string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened, s.failed
}

func (s *session) over() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

func (s *session) progress() (acks, rolls int, last guest.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acks, s.rolls, s.last
}

// read owns the judge until the connection ends.
func (s *session) read(j *judge.Store, v *judge.Verdict) {
	defer close(s.stop)
	c, err := s.lis.Accept()
	if err != nil {
		return // the session was given up
	}
	s.mu.Lock()
	s.conn = c
	s.mu.Unlock()
	r := json.NewDecoder(bufio.NewReader(c))
	for {
		var e guest.Event
		if err := r.Decode(&e); err != nil {
			return
		}
		now := time.Now()
		s.mu.Lock()
		switch e.Kind {
		case "opened":
			s.opened, s.text = true, e.Text
		case "failed":
			s.failed = e.Text
		case "ack":
			s.acks++
			if s.last.Segment != 0 && e.Segment > s.last.Segment {
				s.rolls++
			}
			s.last = e
		}
		s.mu.Unlock()
		if e.Kind == "ack" || e.Kind == "trim" {
			j.Event(&e, now)
		} else if v != nil {
			j.Found(&e, v)
		}
	}
}

// end waits for the connection's end, which the end of the worker brings.
func (s *session) end() error {
	defer s.lis.Close()
	err := within(30*time.Second, s.over)
	if err != nil {
		s.mu.Lock()
		if s.conn != nil {
			s.conn.Close()
		}
		s.mu.Unlock()
		return fmt.Errorf("the worker's connection stays open: %w", err)
	}
	return nil
}

// engineCut lets a worker write, cuts its device, and judges what a second worker reads.
func (w *world) engineCut(e *engineCut, rec *record) error {
	name := e.mode
	if e.control() {
		name = e.name() // what a control has broken is not used again
	}
	j := w.stores[name]
	if j == nil {
		j = judge.NewStore(name)
		w.stores[name] = j
	}
	d := w.disks[lstDevice]
	d.SetLying(e.lying)
	defer d.SetLying(false)
	ignored := new(judge.Verdict)
	s, err := w.startWorker(e, e.style, j, ignored)
	if err != nil {
		return err
	}
	j.Forget()
	start, _, _ := s.progress()
	if err := w.awaitMoment(e, s); err != nil {
		return errors.Join(err, w.do(guest.Order{Do: guest.DoKill, Names: []string{"worker"}}))
	}
	devices, worker := []string{lstDevice}, []string{"worker"}
	if e.device == "cache" {
		w.freeze(rec, devices)
	} else {
		rec.cutAt = time.Now()
		if err := w.do(guest.Order{Do: guest.DoSuspend, Names: devices}); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond) // what was acknowledged at the cut arrives; later is as good, for the device is silent
	if err := w.do(guest.Order{Do: guest.DoKill, Names: worker}); err != nil {
		return err
	}
	if e.device == "cache" {
		d.Release()
	} else if err := w.do(guest.Order{Do: guest.DoDrop, Names: devices}); err != nil {
		return err
	}
	if err := w.do(guest.Order{Do: guest.DoWait, Names: worker}); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	acks, _, last := s.progress()
	rec.LastAck = fmt.Sprintf("%d:%d", last.Segment, last.Offset)
	rec.LoadRecords = uint64(acks - start)
	if err := w.unmount(devices...); err != nil {
		return err
	}
	if e.device == "cache" {
		d.PowerOn()
	} else if err := w.do(guest.Order{Do: guest.DoPass, Names: devices}); err != nil {
		return err
	}
	if err := w.mount(devices...); err != nil {
		return err
	}
	return w.judgeEngine(e, j, rec)
}

func (w *world) judgeEngine(e *engineCut, j *judge.Store, rec *record) error {
	v := new(judge.Verdict)
	s, err := w.startWorker(e, "", j, v)
	if s != nil {
		err = errors.Join(err, s.end())
		rec.Recovery = s.text
	}
	if err == nil {
		err = w.do(guest.Order{Do: guest.DoWait, Names: []string{"worker"}})
	}
	if err != nil {
		v.Problems = append(v.Problems, err.Error())
	}
	j.Finish(rec.cutAt, v)
	rec.Verdicts = append(rec.Verdicts, *v)
	return nil
}

// awaitMoment waits until it is time to cut.
func (w *world) awaitMoment(e *engineCut, s *session) error {
	least := 60 + w.rng.IntN(400)
	err := within(90*time.Second, func() bool { n, _, _ := s.progress(); return n >= least || s.over() })
	if err != nil || !e.roll || s.over() {
		return err
	}
	// The offset says how near the roll is; freeze then counts requests from there.
	near := int64(guest.WorkerSegmentBytes - (4+w.rng.IntN(12))<<10)
	return within(90*time.Second, func() bool {
		_, _, last := s.progress()
		return last.Offset >= near || s.over()
	})
}
