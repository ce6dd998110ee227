package deathwire

import "time"

// How an owner goes on purpose, and what it says on its wires.

// say tells a reader something. An error shows in the read.
func (w *wire) say(k Kind, flags uint16) {
	f := w.self
	f.Kind, f.Flags = k, flags
	w.c.SetWriteDeadline(time.Now().Add(writeTimeout))
	w.c.Write(f.Append(nil))
}

// part says farewell to a reader that understands it.
func (w *wire) part() {
	if w.flags&Farewells != 0 {
		w.say(Farewell, 0)
	}
}

// Leave tells all readers, once, that we go on purpose. Their wires stay up for as long as we serve.
func (s *Server) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return
	}
	s.leaving = true
	for w := range s.open {
		w.say(Leaving, 0)
	}
}

// Part tells all readers, once and behind Leave, that nothing is held here any more and nothing will be: the end of their wires, which stay
// up, is no death then.
func (s *Server) Part() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parting {
		return
	}
	s.parting = true
	for w := range s.open {
		w.part()
	}
}

// EndEra closes all wires with a farewell and forgets all readers: there is nothing of them here any more. Who comes back is asked
// anew. Self has said epoch 0 before it, or that of the next era.
func (s *Server) EndEra() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.parting { // else it was said
		for w := range s.open {
			w.part()
		}
	}
	s.endEra()
	s.leaving, s.parting = false, false
}

func (s *Server) endEra() {
	for w := range s.open {
		w.c.Close()
	}
	clear(s.open)
	s.table.clear()
}
