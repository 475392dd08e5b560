// Package config turns API objects into the picker's configuration, and follows the directory that holds them where there is
// no Kubernetes.
//
// The path of a change:
//
//	files --read--> documents --admit--> objects --translate--> State --> picker.Apply
//
// Reading and admitting keep the last good object of everything that is broken now; translating is a function of the
// objects (and of what was applied before, for the same reason) and does not depend on files. A broken edit is never
// applied, and does not stop anything that worked.
package config
