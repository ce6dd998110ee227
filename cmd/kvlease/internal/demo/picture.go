package demo

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

// leadIn is what the picture shows before the first grant.
const leadIn = uint64(30 * time.Millisecond)

// Sides of the picture. Each has a lane for the process that takes an engine's requests, and one for each rank below it.
const (
	laneP = 0
	laneD = 1
)

// at is a point in time of the picture.
func (s *stage) at(ns uint64) float64 {
	return max(0, float64(int64(ns-s.start))/1e9)
}

// lane is that of one rank; -1: of the process that takes the engine's requests.
func (s *stage) lane(side, rank int) *timeline.Lane {
	for len(s.lanes[side]) <= rank+1 {
		s.lanes[side] = append(s.lanes[side], timeline.Lane{})
	}
	return &s.lanes[side][rank+1]
}

func (s *stage) mark(side int, kind timeline.Kind, from, to uint64, text string) {
	s.markRank(side, -1, kind, from, to, text)
}

func (s *stage) markRank(side, rank int, kind timeline.Kind, from, to uint64, text string) {
	m := timeline.Mark{Kind: kind, From: s.at(from), Text: text}
	if to != 0 {
		m.To = s.at(to)
	}
	l := s.lane(side, rank)
	l.Marks = append(l.Marks, m)
}

func (s *stage) drawRead(asked uint64, r *jsonl.Report) {
	text := fmt.Sprintf("read %s, %s wrong bytes", amount(r.Bytes), quantity(badBytes(r), ""))
	s.mark(laneD, timeline.Read, asked, r.TimeNS, text)
}

func (s *stage) moment(at uint64, text string) {
	s.picture.Moments = append(s.picture.Moments, timeline.Moment{At: s.at(at), Text: text})
}

// finishPicture adds what the engines reported by themselves: every heartbeat batch that P, or a rank of it, has heard.
func (s *stage) finishPicture() {
	s.picture.Label = s.variant.String()
	for _, e := range s.all {
		if e.spec.name != "P" || s.start == 0 {
			continue
		}
		rank := -1
		if e.spec.context == "rank" {
			rank = int(e.spec.rank)
		}
		for _, r := range e.reports(0) {
			if r.Ev == "beats" {
				s.markRank(laneP, rank, timeline.Beat, r.TimeNS, 0, "heartbeat")
			}
		}
	}
	programs := map[string]string{"c": "C program", "node": "kvlease node"}
	for side, name := range []string{"P", "D"} {
		s.lane(side, -1).Label = name + ", " + programs[[...]string{s.variant.p, s.variant.d}[side]]
		for i := range s.lanes[side][1:] {
			s.lane(side, -1).Label = name + ", host"
			s.lane(side, i).Label = fmt.Sprintf("%s, rank %d", name, i)
		}
		s.picture.Lanes = append(s.picture.Lanes, s.lanes[side]...)
	}
}
