package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// fileSystem names the file system of dir as the kernel's mount table has it.
func fileSystem(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "unknown"
	}
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		var st syscall.Statfs_t
		if syscall.Statfs(dir, &st) == nil {
			return fmt.Sprintf("type 0x%x", st.Type)
		}
		return "unknown"
	}
	defer f.Close()
	best, name := -1, "unknown"
	for in := bufio.NewScanner(f); in.Scan(); {
		p := strings.Fields(in.Text())
		if len(p) < 3 {
			continue
		}
		point := p[1]
		if (abs == point || point == "/" || strings.HasPrefix(abs, point+"/")) && len(point) > best {
			best, name = len(point), fmt.Sprintf("%s on %s", p[2], p[0])
		}
	}
	return name
}
