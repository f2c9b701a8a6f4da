// Package guest is what runs inside the virtual machine: the first process, which mounts, switches devices and starts programs
// as the host orders, and the worker that writes to the storage engine alone.
package guest

// Order is what the host asks the agent for, one JSON object a line. ID comes back with the reply.
type Order struct {
	ID int    `json:"id"`
	Do string `json:"do"` // one of the Do constants

	Device string   `json:"device,omitempty"` // of a block device, such as vda
	Dir    string   `json:"dir,omitempty"`
	FS     string   `json:"fs,omitempty"`
	Name   string   `json:"name,omitempty"` // of a program that was started
	Args   []string `json:"args,omitempty"`
	Names  []string `json:"names,omitempty"` // of devices or programs
}

// Reply answers an Order; Error is empty if it was done.
type Reply struct {
	ID    int    `json:"id"`
	Error string `json:"error,omitempty"`
	Text  string `json:"text,omitempty"`
}

// What an Order can ask for.
const (
	DoMount   = "mount"   // Device, FS, Dir: through a mapped device of the same name
	DoUnmount = "unmount" // Dir
	DoStart   = "start"   // Name, Args
	DoKill    = "kill"    // Names: SIGKILL, without waiting
	DoAlive   = "alive"   // Names: fails if one of them has ended
	DoWait    = "wait"    // Names: until they have ended
	DoSuspend = "suspend" // Names of devices: requests wait from here on
	DoDrop    = "drop"    // Names of suspended devices: go on, writes are dropped
	DoPass    = "pass"    // Names of devices: writes pass again
)

// Paths in the guest's first file system.
const (
	AgentPath  = "/init"
	BtrlogPath = "/bin/btrlog"
)
