package btrlog

// Waiting is how many wait for what the receiver brings, for tests.
func (c *Client) Waiting() int { return int(c.receiver.waiting.Load()) }
