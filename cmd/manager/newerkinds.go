package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// newerKinds are kinds of the API that a cluster can lack, or that the operator can have no right to: its definitions and roles are those
// of an older chart, or somebody else installs them. A cache of such a kind would never fill, and the operator not start. So it starts
// without them, and ends when it could follow one, so that it is started again with it.
type newerKinds struct {
	reader     client.Reader // not from a cache
	namespaces []string      // that the operator is limited to; empty for none
	log        logr.Logger
	absent     map[string]bool // by kind, as at the start
}

// errNewKind ends the operator, as nothing else is wrong.
var errNewKind = errors.New("a kind can be followed that could not be at the start")

// lists are those of the newer kinds.
func lists() map[string]client.ObjectList {
	return map[string]client.ObjectList{
		v1alpha1.KindPickerFleet: &v1alpha1.PickerFleetList{}, v1alpha1.KindModelRoute: &v1alpha1.ModelRouteList{},
	}
}

// look finds which kinds are absent.
func (k *newerKinds) look(ctx context.Context) (absent map[string]bool, err error) {
	absent = map[string]bool{}
	namespace := ""
	if len(k.namespaces) > 0 {
		namespace = k.namespaces[0]
	}
	for kind, list := range lists() {
		err := k.reader.List(ctx, list, client.Limit(1), client.InNamespace(namespace))
		switch {
		case err == nil:
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			absent[kind] = true
		default:
			return nil, fmt.Errorf("looking for objects of the kind %s: %w", kind, err)
		}
	}
	return absent, nil
}

// find keeps which kinds are absent now.
func (k *newerKinds) find(ctx context.Context) (err error) {
	if k.absent, err = k.look(ctx); err != nil {
		return err
	}
	for kind := range k.absent {
		k.log.Info("A kind is not defined, or the operator's role does not contain it: it is ignored until the chart is upgraded", "kind", kind)
	}
	return nil
}

// NeedLeaderElection makes it run in all replicas.
func (*newerKinds) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it fails with errNewKind when one of the absent kinds is there.
func (k *newerKinds) Start(ctx context.Context) error {
	if len(k.absent) == 0 {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			absent, err := k.look(ctx)
			if err != nil {
				k.log.V(1).Info("Looking for kinds failed", "error", err.Error())
				continue
			}
			if len(absent) < len(k.absent) {
				return errNewKind
			}
		}
	}
}

// clientOf is a client for which no object of an absent kind exists.
func (k *newerKinds) clientOf(c client.Client) client.Client {
	if len(k.absent) == 0 {
		return c
	}
	return lacking{c, k.absent}
}

type lacking struct {
	client.Client
	absent map[string]bool
}

// Get implements client.Reader.
func (l lacking) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if gvk, err := l.GroupVersionKindFor(o); err == nil && gvk.Group == v1alpha1.GroupName && l.absent[gvk.Kind] {
		return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, key.Name)
	}
	return l.Client.Get(ctx, key, o, opts...)
}

// List implements client.Reader.
func (l lacking) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	gvk, err := l.GroupVersionKindFor(list)
	if err == nil && gvk.Group == v1alpha1.GroupName && l.absent[strings.TrimSuffix(gvk.Kind, "List")] {
		return nil
	}
	return l.Client.List(ctx, list, opts...)
}
