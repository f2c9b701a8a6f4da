package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

// restore builds the machine anew from what the store holds.
func (c *Core) restore(inc protocol.Incarnation, now protocol.Time) error {
	m := protocol.NewShard(inc, c.rules)
	c.pieces = make(map[protocol.LogID]int)
	c.unread = nil
	v := c.store.View()
	if err := c.restoreStates(v, m); err != nil {
		return err
	}
	var streams []lst.StreamID
	v.Streams(nil, func(id lst.StreamID) bool {
		streams = append(streams, id)
		return true
	})
	// Streams ascend, so those of one log stand together.
	var d damageList
	for i, id := range streams {
		log := protocol.LogID(binary.BigEndian.Uint64(id[:8]))
		if i == 0 || log != d.log {
			d.tell(m)
			st, ok := m.Log(log)
			if !ok {
				// The state value is committed before the first record. Without it the promise is unknown, and a node
				// that answered for the log could break one.
				return fmt.Errorf("stream %v holds records of log %v, which has no state value", id, log)
			}
			d = damageList{log: log, above: st.ArchivedThrough, known: slices.Clone(st.Damaged)}
		}
		u := unread{stream: id, log: log}
		if err := restoreStream(v, m, id, now, &d, &u); err != nil {
			return err
		}
		if u.to != 0 {
			c.unread = append(c.unread, u)
		}
	}
	d.tell(m)
	// The listings above have no error of their own: a damaged index shows what it can. What it does not show would be called
	// absent (P3), so the shard must not serve.
	if err := v.Err(); err != nil {
		return fmt.Errorf("what the store holds cannot be listed: %w", err)
	}
	for _, s := range m.Logs() {
		m.RestoreDone(s.Log)
	}
	c.machine = m
	return nil
}

// unread are records of a stream that the machine did not take at a restore, from the first to the last: they could not be read, are void
// or lost, or their log is dropped that far. The machine names no label for them when it drops, and a stream of which it holds
// nothing else would never be trimmed: one such record would keep its segment file, and all files behind it, until the node is
// replaced.
type unread struct {
	stream   lst.StreamID
	log      protocol.LogID
	from, to protocol.LSN
}

func (u *unread) add(lsn protocol.LSN) {
	if u.to == 0 {
		u.from = lsn
	}
	u.to = lsn
}

// releaseUnread trims what could not be read as far as its log is dropped: the machine's own trims went that far in this commit or one
// before, so nothing that it holds is below, and what is to be called unknown (P3) is above.
func (c *Core) releaseUnread() {
	left := c.unread[:0]
	for _, u := range c.unread {
		st, ok := c.machine.Log(u.log)
		through := min(u.to, st.DroppedThrough)
		if !ok || st.Deleted {
			through = u.to
		}
		if has, ok := c.store.View().Stat(u.stream); !ok || has.Trim > uint64(u.to) {
			continue // its label went whole, or was trimmed further
		}
		if through >= u.from {
			c.batch.Trim(u.stream, uint64(through)+1)
			u.from = through + 1
		}
		if u.from <= u.to {
			left = append(left, u)
		}
	}
	c.unread = left
}

// maxSweep bounds the streams that one start deletes; the next one goes on.
const maxSweep = 10_000

// sweep deletes streams of which nothing can be needed: those of deleted logs, and empty ones under labels that were outlived.
// Each epoch of each log would leave one behind otherwise. It needs no force: what comes back is swept again.
func (c *Core) sweep() error {
	v := c.store.View()
	c.batch.Reset()
	var log protocol.LogStatus
	v.Streams(nil, func(id lst.StreamID) bool {
		if l := protocol.LogID(binary.BigEndian.Uint64(id[:8])); l != log.Log {
			log, _ = c.machine.Log(l)
		}
		st, ok := v.Stat(id)
		label := protocol.Epoch(binary.BigEndian.Uint64(id[8:]))
		if ok && (log.Deleted || st.Count == 0 && label < log.Activated) {
			c.batch.DeleteStream(id)
		}
		return c.batch.Len() < maxSweep
	})
	if err := v.Err(); err != nil {
		return fmt.Errorf("what the store holds cannot be listed: %w", err)
	}
	if c.batch.Len() == 0 {
		return nil
	}
	_, err := c.store.Commit(&c.batch, lst.Acknowledged)
	if errors.Is(err, lst.ErrNoSpace) {
		return nil // later
	}
	return err
}

// restoreStates puts the pieces of the state values together and hands them to the machine.
func (c *Core) restoreStates(v lst.View, m *protocol.Shard) error {
	var err error
	var log protocol.LogID
	var state []byte
	want, got := 0, 0
	finish := func() {
		if want == 0 || err != nil {
			return
		}
		if got != want {
			err = fmt.Errorf("state of log %v has %d of %d pieces", log, got, want)
			return
		}
		if want > 1 {
			c.pieces[log] = want
		}
		err = m.Restore(log, state)
	}
	v.KVs([]byte{stateKeyPrefix}, func(key, value []byte) bool {
		switch {
		case len(key) == 9 && len(value) >= 2:
			finish()
			log = protocol.LogID(binary.BigEndian.Uint64(key[1:]))
			want, got = int(binary.BigEndian.Uint16(value)), 1
			state = append(state[:0], value[2:]...)
			if want == 0 {
				err = fmt.Errorf("state of log %v claims no pieces", log)
			}
		case len(key) == 10 && want > 0 && bytes.Equal(key[:9], c.stateKey(log, 0)) && int(key[9]) == got:
			got++
			state = append(state, value...)
		default:
			err = fmt.Errorf("key %x of %d bytes is no piece of a log's state", key, len(value))
		}
		return err == nil
	})
	finish()
	return err
}

// restoreStream hands the records of one stream to the machine. A record whose bytes are damaged is "unknown" (P3, R4), the
// more so an index that cannot be read. An I/O error is neither: it may pass, and the start fails instead.
func restoreStream(v lst.View, m *protocol.Shard, id lst.StreamID, now protocol.Time, d *damageList, u *unread) error {
	log := protocol.LogID(binary.BigEndian.Uint64(id[:8]))
	label := protocol.Epoch(binary.BigEndian.Uint64(id[8:]))
	if log == 0 || label == 0 {
		return fmt.Errorf("stream %v is no stream of a log", id)
	}
	var bad *lst.Corruption
	for _, e := range v.Extents(id, nil) {
		for at := e.From; at < e.To; {
			it := v.Range(id, at, e.To)
			for it.Next() {
				held, err := m.RestoreRecord(log, label, protocol.LSN(it.Seq()), it.Value(), now)
				if err != nil {
					return err
				}
				if !held {
					u.add(protocol.LSN(it.Seq()))
				}
				at = it.Seq() + 1
			}
			switch err := it.Err(); {
			case err == nil:
				at = e.To
			case errors.As(err, &bad):
				d.add(protocol.LSN(at))
				u.add(protocol.LSN(at))
				at++
			default:
				return err
			}
		}
	}
	return nil
}

// maxDamage bounds the ranges that a restore tells of one log; the machine keeps no more than protocol.MaxExtents.
const maxDamage = protocol.MaxExtents / 4

// damageList collects the LSNs of one log that cannot be read.
type damageList struct {
	log   protocol.LogID
	above protocol.LSN     // what is archived needs no local copy
	known []protocol.Range // noted by an earlier start
	lsns  []protocol.LSN
}

func (d *damageList) add(lsn protocol.LSN) {
	if lsn > d.above && !slices.ContainsFunc(d.known, func(r protocol.Range) bool { return r.From <= lsn && lsn <= r.To }) {
		d.lsns = append(d.lsns, lsn)
	}
}

// tell hands the damage to the machine as few ranges. When there are too many, neighbours are joined over the gap: calling a
// readable record unknown costs a question to another node, calling an unreadable one absent costs the record.
func (d *damageList) tell(m *protocol.Shard) {
	slices.Sort(d.lsns)
	for gap := protocol.LSN(1); len(d.lsns) > 0; gap *= 2 {
		var rs []protocol.Range
		for _, lsn := range d.lsns {
			if n := len(rs); n > 0 && lsn-rs[n-1].To <= gap {
				rs[n-1].To = lsn
			} else {
				rs = append(rs, protocol.Range{From: lsn, To: lsn})
			}
		}
		if len(rs)+len(d.known) <= maxDamage || len(rs) == 1 {
			for _, r := range rs {
				m.RestoreDamage(d.log, r)
			}
			return
		}
	}
}
