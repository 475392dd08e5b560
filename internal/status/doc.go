// Package status is how the state of a pool is named, for the picker, the operator and the command line alike: the types and
// reasons of conditions, the one form in which conditions are computed and written, the phase of an endpoint and of a pod as a
// picker sees them, and whether a pool is ready.
package status
