package resources

import (
	"crypto/rand"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/certs"
)

// Entries of the Secret of a pool's CA, besides tls.crt and tls.key of the CA that signs now.
const (
	nextCert, nextKey = "next.crt", "next.key"
	pastCert          = "past.crt"
	// CAEntry is the entry of the ConfigMap of trusted certificates.
	CAEntry = "ca.crt"
)

// KeySecretName is the Secret that holds the key root of a pool.
func KeySecretName(pool *v1alpha1.InferencePool) string {
	if name := pool.Spec.KeySpace.SecretRef.Name; name != "" {
		return name
	}
	return KeyName(pool.Name)
}

// KeySecret is a new key root. Create it where there is none, and never apply it over an existing one.
func KeySecret(pool *v1alpha1.InferencePool) *corev1.Secret {
	root := make([]byte, v1alpha1.MinRootBytes)
	_, _ = rand.Read(root) // crypto/rand never fails
	b := builder{Input: Input{Pool: pool}, pool: pool}
	s := b.pickers().secret(KeyName(pool.Name), corev1.SecretTypeOpaque, map[string][]byte{v1alpha1.SecretKeyRoot: root})
	if asked := pool.Annotations[v1alpha1.AnnotationRotateKey]; asked != "" {
		s.Annotations = map[string]string{v1alpha1.AnnotationRotateKey: asked}
	}
	return s
}

// RotatedKey is the Secret with another root, when the pool asks for one since it was made; nil when it does not. Others
// than the root stay.
func RotatedKey(pool *v1alpha1.InferencePool, is *corev1.Secret) *corev1.Secret {
	asked := pool.Annotations[v1alpha1.AnnotationRotateKey]
	if asked == "" || asked == is.Annotations[v1alpha1.AnnotationRotateKey] {
		return nil
	}
	next, made := is.DeepCopy(), KeySecret(pool)
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	next.Data[v1alpha1.SecretKeyRoot] = made.Data[v1alpha1.SecretKeyRoot]
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, v1alpha1.AnnotationRotateKey, asked)
	return next
}

// Certificates brings the CA of pickers and their certificate up to date, for a pool.
func Certificates(pool *v1alpha1.InferencePool, caSecret, tlsSecret *corev1.Secret,
	now time.Time) (ca, tls *corev1.Secret, trusted []byte, next time.Time, err error) {
	b := builder{Input: Input{Pool: pool}, pool: pool}
	return b.pickers().certificates(caSecret, tlsSecret, now)
}

// certificates brings the CA of pickers and their certificate up to date. The arguments are the present Secrets, nil where
// they are missing. It returns the Secrets to apply, nil for those that need no change, the certificates to trust, and when
// to check again.
func (p *pickers) certificates(caSecret, tlsSecret *corev1.Secret,
	now time.Time) (ca, tls *corev1.Secret, trusted []byte, next time.Time, err error) {
	var a certs.Authority
	var leaf certs.Pair
	if caSecret != nil {
		d := caSecret.Data
		a = certs.Authority{
			Current: certs.Pair{Cert: d[corev1.TLSCertKey], Key: d[corev1.TLSPrivateKeyKey]},
			Next:    certs.Pair{Cert: d[nextCert], Key: d[nextKey]},
			Past:    d[pastCert],
		}
	}
	if tlsSecret != nil {
		leaf = certs.Pair{Cert: tlsSecret.Data[corev1.TLSCertKey], Key: tlsSecret.Data[corev1.TLSPrivateKeyKey]}
	}
	changed, next, err := a.Renew(&leaf, p.names.certificateNames(p.namespace), now)
	if err != nil {
		return nil, nil, nil, time.Time{}, err
	}
	if changed {
		data := map[string][]byte{corev1.TLSCertKey: a.Current.Cert, corev1.TLSPrivateKeyKey: a.Current.Key}
		for entry, value := range map[string][]byte{nextCert: a.Next.Cert, nextKey: a.Next.Key, pastCert: a.Past} {
			if len(value) > 0 {
				data[entry] = value
			}
		}
		ca = p.secret(p.names.CA, corev1.SecretTypeTLS, data)
		tls = p.secret(p.names.TLS, corev1.SecretTypeTLS, map[string][]byte{
			corev1.TLSCertKey: leaf.Cert, corev1.TLSPrivateKeyKey: leaf.Key,
		})
	}
	return ca, tls, a.Trusted(), next, nil
}

func (p *pickers) secret(name string, kind corev1.SecretType, data map[string][]byte) *corev1.Secret {
	s := &corev1.Secret{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion.WithKind("Secret")),
		ObjectMeta: p.meta(name),
		Type:       kind,
		Data:       data,
	}
	s.OwnerReferences = p.owners
	return s
}

// trust is what reporters and replicas check the pickers' certificates with.
func (p *pickers) trust() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion.WithKind("ConfigMap")),
		ObjectMeta: p.meta(p.names.CA),
		Data:       map[string]string{CAEntry: string(p.trusted)},
	}
}
