// Package tenant identifies the tenant of a request and how much of a pool the tenant is allowed to use.
//
// A Directory knows tenants by name and by the SHA-256 of their API keys; it is immutable and rebuilt when a Secret
// changes. Meters keep each tenant's rates and count its requests under way. Time is passed in.
package tenant

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

const (
	// MaxName is the longest name of a tenant, in bytes.
	MaxName = 253
	// maxKeys is the most API keys of one tenant, and the most names of its certificates, of maxCertificate bytes each.
	maxKeys, maxCertificate = 64, 2048
)

// Class is what each of its tenants is allowed to use. Zero limits are no limits.
type Class struct {
	Name string
	// Weight of each tenant in the queue, at least 1.
	Weight            int
	RequestsPerMinute int
	// TokensPerMinute counts prompts and answers.
	TokensPerMinute int64
	MaxConcurrent   int
	// Models that a tenant is allowed to name, a trailing * matching any rest; empty allows all.
	Models []string
	// Capped means that MaxLevel is the highest priority level that a tenant's requests get.
	Capped   bool
	MaxLevel int
	// SetsPriority and SetsTransfer: requests can bring the fields that control the engine's scheduler and KV transfers.
	SetsPriority, SetsTransfer bool
}

// Allows reports whether the class is allowed to use a model.
func (c *Class) Allows(model string) bool {
	if len(c.Models) == 0 {
		return true
	}
	for _, pattern := range c.Models {
		if prefix, open := strings.CutSuffix(pattern, "*"); open && strings.HasPrefix(model, prefix) || pattern == model {
			return true
		}
	}
	return false
}

// Entry is a tenant.
type Entry struct {
	Name string
	// Class is the name of its class; empty for the default.
	Class string

	keys         [][sha256.Size]byte
	certificates []string
}

// Parse reads one entry of a Secret: its key is the tenant's name, its value is
//
//	{"class": "gold", "sha256": ["9f86d081...", ...], "certificates": ["URI:spiffe://cluster.local/ns/a/sa/b", "DNS:b.example", "CN:b"]}
//
// with the hash of each API key in hexadecimal, and the names of its certificates. All fields can be absent. Errors do not repeat the
// value.
func Parse(name string, value []byte) (Entry, error) {
	if name == "" || len(name) > MaxName {
		return Entry{}, fmt.Errorf("a tenant's name has 1 to %d bytes", MaxName)
	}
	var in struct {
		Class  string   `json:"class"`
		SHA256 []string `json:"sha256"`

		Certificates []string `json:"certificates"`
	}
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return Entry{}, errors.New(`want {"class": NAME, "sha256": [HEX, ...], "certificates": [NAME, ...]}`)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Entry{}, errors.New("unexpected data after the JSON object")
	}
	if len(in.SHA256) > maxKeys {
		return Entry{}, fmt.Errorf("%d keys; a tenant has at most %d", len(in.SHA256), maxKeys)
	}
	e := Entry{Name: name, Class: in.Class}
	for i, text := range in.SHA256 {
		var key [sha256.Size]byte
		if n, err := hex.Decode(key[:], []byte(text[:min(len(text), 2*sha256.Size)])); err != nil || n != sha256.Size ||
			len(text) != 2*sha256.Size {
			return Entry{}, fmt.Errorf("sha256[%d] is not a SHA-256 in hexadecimal", i)
		}
		e.keys = append(e.keys, key)
	}
	if len(in.Certificates) > maxKeys {
		return Entry{}, fmt.Errorf("%d certificates; a tenant has at most %d", len(in.Certificates), maxKeys)
	}
	for i, text := range in.Certificates {
		kind, name, _ := strings.Cut(text, ":")
		if kind != "URI" && kind != "DNS" && kind != "CN" || name == "" || len(text) > maxCertificate {
			return Entry{}, fmt.Errorf("certificates[%d] is not URI:, DNS: or CN: and a name, of at most %d bytes together", i, maxCertificate)
		}
		if kind == "DNS" {
			text = kind + ":" + strings.ToLower(name)
		}
		e.certificates = append(e.certificates, text)
	}
	return e, nil
}

// Directory is the tenants of a pool, immutable. The nil Directory is empty.
type Directory struct {
	names map[string]*Entry
	keys  map[[sha256.Size]byte]*Entry
	// certificates are the tenants by the names of their certificates.
	certificates map[string]*Entry
}

// NewDirectory makes a directory. Of several entries with one name, key or certificate the first counts; conflicts lists the
// others, without their keys.
func NewDirectory(entries []Entry) (d *Directory, conflicts []string) {
	d = &Directory{names: make(map[string]*Entry, len(entries)), keys: make(map[[sha256.Size]byte]*Entry, len(entries)),
		certificates: map[string]*Entry{}}
	for i := range entries {
		e := &entries[i]
		if _, taken := d.names[e.Name]; taken {
			conflicts = append(conflicts, fmt.Sprintf("tenant %s is there twice", e.Name))
			continue
		}
		d.names[e.Name] = e
		for _, key := range e.keys {
			if other, taken := d.keys[key]; taken {
				conflicts = append(conflicts, fmt.Sprintf("tenants %s and %s have a key in common", other.Name, e.Name))
				continue
			}
			d.keys[key] = e
		}
		for _, name := range e.certificates {
			if other, taken := d.certificates[name]; taken {
				conflicts = append(conflicts, fmt.Sprintf("tenants %s and %s have a certificate in common", other.Name, e.Name))
				continue
			}
			d.certificates[name] = e
		}
	}
	sort.Strings(conflicts)
	return d, conflicts
}

// ByKey finds the tenant of an API key. The key is looked up by its hash, so the time it takes reveals nothing about other
// keys.
func (d *Directory) ByKey(key string) (*Entry, bool) {
	if d == nil || key == "" {
		return nil, false
	}
	e, ok := d.keys[sha256.Sum256([]byte(key))]
	return e, ok
}

// ByCertificate finds the tenant of a certificate, by the kind of its name and the name, such as DNS:client.example.com.
func (d *Directory) ByCertificate(name string) (*Entry, bool) {
	if d == nil || name == "" {
		return nil, false
	}
	e, ok := d.certificates[name]
	return e, ok
}

// ByName finds a tenant by name.
func (d *Directory) ByName(name string) (*Entry, bool) {
	if d == nil {
		return nil, false
	}
	e, ok := d.names[name]
	return e, ok
}

// Len is the number of tenants.
func (d *Directory) Len() int {
	if d == nil {
		return 0
	}
	return len(d.names)
}

// Bearer is the credential of an Authorization header of the Bearer scheme, empty without one.
func Bearer(authorization string) string {
	const scheme = "bearer "
	if len(authorization) < len(scheme) || !strings.EqualFold(authorization[:len(scheme)], scheme) {
		return ""
	}
	return strings.TrimSpace(authorization[len(scheme):])
}

// Issuer signs tokens that name tenants.
type Issuer struct {
	// URL is the issuer, as tokens name it. Audiences are those of tokens that are accepted: one of them is enough.
	URL       string
	Audiences []string
	// KeysURL is where its keys are; empty for what its OpenID configuration says.
	KeysURL string
	// Claim is the name of the claim whose value is the tenant.
	Claim string
	// Authorities are certificates in PEM that sign the issuer's own, besides those of the system; empty for none.
	Authorities string
}

// TokenChecker returns the tenant that a signed token names.
type TokenChecker interface {
	Tenant(token string) (name string, ok bool)
}
