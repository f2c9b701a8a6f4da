package main

import (
	"image/color"
	"math"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// line is a series of a figure.
type line struct {
	name string
	xys  plotter.XYs
	dots bool // points without a line between them
	rule bool // a dashed line without points: a level to compare with
}

func (l *line) add(x, y float64) { l.xys = append(l.xys, plotter.XY{X: x, Y: max(y, 1e-3)}) }

// draw writes a figure as SVG and PNG; logY gives the ordinate a logarithmic scale.
func (o *options) draw(name, title, x, y string, logY bool, lines ...line) error {
	return o.save(name, title, x, y, false, logY, lines)
}

// drawLog has logarithmic scales on both sides.
func (o *options) drawLog(name, title, x, y string, lines ...line) error {
	return o.save(name, title, x, y, true, true, lines)
}

func (o *options) save(name, title, x, y string, logX, logY bool, lines []line) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Legend.Top, p.Legend.Left = true, true
	if logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, logTicks{}
	}
	if logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, logTicks{}
	} else {
		p.Y.Min = 0
	}
	p.BackgroundColor = color.White
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{230}, color.Gray{230}
	p.Add(grid)
	for i, l := range lines {
		if len(l.xys) == 0 {
			continue
		}
		ln, dots, err := plotter.NewLinePoints(l.xys)
		if err != nil {
			return err
		}
		ln.Color, dots.Color = plotutil.Color(i), plotutil.Color(i)
		dots.Shape, dots.Radius = plotutil.Shape(i), vg.Points(2)
		if l.dots {
			p.Add(dots)
			p.Legend.Add(l.name, dots)
			continue
		}
		if l.rule {
			ln.Dashes = []vg.Length{vg.Points(5), vg.Points(4)}
			p.Add(ln)
			p.Legend.Add(l.name, ln)
			continue
		}
		p.Add(ln, dots)
		p.Legend.Add(l.name, ln, dots)
	}
	if logY { // room for the legend, which is at the top
		p.Y.Min, p.Y.Max = p.Y.Min/1.2, p.Y.Max*math.Pow(p.Y.Max/p.Y.Min, 0.35)*1.2
	} else {
		p.Y.Max *= 1.3
	}
	for _, ext := range []string{".svg", ".png"} {
		if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, filepath.Join(o.figures, name+ext)); err != nil {
			return err
		}
	}
	return nil
}

// logTicks are marks at whole multiples of powers of ten; those without a number are for the eye. Where the range is short, 2 and 5 have one too.
type logTicks struct{}

func (logTicks) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	for decade := math.Floor(math.Log10(least)); decade <= math.Ceil(math.Log10(most)); decade++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, decade)
			if v < least || v > most {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 || most/least < 1000 && (m == 2 || m == 5) {
				t.Label = strconv.FormatFloat(v, 'g', 3, 64)
				if v >= 1000 {
					t.Label = strconv.FormatFloat(v, 'f', 0, 64)
				}
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}
