package main

import (
	"image/color"
	"path/filepath"

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
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
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
		p.Add(ln, dots)
		p.Legend.Add(l.name, ln, dots)
	}
	for _, ext := range []string{".svg", ".png"} {
		if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, filepath.Join(o.figures, name+ext)); err != nil {
			return err
		}
	}
	return nil
}
