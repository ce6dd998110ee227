package transport

// Setting is something that a transport is told of the machine when an agent is opened, in the words of its own environment variables: for that agent alone,
// and unless the variable is set.
type Setting struct{ Name, Value string }

// Lonely is a transport whose agents look once, as they are made, for the networks over which others reach them.
type Lonely interface {
	// Alone names the interfaces that there were, if none of them was up and peers on other machines cannot be reached for that.
	Alone() (down []string)
}

// Tellable is a transport whose agents can be told settings.
type Tellable interface {
	// Carries tells whether an agent that is opened with the setting is told it. It needs no open agent.
	Carries(s Setting) bool
}
