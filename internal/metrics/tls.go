package metrics

import "time"

// TLS is what is known of TLS for the proxy's clients.
type TLS struct {
	// Handshakes have succeeded, FailedHandshakes have not.
	Handshakes, FailedHandshakes uint64
	// NotAfter is when the certificate in use expires; zero without one.
	NotAfter time.Time
	// Failures counts the times that changed files could not be read; Failing: they cannot be now.
	Failures uint64
	Failing  bool
}

var tlsSeries = []series[TLS]{
	counter("kvasir_tls_handshakes_total", "TLS handshakes of the proxy's clients that succeeded.", nil,
		func(s *TLS) float64 { return float64(s.Handshakes) }),
	counter("kvasir_tls_handshake_failures_total", "TLS handshakes of the proxy's clients that failed.", nil,
		func(s *TLS) float64 { return float64(s.FailedHandshakes) }),
	gauge("kvasir_tls_certificate_expiry_timestamp_seconds", "Time when the certificate expires that the proxy shows to clients; 0 without one.", nil,
		func(s *TLS) float64 { return timestamp(s.NotAfter) }),
	counter("kvasir_tls_certificate_failures_total", "Times that the files of the proxy's certificate had changed and could not be read; the certificate before stays in use.", nil,
		func(s *TLS) float64 { return float64(s.Failures) }),
	gauge("kvasir_tls_certificate_failing", "1 while the files of the proxy's certificate cannot be read.", nil,
		func(s *TLS) float64 { return truth(s.Failing) }),
}
