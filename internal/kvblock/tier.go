package kvblock

// Tier is where a block lies. A lower tier is nearer to the engine.
type Tier uint8

// The tiers, fastest first.
const (
	GPU Tier = iota
	CPU
	Disk
	Remote
	NumTiers int = iota
)

// String is the name the API uses.
func (t Tier) String() string {
	switch t {
	case GPU:
		return "GPU"
	case CPU:
		return "CPU"
	case Disk:
		return "Disk"
	case Remote:
		return "Remote"
	}
	return "unknown"
}
