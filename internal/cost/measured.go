package cost

import "time"

// Measured is what the nodes of a cluster asked of their object store in a time, and what they wrote for their clients.
type Measured struct {
	Took    time.Duration `json:"took_ns"`
	Puts    float64       `json:"puts"` // attempts, refused ones included: they are paid for
	Gets    float64       `json:"gets"` // with the requests for descriptions alone, which cost as much
	Lists   float64       `json:"lists"`
	Deletes float64       `json:"deletes"` // free
	Stored  float64       `json:"stored_bytes"`
	Read    float64       `json:"read_bytes"`
	Records float64       `json:"records"` // written, on all nodes together
	Bytes   float64       `json:"record_bytes"`
}

// Compared is a kind of request as it was measured and as Reckon predicts it, in a month.
type Compared struct {
	What           string  `json:"what"`
	Measured       float64 `json:"measured"`
	Predicted      float64 `json:"predicted"`
	MeasuredPrice  float64 `json:"measured_price"`
	PredictedPrice float64 `json:"predicted_price"`
}

// Compare puts what was measured, as if it went on for a month, beside the prediction for a workload. The workload's rate and size
// are those that were measured, unless it has its own (above zero). The requests of clients are not in it: the nodes do not see
// those that go past them.
func Compare(p Prices, w Workload, m Measured) (Workload, []Compared) {
	months := p.Hours * 3600 / m.Took.Seconds()
	if w.Rate <= 0 {
		w.Rate = m.Records / float64(w.N) / m.Took.Seconds()
	}
	if w.Size <= 0 && m.Records > 0 {
		w.Size = m.Bytes / m.Records
	}
	var b Bill
	if w.Rate > 0 {
		b = Reckon(p, w)[0]
	}
	one := func(what string, n, predicted, price float64) Compared {
		return Compared{what, n * months, predicted, n * months * price / 1000, predicted * price / 1000}
	}
	return w, []Compared{one("PUT", m.Puts, b.Puts, p.Objects.Put), one("LIST", m.Lists, b.Lists, p.Objects.List), one("GET", m.Gets, b.Gets, p.Objects.Get),
		one("DELETE", m.Deletes, 0, 0)}
}
