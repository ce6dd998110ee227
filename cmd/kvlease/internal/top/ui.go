package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
)

// program is the view as bubbletea runs it. It was taken, and not tview, because its screen is a function of its state: what a user reads
// is tested as text, without a terminal; and it sends a terminal only the lines that have changed, which a slow ssh is grateful for.
type program struct {
	view
	ctx      context.Context
	source   *source
	interval time.Duration
}

type (
	readMsg struct {
		reading Reading
		err     error
	}
	tickMsg struct{}
)

// Init looks for the first time.
func (p *program) Init() tea.Cmd { return p.read }

func (p *program) read() tea.Msg {
	r, err := p.source.read(p.ctx)
	return readMsg{r, err}
}

// Update takes keys, sizes and readings. One look follows the other, so a slow one delays only itself.
func (p *program) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		p.width, p.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		key := msg.Keystroke()
		if text := msg.Key().Text; len(text) == 1 && text != " " {
			key = text // G and g are two keys
		}
		if key == "ctrl+z" {
			return p, tea.Suspend
		}
		if p.press(key) {
			return p, tea.Quit
		}
	case readMsg:
		switch {
		case p.paused:
		case msg.err != nil:
			p.failed = msg.err.Error()
		default:
			p.set(msg.reading)
		}
		return p, tea.Tick(p.interval, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		if p.paused {
			return p, tea.Tick(p.interval, func(time.Time) tea.Msg { return tickMsg{} })
		}
		return p, p.read
	}
	return p, nil
}

// View draws the screen.
func (p *program) View() tea.View {
	v := tea.NewView("")
	if p.width > 0 {
		v = tea.NewView(p.paint())
	}
	v.AltScreen = true
	return v
}

func interact(ctx context.Context, cfg *Config, s *source, in io.Reader, out io.Writer) error {
	p := &program{view: view{colours: cfg.Colours, where: where(cfg)}, ctx: ctx, source: s, interval: cfg.Interval}
	_, err := tea.NewProgram(p, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler(), tea.WithFPS(30)).Run()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		return nil // a signal: the terminal is as it was
	}
	return err
}
