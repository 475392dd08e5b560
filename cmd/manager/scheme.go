package main

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	kvasirv1alpha1 "github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// newScheme knows the kinds of Kubernetes and of Kvasir. Kinds of gateways are read as unstructured objects: their
// definitions might be missing, or be installed later.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kvasirv1alpha1.AddToScheme(scheme))
	return scheme
}
