package fleet

import (
	"context"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reporterFlag is the operator's flag that names the reporters' image.
const reporterFlag = "--reporter-image="

// Operators are the Deployments of the operator: those with a container whose configuration names the reporters to use.
func Operators(ctx context.Context, c client.Reader) ([]appsv1.Deployment, error) {
	var list appsv1.DeploymentList
	if err := c.List(ctx, &list); err != nil {
		return nil, err
	}
	var found []appsv1.Deployment
	for i := range list.Items {
		if reporterOf(&list.Items[i]) != "" {
			found = append(found, list.Items[i])
		}
	}
	return found, nil
}

func reporterOf(d *appsv1.Deployment) string {
	for i := range d.Spec.Template.Spec.Containers {
		for _, arg := range d.Spec.Template.Spec.Containers[i].Args {
			if image, ok := strings.CutPrefix(arg, reporterFlag); ok {
				return image
			}
		}
	}
	return ""
}

// ReporterImage is the image that the operator of the cluster gives to reporters.
func ReporterImage(ctx context.Context, c client.Reader) (string, error) {
	found, err := Operators(ctx, c)
	switch {
	case apierrors.IsForbidden(err):
		return "", refuse("you are not allowed to list Deployments of all namespaces to find the operator's: give --reporter-image")
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", refuse("no operator runs in the cluster that would say which reporter to use: give --reporter-image")
	}
	return reporterOf(&found[0]), nil
}
