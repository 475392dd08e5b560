package kube

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// familyVariable says what addresses a run of the tests has: IPv6 only, or both with IPv6 or IPv4 first. hack/test-ipv6.sh sets it.
const familyVariable = "KVASIR_TEST_FAMILY"

// Families of addresses.
const (
	IPv4     = "IPv4"
	IPv6     = "IPv6"
	IPv6IPv4 = "IPv6,IPv4"
	IPv4IPv6 = "IPv4,IPv6"
)

// Family of the control plane, its Services, and the pods of tests.
func Family() string {
	if family := os.Getenv(familyVariable); family != "" {
		return family
	}
	return IPv4
}

// Loopback is the address of this machine that the family of the run begins with.
func Loopback() string {
	if strings.HasPrefix(Family(), IPv6) {
		return net.IPv6loopback.String()
	}
	return "127.0.0.1"
}

// Address of a pod: 127.subnet.group.n, or fd00:6b76:1:subnet:1:1:group:n if the run begins with IPv6, which hack/test-ipv6.sh allows.
// It has no "::", because vLLM binds an endpoint that contains it.
func Address(subnet byte, group, n int) string {
	if strings.HasPrefix(Family(), IPv6) {
		return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x6b, 3: 0x76, 5: 1, 7: subnet, 9: 1, 11: 1, 13: byte(group), 15: byte(n)}).String()
	}
	return fmt.Sprintf("127.%d.%d.%d", subnet, group, n)
}

// The address that the API server publishes, by the first family: hack/test-ipv6.sh makes it, since a loopback address is refused.
const advertised6, advertised4 = "fd00:6b76::1", "192.0.2.10"

// ranges of Services, by family.
var ranges = map[string]string{
	IPv6: "fd00:10::/112", IPv6IPv4: "fd00:10::/112,10.0.0.0/24", IPv4IPv6: "10.0.0.0/24,fd00:10::/112",
}

// The API server's port is among these, so that it gets it again after a crash: the kernel gives ports above them to any connection.
const firstPort, ports = 20000, 10000

// addresses gives the API server its port, and the ranges of the family. Its own address and that of etcd are those of localhost.
func addresses(env *envtest.Environment) error {
	api := env.ControlPlane.GetAPIServer()
	host, err := net.ResolveTCPAddr("tcp", "localhost:0")
	if err != nil {
		return fmt.Errorf("looking for an address: %w", err)
	}
	for range 100 {
		host.Port = firstPort + rand.IntN(ports)
		l, err := net.ListenTCP("tcp", host)
		if err != nil {
			continue
		}
		_ = l.Close()
		api.Address, api.Port = host.IP.String(), strconv.Itoa(host.Port)
		break
	}
	family := Family()
	if family == IPv4 {
		return nil
	}
	api.Configure().Set("service-cluster-ip-range", ranges[family])
	if strings.HasPrefix(family, IPv6) {
		api.Configure().Set("advertise-address", advertised6)
	} else {
		api.Configure().Set("advertise-address", advertised4)
	}
	return nil
}
