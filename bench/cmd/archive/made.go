package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

// madeLog is the log that a made store holds.
const madeLog = protocol.LogID(0x6d616465)

const madeSegment = 16 << 20

// made is a store of one log, as large as one likes, that takes no room: all segments hold the same records, which is allowed,
// and differ in what stands before and behind them. Every checksum and hash is right.
type made struct {
	objstore.Store // for the keys; nothing else is in it
	block          []byte
	objects        []madeObject
	byKey          map[string]*madeObject
}

type madeObject struct {
	key        string
	head, tail []byte
}

func newMade(size string) (*made, error) {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return nil, err
	}
	s := &made{Store: memory.New(memory.Options{}), byKey: make(map[string]*madeObject)}
	a, err := archive.New(s.Store, archive.Options{})
	if err != nil {
		return nil, err
	}
	const record = 4096
	per := int64(madeSegment / protocol.EncodedSize(record))
	data := make([]byte, per*record)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(data) // never fails
	var body []byte
	for first, left := int64(1), n; left > 0; first, left = first+per, left-per*record {
		p := protocol.Segment{Log: madeLog, Label: 1, SegStart: protocol.LSN(first), First: protocol.LSN(first), Last: protocol.LSN(first + per - 1), CLSN: protocol.LSN(first + per - 1)}
		var key archive.Key
		body, key, err = archive.Build(body, p, func(yield func(archive.Record, error) bool) {
			for i := range per {
				if !yield(archive.Record{LSN: protocol.LSN(first + i), Label: 1, Data: data[i*record : (i+1)*record]}, nil) {
					return
				}
			}
		})
		if err != nil {
			return nil, err
		}
		const head = 72 // docs/FORMAT-ARCHIVE.md
		block := int(per) * protocol.EncodedSize(record)
		if s.block == nil {
			s.block = bytes.Clone(body[head : head+block])
		}
		s.objects = append(s.objects, madeObject{a.KeyString(key), bytes.Clone(body[:head]), bytes.Clone(body[head+block:])})
	}
	for i := range s.objects {
		s.byKey[s.objects[i].key] = &s.objects[i]
	}
	return s, nil
}

func (s *made) size(o *madeObject) int64 { return int64(len(o.head) + len(s.block) + len(o.tail)) }

func (s *made) info(o *madeObject) objstore.Info {
	return objstore.Info{Key: o.key, Size: s.size(o), ETag: strconv.Quote(o.key[len(o.key)-32:])}
}

func (s *made) List(ctx context.Context, prefix, after string, limit int) (objstore.Page, error) {
	if limit == 0 {
		limit = objstore.MaxListLimit
	}
	var page objstore.Page
	for i := sort.Search(len(s.objects), func(i int) bool { return s.objects[i].key > after }); i < len(s.objects); i++ {
		if !strings.HasPrefix(s.objects[i].key, prefix) {
			continue
		}
		if len(page.Objects) == limit {
			page.More = true
			break
		}
		page.Objects = append(page.Objects, s.info(&s.objects[i]))
	}
	return page, nil
}

func (s *made) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	o := s.byKey[key]
	if o == nil {
		return s.Store.Get(ctx, key, r) // says that it is not there
	}
	from, to, ok := r.Resolve(s.size(o))
	if !ok {
		return nil, objstore.Info{}, &objstore.Error{Store: "made", Op: "get", Key: key, Kind: objstore.ErrInvalid, Err: fmt.Errorf("range %+v", r)}
	}
	var parts []io.Reader
	at := int64(0)
	for _, p := range [][]byte{o.head, s.block, o.tail} {
		lo, hi := max(from, at), min(to, at+int64(len(p)))
		if lo < hi {
			parts = append(parts, bytes.NewReader(p[lo-at:hi-at]))
		}
		at += int64(len(p))
	}
	return io.NopCloser(io.MultiReader(parts...)), s.info(o), nil
}

func (s *made) Head(ctx context.Context, key string) (objstore.Info, error) {
	if o := s.byKey[key]; o != nil {
		return s.info(o), nil
	}
	return s.Store.Head(ctx, key)
}
