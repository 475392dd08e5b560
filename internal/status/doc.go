// Package status is how the state of pools is put into words: the types and reasons of conditions, and the one form in which they
// are computed and written. The picker, the operator and the command line use it.
package status
