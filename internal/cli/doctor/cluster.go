package doctor

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
)

// Releases of Kubernetes: the first with sidecars that start before and end after the engine, and the first where they
// cannot be switched off.
var (
	oldest = version.MustParseSemantic("v1.29.0")
	stable = version.MustParseSemantic("v1.33.0")
)

// server checks that the API server answers, its version, and that its clock agrees with that of this machine.
func (d *Doctor) server(ctx context.Context) bool {
	const check = "cluster"
	info, err := d.API.ServerVersion()
	if err != nil {
		d.add(Fail, check, "", "the API server does not answer: "+err.Error(), "see --kubeconfig, --context and your network")
		return false
	}
	switch v, err := version.ParseGeneric(info.GitVersion); {
	case err != nil:
		d.add(Warn, check, "", fmt.Sprintf("Kubernetes %s: this version cannot be parsed", info.GitVersion), "")
	case v.LessThan(oldest):
		d.add(Fail, check, "", fmt.Sprintf("Kubernetes %s has no sidecars", info.GitVersion),
			"upgrade to 1.29 or later, or let pickers subscribe: engine.events.source: Subscribe")
	case v.LessThan(stable):
		d.add(Warn, check, "", fmt.Sprintf("Kubernetes %s has sidecars only while the feature gate SidecarContainers is on", info.GitVersion),
			"leave it on, which is the default")
	default:
		d.ok(check, "", "Kubernetes %s", info.GitVersion)
	}
	if at, err := clock(ctx, d.Source.Access.Config); err == nil {
		d.skew("API server", "", at)
	}
	return true
}

// clock is the API server's, by the Date of an answer: to a second.
func clock(ctx context.Context, config *rest.Config) (time.Time, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return time.Time{}, err
	}
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return time.Time{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host.JoinPath("/version").String(), http.NoBody)
	if err != nil {
		return time.Time{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	defer response.Body.Close()
	at, err := http.ParseTime(response.Header.Get("Date"))
	return at.Add(500 * time.Millisecond), err // a second is cut off on average by half
}

// definitions checks that all kinds are there as this program knows them. Older charts lack some, without which pools work.
func (d *Doctor) definitions(ctx context.Context) (usable bool) {
	const check, cure = "definitions", "install or upgrade the chart's definitions, which a helm upgrade brings up to date"
	want, err := crd.Definitions()
	if err != nil {
		d.add(Fail, check, "", err.Error(), "")
		return false
	}
	usable = true
	for _, w := range want {
		got := &apiextensionsv1.CustomResourceDefinition{}
		raw, err := d.API.RESTClient().Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", w.Name).DoRaw(ctx)
		switch {
		case apierrors.IsNotFound(err) && w.Spec.Names.Kind == v1alpha1.KindModelRoute:
			d.add(Warn, check, w.Name, "it is not there, so there are no routes", cure)
			continue
		case apierrors.IsNotFound(err):
			d.add(Fail, check, w.Name, "it is not there", cure)
			usable = false
			continue
		case apierrors.IsForbidden(err):
			d.add(Warn, check, w.Name, "you are not allowed to read it, so it is not known whether it is up to date", "")
			continue
		case err != nil:
			d.add(Fail, check, w.Name, err.Error(), "")
			usable = false
			continue
		}
		if err := json.Unmarshal(raw, got); err != nil {
			d.add(Fail, check, w.Name, err.Error(), "")
			continue
		}
		if !d.definition(check, cure, got, w) {
			usable = false
		}
	}
	return usable
}

func (d *Doctor) definition(check, cure string, got, want *apiextensionsv1.CustomResourceDefinition) (usable bool) {
	established := false
	for _, c := range got.Status.Conditions {
		established = established || c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	}
	served := func(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionVersion {
		for i := range crd.Spec.Versions {
			if v := &crd.Spec.Versions[i]; v.Name == v1alpha1.GroupVersion.Version && v.Served {
				return v
			}
		}
		return nil
	}
	v, known := served(got), served(want)
	switch {
	case v == nil || !established:
		d.add(Fail, check, got.Name, "the API server does not serve "+v1alpha1.GroupVersion.Version+" of it", cure)
		return false
	case known != nil && !equality.Semantic.DeepEqual(v.Schema, known.Schema):
		d.add(Warn, check, got.Name, "its schema is not the one of this program's release",
			"upgrade the older of both: kubectl-kvasir, or the chart")
	default:
		d.ok(check, got.Name, "%s is served, as this program knows it", v.Name)
	}
	return true
}

// right is one that a command needs.
type right struct {
	verb, group, resource, sub string
	purpose                    string
}

var rights = []right{
	{"list", v1alpha1.GroupName, "inferencepools", "", "every command"},
	{"list", "", "pods", "", "status, top"},
	{"get", "", "services", "", "finding pickers"},
	{"get", "", "configmaps", "", "knowing pickers by their certificates"},
	{"create", "", "pods", "portforward", "reaching pickers"},
	{"create", "", "serviceaccounts", "token", "a token that pickers accept"},
	{"patch", "", "pods", "", "drain, undrain"},
	{"patch", v1alpha1.GroupName, "inferencepools", "", "rollout"},
}

// rights checks what the user is allowed to do.
func (d *Doctor) rights(ctx context.Context) {
	const check = "rights"
	missing := 0
	for _, r := range rights {
		resource := r.resource
		if r.sub != "" {
			resource += "/" + r.sub
		}
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: d.Namespace, Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.sub,
			}},
		}
		err := d.Source.Client.Create(ctx, review)
		switch {
		case err != nil:
			d.add(Warn, check, "", "your rights cannot be found out: "+err.Error(), "")
			return
		case !review.Status.Allowed:
			missing++
			d.add(Warn, check, "you", fmt.Sprintf("you may not %s %s, which is needed for %s", r.verb, resource, r.purpose),
				"ask for a Role with it, if you want that")
		}
	}
	if missing == 0 {
		d.ok(check, "you", "you may do all that this program's commands need")
	}
}

// operatorRights are some without which the operator does nothing.
var operatorRights = []right{
	{"watch", v1alpha1.GroupName, "inferencepools", "", ""},
	{"patch", v1alpha1.GroupName, "inferencepools", "status", ""},
	{"create", "", "pods", "", ""},
	{"patch", "", "pods", "", ""},
	{"delete", "", "pods", "", ""},
	{"patch", "apps", "deployments", "", ""},
	{"create", "", "secrets", "", ""},
}

// operator checks that it runs, and that it is allowed to do its work.
func (d *Doctor) operator(ctx context.Context) {
	const check = "operator"
	found, err := fleet.Operators(ctx, d.Source.Client)
	switch {
	case apierrors.IsForbidden(err):
		d.add(Warn, check, "", "you are not allowed to list the Deployments of all namespaces to find it", "")
		return
	case err != nil:
		d.add(Warn, check, "", err.Error(), "")
		return
	}
	d.operators = map[string]bool{}
	for i := range found {
		d.operators[found[i].Namespace] = true
	}
	switch {
	case len(found) == 0:
		d.add(Fail, check, "", "no operator is installed", "helm install kvasir charts/kvasir --namespace kvasir-system --create-namespace --set images.registry=REGISTRY")
		return
	case len(found) > 1:
		d.add(Warn, check, "", fmt.Sprintf("%d operators are installed: two of them must not watch one namespace", len(found)),
			"uninstall one, or give each its own namespaces")
	}
	for i := range found {
		o := &found[i]
		subject := o.Namespace + "/" + o.Name
		if o.Status.ReadyReplicas == 0 {
			d.add(Fail, check, subject, "none of its replicas is ready", fmt.Sprintf("kubectl -n %s describe deployment %s, and its log",
				o.Namespace, o.Name))
			continue
		}
		d.ok(check, subject, "%d of %d replicas are ready, image %s", o.Status.ReadyReplicas, o.Status.Replicas,
			o.Spec.Template.Spec.Containers[0].Image)
		d.operatorMay(ctx, subject, o.Namespace, o.Spec.Template.Spec.ServiceAccountName)
	}
}

// managed checks that the operator that a pool's annotation names is there: all others leave such a pool alone.
func (d *Doctor) managed(pool *v1alpha1.InferencePool) {
	named := pool.Annotations[v1alpha1.AnnotationOperator]
	if named == "" || d.operators == nil || d.operators[named] {
		return
	}
	d.add(Fail, "operator", name(pool), fmt.Sprintf("the pool's annotation %s names the namespace %q, and no operator is installed there: nothing manages this pool",
		v1alpha1.AnnotationOperator, named), fmt.Sprintf("kubectl annotate kvpool -n %s %s %s=NAMESPACE --overwrite, with the namespace of an operator, or %s- to remove it",
		pool.Namespace, pool.Name, v1alpha1.AnnotationOperator, v1alpha1.AnnotationOperator))
}

func (d *Doctor) operatorMay(ctx context.Context, subject, namespace, account string) {
	const check = "rights"
	var missing []string
	for _, r := range operatorRights {
		review := &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   "system:serviceaccount:" + namespace + ":" + account,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: d.Namespace, Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.sub,
				},
			},
		}
		if err := d.Source.Client.Create(ctx, review); err != nil {
			d.add(Warn, check, subject, "the operator's rights cannot be found out: "+err.Error(), "")
			return
		}
		if !review.Status.Allowed {
			missing = append(missing, strings.TrimSuffix(r.verb+" "+r.resource+"/"+r.sub, "/"))
		}
	}
	if len(missing) > 0 {
		d.add(Fail, check, subject, "the operator may not "+strings.Join(missing, ", "),
			"upgrade the chart: its roles belong to the release; in namespaced mode, list the namespace there")
		return
	}
	d.ok(check, subject, "the operator may do its work")
}

// certificate of a picker: its issuer, and how long it lasts.
func (d *Doctor) certificate(pool *v1alpha1.InferencePool, p *live.Picker) {
	const check, cure, soon = "certificate", "the operator renews it: see its log. Or delete the Secrets POOL-picker-ca and POOL-picker-tls, and they are recreated", 7 * 24 * time.Hour
	subject := pool.Namespace + "/" + p.Name
	cert, err := p.Certificate()
	var untrusted *x509.UnknownAuthorityError
	switch {
	case errors.As(err, &untrusted):
		d.add(Fail, check, subject, err.Error(), cure)
	case err != nil: // the picker's own check has said it
	case cert == nil:
		d.add(Warn, check, subject, "the picker speaks no TLS", "leave --metrics-open out, and picker.tls on")
	case d.Now().After(cert.NotAfter):
		d.add(Fail, check, subject, "it ended at "+cert.NotAfter.UTC().Format(time.RFC3339), cure)
	case d.Now().Add(soon).After(cert.NotAfter):
		d.add(Warn, check, subject, "it ends at "+cert.NotAfter.UTC().Format(time.RFC3339), cure)
	default:
		d.ok(check, subject, "it lasts until %s", cert.NotAfter.UTC().Format(time.RFC3339))
	}
}
