package rpc

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Audience is that of the tokens that reporters show.
const Audience = "kvasir.dev/report"

// Identity is the proven identity of a reporter.
type Identity struct {
	// UID, Namespace and Name are of the pod that it is in.
	UID, Namespace, Name string
	// Any means that the pod of the reporter was not proven.
	Any bool
	// Expires is when the proof ends; zero for never.
	Expires time.Time
	// Outage, if set, reports that the issuer of proofs cannot be reached. Meanwhile one that has expired is good enough
	// for a stream that has begun.
	Outage func(ctx context.Context) bool
}

// Is reports whether the reporter is in a pod, which is a UID, or namespace and name (a/b) where pods have no UID.
func (i Identity) Is(pod string) bool {
	return pod != "" && (i.Any || i.UID == pod || i.Namespace+"/"+i.Name == pod && i.Name != "")
}

// Authenticator identifies the client of a stream.
type Authenticator interface {
	Authenticate(ctx context.Context) (Identity, error)
}

// Anybody accepts every reporter's claim without proof. It is for tests and for networks without other clients.
type Anybody struct{}

// Authenticate implements Authenticator.
func (Anybody) Authenticate(context.Context) (Identity, error) { return Identity{Any: true}, nil }

// bearer is the token that a call carries.
func bearer(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return "", errors.New("no token")
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "bearer") || token == "" || len(token) > maxToken {
		return "", errors.New("no token")
	}
	return token, nil
}

// maxToken bounds a token in bytes.
const maxToken = 16 << 10

// SharedSecret trusts the identity that a reporter with the secret states: a holder of the secret can report
// for every pod.
type SharedSecret struct {
	// Read returns the secret, at least MinSecret bytes.
	Read func() ([]byte, error)
}

// MinSecret is the least length of a shared secret.
const MinSecret = 16

// SecretFile reads a secret from a file, without white space at its end.
func SecretFile(path string) func() ([]byte, error) {
	return func() ([]byte, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the shared secret: %w", err)
		}
		secret := []byte(strings.TrimRight(string(text), " \t\r\n"))
		if len(secret) < MinSecret {
			return nil, fmt.Errorf("the shared secret has %d bytes, needs at least %d", len(secret), MinSecret)
		}
		return secret, nil
	}
}

// Authenticate implements Authenticator.
func (s SharedSecret) Authenticate(ctx context.Context) (Identity, error) {
	token, err := bearer(ctx)
	if err != nil {
		return Identity{}, err
	}
	secret, err := s.Read()
	if err != nil {
		return Identity{}, err
	}
	if subtle.ConstantTimeCompare([]byte(token), secret) != 1 {
		return Identity{}, errors.New("the token is not the shared secret")
	}
	return Identity{Any: true}, nil
}

// Certificate takes a reporter for the pod that its verified client certificate names: the common name, or a DNS name,
// is the pod's UID, or namespace/name. The transport must have verified it.
type Certificate struct{}

// Authenticate implements Authenticator.
func (Certificate) Authenticate(ctx context.Context) (Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, errors.New("no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Identity{}, errors.New("no verified client certificate")
	}
	leaf := info.State.VerifiedChains[0][0]
	name := leaf.Subject.CommonName
	if name == "" && len(leaf.DNSNames) > 0 {
		name = leaf.DNSNames[0]
	}
	if name == "" {
		return Identity{}, errors.New("the client certificate names no pod")
	}
	who := Identity{UID: name, Expires: leaf.NotAfter}
	if namespace, pod, ok := strings.Cut(name, "/"); ok {
		who.UID, who.Namespace, who.Name = "", namespace, pod
	}
	return who, nil
}

// Tokens takes a reporter for the pod that its service account token is bound to. The token is checked here: only
// the keys are fetched, from time to time.
type Tokens struct {
	// Issuer and Audience that tokens must have.
	Issuer, Audience string
	Keys             *Keys
	Now              func() time.Time
}

// algorithms that API servers sign with.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}

// leeway is how far clocks can differ.
const leeway = 10 * time.Second

// bound is the extra content of a bound service account token.
type bound struct {
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// Authenticate implements Authenticator.
func (t Tokens) Authenticate(ctx context.Context) (Identity, error) {
	who, _, err := t.verify(ctx)
	if err == nil && who.UID == "" {
		return Identity{}, errors.New("the token is bound to no pod")
	}
	return who, err
}

// verify checks a call's token, and returns the reporter's identity and the token's account.
func (t Tokens) verify(ctx context.Context) (who Identity, subject string, err error) {
	text, err := bearer(ctx)
	if err != nil {
		return Identity{}, "", err
	}
	return t.Check(ctx, text)
}

// Check a token: the pod that it is bound to, if it is, and the account that it is of.
func (t Tokens) Check(ctx context.Context, text string) (who Identity, subject string, err error) {
	token, err := jwt.ParseSigned(text, algorithms)
	if err != nil {
		return Identity{}, "", errors.New("the token cannot be read")
	}
	if len(token.Headers) != 1 {
		return Identity{}, "", errors.New("the token must have exactly one signature")
	}
	var claims jwt.Claims
	var more bound
	verified := false
	for _, key := range t.Keys.find(ctx, token.Headers[0].KeyID) {
		if token.Claims(key, &claims, &more) == nil {
			verified = true
			break
		}
	}
	if !verified {
		return Identity{}, "", errors.New("the token is signed by an unknown key")
	}
	now := t.Now
	if now == nil {
		now = time.Now
	}
	switch err := claims.ValidateWithLeeway(jwt.Expected{Issuer: t.Issuer, AnyAudience: jwt.Audience{t.Audience}, Time: now()}, leeway); {
	case err != nil:
		return Identity{}, "", fmt.Errorf("the token: %w", err)
	case claims.Expiry == nil || t.Issuer == "" || t.Audience == "" || !slices.Contains(claims.Audience, t.Audience):
		return Identity{}, "", errors.New("the token has no expiry, or not our audience")
	}
	return Identity{
		UID: more.Kubernetes.Pod.UID, Namespace: more.Kubernetes.Namespace, Name: more.Kubernetes.Pod.Name,
		Expires: claims.Expiry.Time(), Outage: t.Keys.unreachable,
	}, claims.Subject, nil
}

// AudienceOf is the first audience of a token, which is not verified: of the picker's own it is that of the API server.
func AudienceOf(text string) (string, error) {
	claims, err := claimsOf(text)
	if err != nil {
		return "", err
	}
	if len(claims.Audience) == 0 {
		return "", errors.New("reading the token: it has no audience")
	}
	return claims.Audience[0], nil
}

// IssuerOf is the issuer of a token, which is not verified: the picker's own token shows the issuer of its API server's
// tokens.
func IssuerOf(text string) (string, error) {
	claims, err := claimsOf(text)
	return claims.Issuer, err
}

func claimsOf(text string) (claims jwt.Claims, err error) {
	token, err := jwt.ParseSigned(strings.TrimSpace(text), algorithms)
	if err != nil {
		return claims, fmt.Errorf("reading the token: %w", err)
	}
	if err := token.UnsafeClaimsWithoutVerification(&claims); err != nil {
		return claims, fmt.Errorf("reading the token: %w", err)
	}
	return claims, nil
}
