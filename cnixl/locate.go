package cnixl

// Find tells which NIXL Open would load, without loading it. With an empty File only the loader of the system can tell.
func Find(cfg Config) (Library, error) {
	return find(search{path: cfg.Path, env: getenv("KVLEASE_NIXL"), maps: mappedFiles(), folders: cfg.Folders})
}
