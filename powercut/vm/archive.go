package vm

import (
	"bytes"
	"fmt"
)

// Archive is an initial file system for the kernel: a cpio archive in the "newc" format.
type Archive struct {
	buf   bytes.Buffer
	inode int
}

// Add adds a file, or a directory if mode says so. Directories come before what is in them.
func (a *Archive) Add(name string, mode uint32, data []byte) {
	a.inode++
	links := 1
	if mode&0o170000 == ModeDir {
		links = 2
	}
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.buf.WriteString(name)
	a.buf.WriteByte(0)
	a.pad()
	a.buf.Write(data)
	a.pad()
}

// The kinds of what an archive holds, to be or'ed with permissions.
const (
	ModeDir  = 0o040000
	ModeFile = 0o100000
)

func (a *Archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

// Bytes ends the archive and returns it.
func (a *Archive) Bytes() []byte {
	a.inode = -1
	a.Add("TRAILER!!!", 0, nil)
	for a.buf.Len()%512 != 0 {
		a.buf.WriteByte(0)
	}
	return a.buf.Bytes()
}
