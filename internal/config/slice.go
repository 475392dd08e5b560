package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Names of a slice's ports; those of rank r > 0 end in -r.
const (
	portHTTP   = "http"
	portEvents = "kv-events"
	portReplay = "kv-replay"
)

const (
	// Limits of the API server.
	maxSliceEndpoints = 1000
	maxSlicePorts     = 20_000
	maxAddresses      = 100
	// maxStartRank bounds global ranks.
	maxStartRank = 65_535
	// maxSocketPath is what the kernel takes.
	maxSocketPath = 107
)

// portName matches the names that mean something here. Other ports are ignored.
var portName = regexp.MustCompile(`^(http|kv-events|kv-replay)(-([1-9][0-9]?))?$`)

// validateSlice checks the used parts of a slice, as the API server does, except for two rules: loopback addresses are
// accepted (files are meant for engines on the same machine), and every endpoint must name its pod.
func validateSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validateMeta(&s.ObjectMeta)
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case "":
		errs = append(errs, field.Required(field.NewPath("addressType"), "IPv4 or IPv6"))
	default:
		errs = append(errs, field.NotSupported(field.NewPath("addressType"), s.AddressType,
			[]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}))
	}
	errs = append(errs, validateAnnotations(s)...)
	errs = append(errs, validatePorts(s.Ports)...)
	errs = append(errs, misspelledPorts(s.Ports)...)
	if len(s.Endpoints) > maxSliceEndpoints {
		return append(errs, field.TooMany(field.NewPath("endpoints"), len(s.Endpoints), maxSliceEndpoints))
	}
	pods := map[string]bool{}
	for i := range s.Endpoints {
		path := field.NewPath("endpoints").Index(i)
		wrong := validateEndpoint(&s.Endpoints[i], s.AddressType, path)
		errs = append(errs, wrong...)
		if len(wrong) > 0 {
			continue
		}
		if pod := podIdentity(s, &s.Endpoints[i]); pods[pod] {
			errs = append(errs, field.Duplicate(path.Child("targetRef"), pod))
		} else {
			pods[pod] = true
		}
	}
	return errs
}

func validateAnnotations(s *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("metadata", "annotations")
	if _, err := startRank(s); err != nil {
		errs = append(errs, field.Invalid(path.Key(v1alpha1.AnnotationStartRank), s.Annotations[v1alpha1.AnnotationStartRank], err.Error()))
	}
	if socket, ok := s.Annotations[v1alpha1.AnnotationHTTPSocket]; ok {
		if !filepath.IsAbs(socket) || len(socket) > maxSocketPath {
			errs = append(errs, field.Invalid(path.Key(v1alpha1.AnnotationHTTPSocket), socket,
				fmt.Sprintf("must be an absolute path of at most %d bytes", maxSocketPath)))
		}
		if len(s.Endpoints) > 1 {
			errs = append(errs, field.Invalid(field.NewPath("endpoints"), len(s.Endpoints),
				"a slice with annotation "+v1alpha1.AnnotationHTTPSocket+" has at most one endpoint"))
		}
	}
	return errs
}

// startRank is the global rank of the slice's first ranks.
func startRank(s *discoveryv1.EndpointSlice) (int, error) {
	text, ok := s.Annotations[v1alpha1.AnnotationStartRank]
	if !ok {
		return 0, nil
	}
	rank, err := strconv.Atoi(text)
	if err != nil || rank < 0 || rank > maxStartRank {
		return 0, fmt.Errorf("must be a number from 0 to %d", maxStartRank)
	}
	return rank, nil
}

// misspelledPorts refuses names that are nearly one that means something here: the port would be ignored, and another assumed.
// Names that begin with http stay free for other ports, such as https.
func misspelledPorts(ports []discoveryv1.EndpointPort) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		if p.Name == nil || portName.MatchString(*p.Name) || strings.HasPrefix(*p.Name, portHTTP) {
			continue
		}
		if meant := didYouMean(*p.Name, []string{portHTTP, portEvents, portReplay}); meant != "" {
			errs = append(errs, field.Invalid(field.NewPath("ports").Index(i).Child("name"), *p.Name,
				"ports of this name are not used"+meant))
		}
	}
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort) field.ErrorList {
	var errs field.ErrorList
	if len(ports) > maxSlicePorts {
		return append(errs, field.TooMany(field.NewPath("ports"), len(ports), maxSlicePorts))
	}
	seen := map[string]bool{}
	for i, p := range ports {
		path := field.NewPath("ports").Index(i)
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if seen[name] {
			errs = append(errs, field.Duplicate(path.Child("name"), name))
		}
		seen[name] = true
		if !portName.MatchString(name) {
			continue
		}
		if p.Port == nil {
			errs = append(errs, field.Required(path.Child("port"), "the port "+name+" needs a number"))
		} else if *p.Port < 1 || *p.Port > 65_535 {
			errs = append(errs, field.Invalid(path.Child("port"), *p.Port, "must be from 1 to 65535"))
		}
		if p.Protocol != nil && *p.Protocol != "TCP" {
			errs = append(errs, field.NotSupported(path.Child("protocol"), *p.Protocol, []string{"TCP"}))
		}
	}
	return errs
}

func validateEndpoint(e *discoveryv1.Endpoint, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(path.Child("addresses"), "at least one address"))
	case n > maxAddresses:
		errs = append(errs, field.TooMany(path.Child("addresses"), n, maxAddresses))
	default:
		for i, text := range e.Addresses {
			if message := wrongAddress(text, kind); message != "" {
				errs = append(errs, field.Invalid(path.Child("addresses").Index(i), text, message))
			}
		}
	}
	if e.TargetRef == nil || e.TargetRef.Name == "" {
		return append(errs, field.Required(path.Child("targetRef", "name"), "every endpoint names its pod: addresses are used again"))
	}
	if k := e.TargetRef.Kind; k != "" && k != "Pod" {
		errs = append(errs, field.NotSupported(path.Child("targetRef", "kind"), k, []string{"Pod"}))
	}
	return errs
}

// wrongAddress is what is wrong with an address, empty for nothing.
func wrongAddress(text string, kind discoveryv1.AddressType) string {
	ip, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return "must be an IP address"
	case kind == discoveryv1.AddressTypeIPv4 && !ip.Is4():
		return "must be an IPv4 address"
	case kind == discoveryv1.AddressTypeIPv6 && (!ip.Is6() || ip.Is4In6() || ip.Zone() != ""):
		return "must be an IPv6 address"
	case ip.IsUnspecified():
		return "must not be the unspecified address"
	case ip.IsMulticast():
		return "must not be a multicast address"
	case ip.IsLinkLocalUnicast():
		return "must not be a link-local address"
	}
	return ""
}
