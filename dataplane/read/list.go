package read

// off marks links of what is in no list.
const off = int32(-2)

type link struct{ prev, next int32 }

// A job is in at most one place of each list.
const (
	postList  = iota // has data parts to post and may post them now
	fenceList        // has a source whose fence read is to be posted
	timerList        // has a deadline; in the order of deadlines, since all wait equally long
	jobLists
)

type jobList struct{ head, tail int32 }

// enlist appends job i if it is not in the list.
func (m *Machine) enlist(list int, i int32) {
	if m.jobs[i].links[list].next == off {
		m.push(list, i)
	}
}

// push appends job i, or moves it to the end.
func (m *Machine) push(list int, i int32) {
	m.remove(list, i)
	l := &m.lists[list]
	m.jobs[i].links[list] = link{l.tail, none}
	if l.tail == none {
		l.head = i
	} else {
		m.jobs[l.tail].links[list].next = i
	}
	l.tail = i
}

func (m *Machine) remove(list int, i int32) {
	k := m.jobs[i].links[list]
	if k.next == off {
		return
	}
	m.jobs[i].links[list] = link{off, off}
	l := &m.lists[list]
	if k.prev == none {
		l.head = k.next
	} else {
		m.jobs[k.prev].links[list].next = k.next
	}
	if k.next == none {
		l.tail = k.prev
	} else {
		m.jobs[k.next].links[list].prev = k.prev
	}
}

// xferList links transfers: those aside by the end of their quarantine, or row reads by their time-out. A transfer is
// in at most one of the two.
type xferList struct{ head, tail int32 }

func (m *Machine) pushXfer(l *xferList, x int32) {
	m.xfers[x].links = link{l.tail, none}
	if l.tail == none {
		l.head = x
	} else {
		m.xfers[l.tail].links.next = x
	}
	l.tail = x
}

func (m *Machine) removeXfer(l *xferList, x int32) {
	k := m.xfers[x].links
	if k.next == off {
		return
	}
	m.xfers[x].links = link{off, off}
	if k.prev == none {
		l.head = k.next
	} else {
		m.xfers[k.prev].links.next = k.next
	}
	if k.next == none {
		l.tail = k.prev
	} else {
		m.xfers[k.next].links.prev = k.prev
	}
}
