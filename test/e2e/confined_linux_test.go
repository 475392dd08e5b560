package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// confinedEnv makes the test's program run the one that it names, as a container with the security context of
// internal/operator/podtemplate does.
const confinedEnv = "KVASIR_TEST_CONFINED"

func init() {
	program := os.Getenv(confinedEnv)
	if program == "" {
		return
	}
	err := confine()
	if err == nil {
		err = syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// forbidden are system calls that the profile RuntimeDefault of container runtimes refuses. Here they end the process, so that a refusal
// cannot be overlooked.
var forbidden = []uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE,
	unix.SYS_FINIT_MODULE, unix.SYS_INIT_MODULE, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MBIND, unix.SYS_MOUNT, unix.SYS_MOVE_PAGES, unix.SYS_NFSSERVCTL,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIVOT_ROOT, unix.SYS_QUOTACTL, unix.SYS_REBOOT,
	unix.SYS_REQUEST_KEY, unix.SYS_SETNS, unix.SYS_SETTIMEOFDAY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_UMOUNT2, unix.SYS_UNSHARE,
	unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}

// confine makes the root read-only, in a mount namespace of its own, and takes all capabilities and the forbidden system calls from
// this thread and what it executes.
func confine() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts to this process: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("making the root read-only: %w", err)
	}
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0) // older kernels have fewer
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up privileges: %w", err)
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for _, call := range forbidden {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("filtering system calls: %w", err)
	}
	return nil
}

// TestAPickerServesConfined: with a read-only root, without capabilities, and without the system calls that RuntimeDefault refuses.
func TestAPickerServesConfined(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	namespace := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	probe := &exec.Cmd{Path: self, SysProcAttr: namespace, Env: append(os.Environ(), confinedEnv+"=/bin/true")}
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: a read-only root of its own needs root, and mounts that are not locked: %v %s", err, out)
	}
	f := newFleetWith(t, 1, vllmsim.Config{}, "RoundRobin", func(f *fleet) {
		f.args = []string{"--pprof"}
		f.confine = func(picker *exec.Cmd) {
			picker.Env = append(picker.Env, confinedEnv+"="+picker.Path)
			picker.Path, picker.SysProcAttr = self, namespace
		}
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.picker.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", f.picker.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the picker is not confined: no %q in\n%s", line, status)
		}
	}
	if root := mountOf(string(mounts), "/"); !strings.HasPrefix(root, "ro") {
		t.Errorf("the root is mounted %q", root)
	}
	for n := range 3 {
		if a := f.do("/v1/completions", completion([]int{n, 2, 3}, 1)); a.status != http.StatusOK {
			t.Errorf("request %d: status %d", n, a.status)
		}
	}
	for _, path := range []string{"/metrics", "/status", "/decisions", "/debug/pprof/heap"} {
		if code, body := f.get(f.metrics + path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// mountOf is the options of the mount at a path, empty if there is none.
func mountOf(mounts, path string) string {
	for line := range strings.Lines(mounts) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[4] == path {
			return fields[5]
		}
	}
	return ""
}
