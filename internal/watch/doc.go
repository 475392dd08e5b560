// Package watch turns API objects into what the picker works with, and follows the directory that holds them where
// there is no Kubernetes.
//
// The way of a change:
//
//	files --read--> documents --admit--> objects --translate--> State --> picker.Apply
//
// Reading and admitting keep the last good object of everything that is broken now; translating is a function of the
// objects (and of what was in force before, for the same reason) and knows nothing of files. Nothing of a broken edit
// is ever in force, and nothing that worked stops working because of it.
package watch
