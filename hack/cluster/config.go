//go:build linux

package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

// addons of the cluster: CoreDNS, and the rights of kube-proxy.
//
//go:embed addons.yaml
var addons string

const containerdConfig = `version = 3
root = "%[1]s/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "%[2]s"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/%[3]s"
[plugins."io.containerd.cri.v1.runtime"]
  # Where root may not make processes less likely to be killed, it need not.
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["%[4]s"]
  conf_dir = "%[1]s/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
`

// Each pod has a link of its own to the node, so that all its packets are routed and seen by the node's rules.
const cniConfig = `{"cniVersion": "1.0.0", "name": "kvasir", "plugins": [{"type": "ptp", "ipMasq": false,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "%[1]s/ca.crt"}}
authorization: {mode: Webhook}
tlsCertFile: "%[1]s/%[2]s-serving.crt"
tlsPrivateKeyFile: "%[1]s/%[2]s-serving.key"
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: "%[3]s/plugins"
cgroupDriver: cgroupfs
cgroupRoot: /%[4]s/%[2]s
failCgroupV1: false
failSwapOn: false
clusterDNS: [%[5]s]
clusterDomain: cluster.local
resolvConf: "%[3]s/resolv.conf"
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {imagefs.available: "1%%", nodefs.available: "1%%", memory.available: "50Mi"}
nodeStatusUpdateFrequency: 2s
syncFrequency: 5s
registerNode: true
`

// writeConfig writes the files of a node's programs.
func (c *cluster) writeConfig(n nodeSpec) error {
	dir := c.file(n.name)
	for _, d := range []string{"log", "cni", "plugins", "kubelet"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil { // kubelets want it so
			return fmt.Errorf("making a directory of %s: %w", n.name, err)
		}
	}
	for name, content := range map[string]string{
		"containerd.toml":     fmt.Sprintf(containerdConfig, dir, c.snapshotter(), pauseImage, c.programs),
		"cni/kvasir.conflist": fmt.Sprintf(cniConfig, n.pods),
		"kubelet.yaml":        fmt.Sprintf(kubeletConfig, c.file("pki"), n.name, dir, group, dnsService),
		"resolv.conf":         "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("writing %s of %s: %w", name, n.name, err)
		}
	}
	return nil
}

// nodePrograms are what runs on a node: on the first the control plane too.
func (c *cluster) nodePrograms(n nodeSpec) []program {
	pki := func(name string) string { return c.file("pki", name) }
	kube := func(name string) string { return filepath.Join(c.kube, name) }
	dir := c.file(n.name)
	programs := []program{
		{"containerd", []string{filepath.Join(c.programs, "containerd"), "--config", filepath.Join(dir, "containerd.toml")}},
		{"kubelet", []string{kube("kubelet"), "--config=" + filepath.Join(dir, "kubelet.yaml"), "--kubeconfig=" + pki(n.name+".kubeconfig"),
			"--hostname-override=" + n.name, "--node-ip=" + n.address, "--root-dir=" + filepath.Join(dir, "kubelet"), "-v=2"}},
		{"kube-proxy", []string{kube("kube-proxy"), "--kubeconfig=" + pki("proxy.kubeconfig"), "--hostname-override=" + n.name,
			"--proxy-mode=nftables",
			"--cluster-cidr=" + pods, "--conntrack-max-per-core=0",
			"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"}},
	}
	if n.name != nodes[0].name {
		return programs
	}
	controller := func(name string, args ...string) program {
		config := pki(name + ".kubeconfig")
		return program{"kube-" + name, append([]string{kube("kube-" + name), "--kubeconfig=" + config, "--authentication-kubeconfig=" + config,
			"--authorization-kubeconfig=" + config, "--leader-elect=false"}, args...)}
	}
	return append([]program{
		{"etcd", []string{kube("etcd"), "--data-dir=" + c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380",
			"--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380"}},
		{"kube-apiserver", []string{kube("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--advertise-address=" + n.address,
			"--bind-address=0.0.0.0", "--secure-port=6443",
			"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--client-ca-file=" + pki("ca.crt"), "--kubelet-client-certificate=" + pki("apiserver-kubelet.crt"),
			"--kubelet-client-key=" + pki("apiserver-kubelet.key"), "--kubelet-certificate-authority=" + pki("ca.crt"),
			"--kubelet-preferred-address-types=InternalIP", "--service-account-key-file=" + pki("sa.pub"),
			"--service-account-signing-key-file=" + pki("sa.key"), "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-cluster-ip-range=" + services, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--profiling=false"}},
		controller("controller-manager", "--service-account-private-key-file="+pki("sa.key"), "--root-ca-file="+pki("ca.crt"),
			"--use-service-account-credentials=true", "--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"),
			"--allocate-node-cidrs=false", "--node-monitor-grace-period=20s"),
		controller("scheduler"),
	}, programs...)
}
