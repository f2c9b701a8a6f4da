//go:build linux && (amd64 || arm64)

package ring

import (
	"fmt"
	"net/netip"
)

// Engine names a way to make a Loop.
type Engine string

const (
	// Auto is what was measured to be faster for most loads: plain. docs/ARCHITECTURE.md has the figures.
	Auto Engine = "auto"
	// URing is io_uring where the kernel has what it needs and allows it, and else plain.
	URing Engine = "uring"
	// Plain is plain system calls.
	Plain Engine = "plain"
)

// ParseEngine reads the name of an engine.
func ParseEngine(name string) (Engine, error) {
	switch e := Engine(name); e {
	case Auto, URing, Plain:
		return e, nil
	}
	return "", fmt.Errorf("there is no engine %q; auto, uring and plain are the engines", name)
}

// Open is Listen with an engine. It returns which one it took, and why that is not the one that was asked for.
func Open(addr netip.AddrPort, cfg Config, e Engine) (l Loop, taken Engine, why error, err error) {
	if e == URing {
		u, err := ListenUring(addr, cfg)
		if err == nil {
			return u, URing, nil, nil
		}
		why = err // if it was the address, Listen finds out as well
	}
	s, err := Listen(addr, cfg)
	if err != nil {
		return nil, "", nil, err
	}
	return s, Plain, why, nil
}
