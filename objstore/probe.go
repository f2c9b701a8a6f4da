package objstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

const (
	probeRacers  = 8
	probeRounds  = 4
	probeRetries = 20
)

// Probe tries, on scratch keys under prefix, whether the store keeps its conditions: one at a time and then
// with 8 concurrent writers on each of 4 keys, several times. It returns nil, or an error that says which condition is
// broken; BtrLog must not run on such a store, since two writers would each believe to own a log. It is a trial, not a
// proof: a store whose conditions break only rarely can pass. It takes about 60 requests and
// deletes what it wrote. Several processes may probe one store at once.
func Probe(ctx context.Context, s Store, prefix string) error {
	var id [12]byte
	rand.Read(id[:])
	p := &prober{ctx: ctx, s: s, base: "probe-" + hex.EncodeToString(id[:])}
	if prefix != "" {
		p.base = prefix + "/" + p.base
	}
	err := p.run()
	for _, k := range p.keys {
		// Left-overs of a failing store do no harm: their names are never used again.
		_ = s.Delete(ctx, k)
	}
	if err != nil {
		return fmt.Errorf("objstore %s: start-up self-test: %w", s, err)
	}
	return nil
}

type prober struct {
	ctx  context.Context
	s    Store
	base string
	keys []string
}

func (p *prober) key(name string) string {
	k := p.base + "-" + name
	p.keys = append(p.keys, k)
	return k
}

const (
	createBroken  = "create-if-absent (If-None-Match: *) is broken"
	replaceBroken = "replace-if-match (If-Match) is broken"
)

func (p *prober) run() error {
	if err := p.create(); err != nil {
		return err
	}
	if err := p.replace(); err != nil {
		return err
	}
	// The rounds run at once, each on a key of its own: a store that lets one object be written once in a second would make them long.
	var wg sync.WaitGroup
	var failed [probeRounds]error
	for round := range probeRounds {
		key := p.key(fmt.Sprintf("race%d", round))
		wg.Go(func() { failed[round] = p.round(key) })
	}
	wg.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// round is a race to create an object, and two to replace it.
func (p *prober) round(key string) error {
	body, err := p.race(key, "create", IfAbsent(), createBroken)
	if err != nil {
		return err
	}
	for swap := range 2 {
		info, err := p.look(key, body)
		if err != nil {
			return err
		}
		if body, err = p.race(key, fmt.Sprintf("swap%d", swap), IfMatch(info.ETag), replaceBroken); err != nil {
			return err
		}
	}
	return nil
}

// broken names a condition as the cause of err, if err is about conditions at all.
func broken(condition, what string, err error) error {
	if errors.Is(err, ErrDenied) || Retryable(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %s: %w", condition, what, err)
}

func (p *prober) create() error {
	key := p.key("create")
	if err := p.mustPut(key, "first", IfAbsent()); err != nil {
		return broken(createBroken, "creating a fresh key", err)
	}
	if err := p.mustFail(key, "second", IfAbsent()); err != nil {
		return broken(createBroken, "creating a key that exists", err)
	}
	if _, err := p.look(key, "first"); err != nil {
		return fmt.Errorf("%s: %w", createBroken, err)
	}
	return nil
}

func (p *prober) replace() error {
	key := p.key("replace")
	if err := p.mustFail(key, "zero", IfMatch("d41d8cd98f00b204e9800998ecf8427e")); err != nil {
		return broken(replaceBroken, "replacing an absent key", err)
	}
	if err := p.mustPut(key, "first", Always()); err != nil {
		return err
	}
	first, err := p.look(key, "first")
	if err != nil {
		return err
	}
	if err := p.mustPut(key, "second", IfMatch(first.ETag)); err != nil {
		return broken(replaceBroken, "replacing the current version", err)
	}
	if err := p.mustFail(key, "third", IfMatch(first.ETag)); err != nil {
		return broken(replaceBroken, "replacing an old version", err)
	}
	if _, err := p.look(key, "second"); err != nil {
		return fmt.Errorf("%s: %w", replaceBroken, err)
	}
	return nil
}

// put retries what may be retried. An unknown outcome is returned as it is.
func (p *prober) put(key, body string, c Condition) error {
	pause := 5 * time.Millisecond
	for try := 1; ; try++ {
		_, err := p.s.Put(p.ctx, key, []byte(body), nil, c)
		if err == nil || !Retryable(err) || try == probeRetries {
			return err
		}
		// With jitter, so that racers who were all refused do not meet again.
		t := time.NewTimer(pause/2 + mathrand.N(pause))
		select {
		case <-t.C:
		case <-p.ctx.Done():
			t.Stop()
			return err
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

func (p *prober) mustPut(key, body string, c Condition) error {
	for try := 1; ; try++ {
		err := p.put(key, body, c)
		if !errors.Is(err, ErrPrecondition) && !errors.Is(err, ErrUnknown) {
			return err
		}
		// It may be an earlier try of mine whose reply was lost.
		if _, lookErr := p.look(key, body); lookErr == nil {
			return nil
		}
		if errors.Is(err, ErrPrecondition) || try == probeRetries || p.ctx.Err() != nil {
			return err
		}
	}
}

func (p *prober) mustFail(key, body string, c Condition) error {
	err := p.put(key, body, c)
	switch {
	case errors.Is(err, ErrPrecondition), errors.Is(err, ErrUnknown):
		return nil // after an unknown outcome the look that follows decides
	case err == nil:
		return fmt.Errorf("the store accepted it; it ignores the condition")
	}
	return err
}

func (p *prober) look(key, want string) (Info, error) {
	var err error
	for range 3 {
		var body []byte
		var info Info
		if body, info, err = ReadAll(p.ctx, p.s, key, 1024); err == nil {
			if string(body) != want {
				return info, fmt.Errorf("%q holds %q after %q was written", key, body, want)
			}
			return info, nil
		}
		if !errors.Is(err, ErrUnavailable) {
			break
		}
	}
	return Info{}, err
}

// race lets all racers write under one condition, and returns the winner's body.
func (p *prober) race(key, name string, c Condition, condition string) (string, error) {
	var (
		wg      sync.WaitGroup
		ready   sync.WaitGroup
		results [probeRacers]error
	)
	body := func(i int) string { return fmt.Sprintf("%s of %s by writer %d", name, p.base, i) }
	ready.Add(probeRacers)
	for i := range probeRacers {
		wg.Go(func() {
			ready.Done()
			ready.Wait()
			results[i] = p.put(key, body(i), c)
		})
	}
	wg.Wait()
	var winners []int
	open := false
	for i, err := range results {
		switch {
		case err == nil:
			winners = append(winners, i)
		case errors.Is(err, ErrUnknown), Retryable(err):
			open = true
		case !errors.Is(err, ErrPrecondition):
			return "", err
		}
	}
	if len(winners) > 1 {
		return "", fmt.Errorf("%s under concurrency: writers %v all succeeded on one key", condition, winners)
	}
	got, _, err := ReadAll(p.ctx, p.s, key, 1024)
	if err != nil {
		return "", fmt.Errorf("reading %q after a race: %w", key, err)
	}
	if len(winners) == 1 && string(got) != body(winners[0]) {
		return "", fmt.Errorf("%s under concurrency: writer %d succeeded but the key holds %q", condition, winners[0], got)
	}
	if len(winners) == 0 && !open {
		for i := range probeRacers {
			// A client library that retries by itself turns a lost reply into a refusal.
			if string(got) == body(i) {
				return string(got), nil
			}
		}
		return "", fmt.Errorf("%s under concurrency: all writers were refused", condition)
	}
	return string(got), nil
}
