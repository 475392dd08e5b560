package resources

// PickerName names the pickers' Deployment, Service, ServiceAccount, Role and NetworkPolicy.
func PickerName(pool string) string { return pool + "-picker" }

// PeersName names the headless Service behind which each replica is found.
func PeersName(pool string) string { return pool + "-picker-peers" }

// KeyName names the Secret of the key root, where the pool names none.
func KeyName(pool string) string { return pool + "-key" }

// TLSName names the Secret of the pickers' certificate.
func TLSName(pool string) string { return pool + "-picker-tls" }

// CAName names the Secret of the pool's CA, and the ConfigMap of the certificates to trust.
func CAName(pool string) string { return pool + "-picker-ca" }

// GatewayTLSName names the Secret that cert-manager keeps.
func GatewayTLSName(pool string) string { return pool + "-gateway-tls" }

// Names are those of the objects of pickers.
type Names struct {
	// Pickers names their Deployment, Service, ServiceAccount, Role and RoleBinding; Guard their NetworkPolicy and budget.
	Pickers, Guard string
	// Peers names the headless Service behind which each replica is found.
	Peers string
	// TLS names the Secret of their certificate; CA that of its CA, and the ConfigMap of the certificates to trust.
	TLS, CA string
	// GatewayTLS names the Secret that cert-manager keeps.
	GatewayTLS string

	fleet bool
}

// NamesOf are the names of a pool's own pickers.
func NamesOf(pool string) Names {
	return Names{
		Pickers: PickerName(pool), Guard: PickerName(pool), Peers: PeersName(pool), TLS: TLSName(pool), CA: CAName(pool),
		GatewayTLS: GatewayTLSName(pool),
	}
}

// NamesOfFleet are the names of a fleet's pickers. None is that of an object of some pool of the namespace, whatever pools and
// fleets are called: no object of a pool has such an ending, and where a pool has an object of its own name, the object of
// that kind of a fleet has a dot, which the name of a pool cannot have. The exceptions are what gateways see of a fleet and of a pool that
// is called FLEET-fleet: gateways derive names of Services from it, which have no dots. The one that is there first keeps the name, and
// the other one's condition GatewayAccepted says NameTaken.
func NamesOfFleet(fleet string) Names {
	return Names{
		Pickers: fleet + "-fleet", Guard: fleet + ".fleet", Peers: fleet + "-fleet-peers", TLS: fleet + "-fleet-tls", CA: fleet + "-fleet-ca",
		GatewayTLS: fleet + "-fleet-gateway", fleet: true,
	}
}
