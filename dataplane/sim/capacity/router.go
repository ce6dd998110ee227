package capacity

// The router gives a request to a P when it arrives, and to a D when its blocks are there, so never to one that it knows is dead.

// route puts a request into a P's queue.
func (w *world) route(i int32) {
	p := w.pickP()
	if p == nil {
		w.at(w.now.Add(retry), happening{kind: evRoute, token: w.token(i)})
		return
	}
	p.enter(i)
}

func (w *world) pickP() *prefiller {
	var best *prefiller
	n := len(w.ps)
	for k := range n {
		p := w.ps[(int(w.next[0])+k)%n]
		if !p.alive {
			continue
		}
		if w.cfg.Router == RoundRobin {
			w.next[0] = (p.index + 1) % int32(n)
			return p
		}
		if best == nil || p.load < best.load {
			best = p
		}
	}
	w.next[0] = (w.next[0] + 1) % int32(n) // so that equals take turns
	return best
}

// handover puts a request before a D's door.
func (w *world) handover(i int32) {
	d := w.pickD()
	if d == nil {
		w.crowded++
		w.at(w.now.Add(retry), happening{kind: evHandover, token: w.token(i)})
		return
	}
	r := &w.reqs[i]
	r.d = d.index - int32(w.cfg.P)
	w.push(&d.all, i)
	d.accept(i)
}

func (w *world) pickD() *decoder {
	var best *decoder
	n := len(w.ds)
	for k := range n {
		d := w.ds[(int(w.next[1])+k)%n]
		if !d.alive || d.all.N >= w.cfg.QueueMax {
			continue
		}
		if w.cfg.Router == RoundRobin {
			w.next[1] = (d.index - int32(w.cfg.P) + 1) % int32(n)
			return d
		}
		if best == nil || d.all.N < best.all.N {
			best = d
			if d.all.N == 0 {
				break
			}
		}
	}
	w.next[1] = (w.next[1] + 1) % int32(n)
	return best
}
