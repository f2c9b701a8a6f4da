// Package vm builds and runs the virtual machine whose power is cut.
package vm

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Kernel is an unpacked kernel package of Debian.
type Kernel struct {
	Image   string            // path of the kernel
	Release string            // such as 6.1.0-57-cloud-amd64
	modules map[string]string // path by name
}

// FindKernel looks into a directory that a kernel package was unpacked into.
func FindKernel(dir string) (*Kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) == 0 {
		return nil, fmt.Errorf("no kernel in %s/boot; unpack a package linux-image-*-amd64 there (dpkg-deb -x)", dir)
	}
	slices.Sort(images)
	k := &Kernel{Image: images[len(images)-1], modules: make(map[string]string)}
	k.Release = strings.TrimPrefix(filepath.Base(k.Image), "vmlinuz-")
	root := filepath.Join(dir, "lib", "modules", k.Release)
	err = filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(p), ".ko"); ok {
			k.modules[moduleName(name)] = p
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("modules of %s: %w", k.Release, err)
	}
	return k, nil
}

// moduleName is the one spelling of a name that is written with dashes in files and with underscores elsewhere.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// Modules returns the files of the wanted modules and of what they depend on, in the order in which to insert them. A name without
// a file is taken for built in.
func (k *Kernel) Modules(wanted ...string) ([]string, error) {
	var out []string
	seen := make(map[string]bool)
	var add func(name string) error
	add = func(name string) error {
		name = moduleName(name)
		path, ok := k.modules[name]
		if !ok || seen[name] {
			return nil
		}
		seen[name] = true
		depends, err := dependencies(path)
		if err != nil {
			return err
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return err
			}
		}
		out = append(out, path)
		return nil
	}
	for _, w := range wanted {
		if err := add(w); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dependencies reads what a module says about itself; the package has no modules.dep before it is installed.
func dependencies(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", path, err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("module %s says nothing about itself", path)
	}
	text, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", path, err)
	}
	var out []string
	for field := range strings.SplitSeq(string(text), "\x00") {
		if names, ok := strings.CutPrefix(field, "depends="); ok && names != "" {
			out = append(out, strings.Split(names, ",")...)
		}
	}
	return out, nil
}
