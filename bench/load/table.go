package load

import (
	"fmt"
	"strings"
)

// Table is points as a table in Markdown.
func Table(points []*Point) string {
	var b strings.Builder
	b.WriteString("| offered/s | logs | offered | sent | completed | refused | failed, unanswered | achieved | p50 µs | p95 | p99 | p99.9 | max | late p99 | CPU µs, client + nodes | |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, p := range points {
		fmt.Fprintf(&b, "| %.0f | %d | %d | %d | %d | %d | %d, %d | %.1f %% | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f + %.1f | %s |\n", p.Plan.Rate, p.Plan.Logs, p.Offered, p.Sent, p.Completed,
			p.Refused, p.Failed, p.Unanswered, 100*p.Achieved, p.P50, p.P95, p.P99, p.P999, p.Max, p.LateP99, p.ClientCPU, p.NodeCPU, p.Verdict)
	}
	return b.String()
}
