package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
)

// SectorBytes is the unit in which Mem tears writes: a sector is old or new
// after a crash, never mixed.
const SectorBytes = 512

// ErrCrashed is returned by every operation on a Mem that has crashed.
var ErrCrashed = errors.New("vfs: the disk has crashed")

// MemOptions configures a Mem.
type MemOptions struct {
	// Seed drives every random choice of the disk.
	Seed uint64
	// CapacityBytes limits the space of all files together; 0 means no limit.
	CapacityBytes int64
	// BlockBytes is the direct-I/O alignment; 0 means 512.
	BlockBytes int
	// NoDirect makes opening with Direct fail, like an old tmpfs.
	NoDirect bool
	// LieAboutSync makes Sync, SyncDir and DSync writes report success without
	// making anything durable. It exists to prove that crash tests can fail.
	LieAboutSync bool
	// ReadyBytes makes files opened for buffered writing say so (Readier).
	ReadyBytes int
}

// Mem is a crashable disk in memory. It starts no goroutine and reads no clock:
// the same calls with the same seed give the same bytes. Methods are safe for
// concurrent use, but only calls from one goroutine are deterministic.
type Mem struct {
	mu      sync.Mutex
	opt     MemOptions
	rnd     *rand.Rand
	dirs    map[string]bool
	now     map[string]*inode // what running programs see
	durable map[string]*inode // entries that survive a crash
	locks   map[string]bool
	faults  []*Fault
	ops     int64
	crashAt int64
	crashed bool
}

type inode struct {
	data    []byte // what running programs see
	dur     []byte // what survives
	dirty   map[int64]struct{}
	reserve int64
}

// NewMem returns an empty disk.
func NewMem(opt MemOptions) *Mem {
	if opt.BlockBytes == 0 {
		opt.BlockBytes = SectorBytes
	}
	return &Mem{
		opt: opt, rnd: rand.New(rand.NewPCG(opt.Seed, 0x6d656d)),
		dirs: map[string]bool{}, now: map[string]*inode{}, durable: map[string]*inode{}, locks: map[string]bool{},
	}
}

// Crash stops this disk (every later operation fails with ErrCrashed) and
// returns the disk that the machine finds at its next start: everything synced,
// and of the rest a random part, sector by sector, in no order; directory
// entries that were not synced likewise. Faults are not carried over.
func (m *Mem) Crash() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashed = true
	opt := m.opt
	opt.Seed = m.rnd.Uint64()
	n := NewMem(opt)
	for d := range m.dirs {
		n.dirs[d] = true
	}
	// Three moods, so that all-lost and all-kept are as likely as any mixture.
	keep := [3]float64{0, 0.5, 1}[m.rnd.IntN(3)]
	names := map[string]bool{}
	for k := range m.now {
		names[k] = true
	}
	for k := range m.durable {
		names[k] = true
	}
	survivors := map[*inode]*inode{}
	for _, name := range sortedKeys(names) {
		old, cur := m.durable[name], m.now[name]
		pick := old
		if old != cur && m.rnd.Float64() < keep {
			pick = cur
		}
		if pick == nil {
			continue
		}
		s := survivors[pick]
		if s == nil {
			s = pick.survivor(m.rnd, keep)
			survivors[pick] = s
		}
		n.now[name], n.durable[name] = s, s
	}
	return n
}

func (i *inode) survivor(r *rand.Rand, keep float64) *inode {
	out := append([]byte(nil), i.dur...)
	size := int64(len(i.dur))
	if cur := int64(len(i.data)); cur > size && r.Float64() < keep {
		// The length may be on disk without the bytes: they read as zeros.
		size += r.Int64N(cur - size + 1)
		if r.IntN(2) == 0 {
			size = cur
		}
	}
	sectors := make([]int64, 0, len(i.dirty))
	for s := range i.dirty {
		sectors = append(sectors, s)
	}
	sort.Slice(sectors, func(a, b int) bool { return sectors[a] < sectors[b] })
	if int64(len(out)) < size {
		out = append(out, make([]byte, size-int64(len(out)))...)
	}
	for _, s := range sectors {
		if r.Float64() >= keep {
			continue
		}
		from, to := s*SectorBytes, min((s+1)*SectorBytes, int64(len(i.data)), size)
		if from < to {
			copy(out[from:to], i.data[from:to])
		}
	}
	return &inode{data: append([]byte(nil), out...), dur: out, dirty: map[int64]struct{}{}}
}

// Clone returns an independent copy of what running programs see, all of it
// durable: a plain copy of the files, or a kill of the process without loss.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	opt := m.opt
	opt.Seed = m.rnd.Uint64()
	n := NewMem(opt)
	for d := range m.dirs {
		n.dirs[d] = true
	}
	for name, i := range m.now {
		c := &inode{data: append([]byte(nil), i.data...), dur: append([]byte(nil), i.data...), dirty: map[int64]struct{}{}, reserve: i.reserve}
		n.now[name], n.durable[name] = c, c
	}
	return n
}

// Kill forgets the locks, as the end of the process that held them does, and
// leaves files as they are: a kill -9 loses nothing that the system accepted.
func (m *Mem) Kill() {
	m.mu.Lock()
	m.locks = map[string]bool{}
	m.mu.Unlock()
}

// ReadFile returns a copy of a file's bytes.
func (m *Mem) ReadFile(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.now[filepath.Clean(name)]
	if i == nil {
		return nil, notExist("read", name)
	}
	return append([]byte(nil), i.data...), nil
}

// WriteFile replaces a file's bytes durably: the way tests damage a disk.
func (m *Mem) WriteFile(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = filepath.Clean(name)
	i := &inode{data: append([]byte(nil), data...), dur: append([]byte(nil), data...), dirty: map[int64]struct{}{}}
	m.now[name], m.durable[name] = i, i
	m.dirs[filepath.Dir(name)] = true
}

// SetCapacity changes the size of the disk in bytes; 0 means no limit.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	m.opt.CapacityBytes = bytes
	m.mu.Unlock()
}

// UsedBytes is the space taken by files and reservations.
func (m *Mem) UsedBytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used()
}

func (m *Mem) used() int64 {
	var n int64
	seen := map[*inode]bool{}
	for _, i := range m.now {
		if !seen[i] {
			seen[i] = true
			n += i.space()
		}
	}
	return n
}

func (i *inode) space() int64 { return max(int64(len(i.data)), i.reserve) }

func notExist(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

func sortedKeys(m map[string]bool) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// MkdirAll implements FS. Directories of Mem are durable at once.
func (m *Mem) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpMkdir, dir); err != nil {
		return err
	}
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		m.dirs[d] = true
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// Create implements FS.
func (m *Mem) Create(name string, flag Flag) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = filepath.Clean(name)
	if _, err := m.begin(OpCreate, name); err != nil {
		return nil, err
	}
	if flag&Direct != 0 && m.opt.NoDirect {
		return nil, fmt.Errorf("%w: %s", ErrNoDirect, name)
	}
	if m.now[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	i := &inode{dirty: map[int64]struct{}{}}
	m.now[name] = i
	return m.open(name, i, flag), nil
}

// Open implements FS.
func (m *Mem) Open(name string, flag Flag) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = filepath.Clean(name)
	if _, err := m.begin(OpOpen, name); err != nil {
		return nil, err
	}
	if flag&Direct != 0 && m.opt.NoDirect {
		return nil, fmt.Errorf("%w: %s", ErrNoDirect, name)
	}
	i := m.now[name]
	if i == nil {
		return nil, notExist("open", name)
	}
	return m.open(name, i, flag), nil
}

func (m *Mem) open(name string, i *inode, flag Flag) *memFile {
	f := &memFile{m: m, i: i, name: name, flag: flag, block: 1}
	if flag&Direct != 0 {
		f.block = m.opt.BlockBytes
	}
	return f
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = filepath.Clean(name)
	if _, err := m.begin(OpRemove, name); err != nil {
		return err
	}
	if m.now[name] == nil {
		return notExist("remove", name)
	}
	delete(m.now, name)
	return nil
}

// List implements FS.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir = filepath.Clean(dir)
	if _, err := m.begin(OpList, dir); err != nil {
		return nil, err
	}
	if !m.dirs[dir] {
		return nil, notExist("list", dir)
	}
	names := map[string]bool{}
	for name := range m.now {
		if filepath.Dir(name) == dir {
			names[filepath.Base(name)] = true
		}
	}
	for d := range m.dirs {
		if d != dir && filepath.Dir(d) == dir {
			names[filepath.Base(d)] = true
		}
	}
	return sortedKeys(names), nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir = filepath.Clean(dir)
	if _, err := m.begin(OpSyncDir, dir); err != nil {
		return err
	}
	if m.opt.LieAboutSync {
		return nil
	}
	for name := range m.durable {
		if filepath.Dir(name) == dir && m.now[name] == nil {
			delete(m.durable, name)
		}
	}
	for name, i := range m.now {
		if filepath.Dir(name) == dir {
			m.durable[name] = i
		}
	}
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = filepath.Clean(name)
	if _, err := m.begin(OpLock, name); err != nil {
		return nil, err
	}
	if m.locks[name] {
		return nil, ErrLocked
	}
	m.locks[name] = true
	if m.now[name] == nil {
		i := &inode{dirty: map[int64]struct{}{}}
		m.now[name] = i
	}
	return memLock{m, name}, nil
}

type memLock struct {
	m    *Mem
	name string
}

func (l memLock) Close() error {
	l.m.mu.Lock()
	delete(l.m.locks, l.name)
	l.m.mu.Unlock()
	return nil
}

type memFile struct {
	m     *Mem
	i     *inode
	name  string
	flag  Flag
	block int
}

func (f *memFile) Fd() uintptr    { return ^uintptr(0) }
func (f *memFile) BlockSize() int { return f.block }
func (f *memFile) Close() error   { return nil }

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.m.crashed {
		return 0, ErrCrashed
	}
	return int64(len(f.i.data)), nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if _, err := f.m.begin(OpRead, f.name); err != nil {
		return 0, err
	}
	if off >= int64(len(f.i.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.i.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	m := f.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.flag&ReadOnly != 0 {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: syscall.EBADF}
	}
	if b := int64(f.block); b > 1 && (off%b != 0 || int64(len(p))%b != 0) {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: syscall.EINVAL}
	}
	fault, err := m.begin(OpWrite, f.name)
	if err != nil && fault == nil && !errors.Is(err, errCrashNow) {
		return 0, err
	}
	n := len(p)
	if fault != nil {
		n = min(fault.ShortBytes, len(p))
	}
	if end := off + int64(n); m.opt.CapacityBytes > 0 && end > f.i.space() {
		if room := m.opt.CapacityBytes - m.used(); end-f.i.space() > room {
			return 0, &fs.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
		}
	}
	f.i.write(p[:n], off)
	if err != nil {
		if errors.Is(err, errCrashNow) {
			err = ErrCrashed
		}
		return n, err
	}
	if f.flag&DSync != 0 && !m.opt.LieAboutSync {
		f.i.sync(off, off+int64(n))
	}
	return n, nil
}

// ReadyBytes implements Readier.
func (f *memFile) ReadyBytes() int {
	if f.flag&(ReadOnly|Direct|DSync) != 0 {
		return 0
	}
	return f.m.opt.ReadyBytes
}

// Ready implements Readier. Whatever was written there is lost, as on a real disk.
func (f *memFile) Ready(off int64, n int) error {
	_, err := f.WriteAt(make([]byte, n), off)
	return err
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if _, err := f.m.begin(OpSync, f.name); err != nil {
		return err
	}
	if !f.m.opt.LieAboutSync {
		f.i.sync(0, int64(len(f.i.data)))
	}
	return nil
}

func (f *memFile) Allocate(size int64) error {
	m := f.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpAllocate, f.name); err != nil {
		return err
	}
	if m.opt.CapacityBytes > 0 && size > f.i.space() && size-f.i.space() > m.opt.CapacityBytes-m.used() {
		return &fs.PathError{Op: "allocate", Path: f.name, Err: syscall.ENOSPC}
	}
	f.i.reserve = max(f.i.reserve, size)
	return nil
}

func (i *inode) write(p []byte, off int64) {
	end := off + int64(len(p))
	if grow := end - int64(len(i.data)); grow > 0 {
		i.data = append(i.data, make([]byte, grow)...)
	}
	copy(i.data[off:end], p)
	for s := off / SectorBytes; s*SectorBytes < end; s++ {
		i.dirty[s] = struct{}{}
	}
}

// sync makes the dirty sectors that touch [from, to) and the length durable.
func (i *inode) sync(from, to int64) {
	if grow := len(i.data) - len(i.dur); grow > 0 {
		i.dur = append(i.dur, make([]byte, grow)...)
	}
	one := func(s int64) {
		lo, hi := s*SectorBytes, min((s+1)*SectorBytes, int64(len(i.data)))
		copy(i.dur[lo:hi], i.data[lo:hi])
		delete(i.dirty, s)
	}
	if from == 0 && to == int64(len(i.data)) {
		for s := range i.dirty {
			one(s)
		}
		return
	}
	for s := from / SectorBytes; s*SectorBytes < to; s++ {
		if _, ok := i.dirty[s]; ok {
			one(s)
		}
	}
}

// matches reports whether a fault's path pattern is part of name.
func matches(pattern, name string) bool {
	return pattern == "" || strings.Contains(name, pattern)
}
