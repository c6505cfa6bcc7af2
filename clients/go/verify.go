package dormouse

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// SignatureFault is the reason why a signed request was rejected.
type SignatureFault string

// Reasons to reject a signed request.
const (
	SignatureMissing   SignatureFault = "missing"   // a header is not there
	SignatureTimestamp SignatureFault = "timestamp" // invalid, or more than five minutes off
	SignatureWrong     SignatureFault = "signature" // not made with one of the secrets from this body
	SignatureSecret    SignatureFault = "secret"    // a secret is invalid: this program is misconfigured
)

// SignatureError is the error of [Verify].
type SignatureError struct {
	What SignatureFault
	Text string
}

func (e *SignatureError) Error() string { return "dormouse: " + e.Text }

// tolerance is the tolerated difference between the clocks of the server and of this machine.
const tolerance = 5 * time.Minute

// Verify checks whether the request with these headers and this body, byte for byte, was pushed by the server;
// otherwise it returns a [*SignatureError]. While two secrets sign, after a new one was made, pass both.
func Verify(secrets []string, header http.Header, body []byte) error {
	return VerifyAt(time.Now(), secrets, header, body)
}

// VerifyAt is [Verify] at another time.
func VerifyAt(now time.Time, secrets []string, header http.Header, body []byte) error {
	keys := make([][]byte, len(secrets))
	for i, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) < 24 || len(key) > 64 { // as in Standard Webhooks; the server's have 32
			return &SignatureError{SignatureSecret, "a secret should be whsec_ and 24 to 64 bytes in base64"}
		}
		keys[i] = key
	}
	if len(keys) == 0 {
		return &SignatureError{SignatureSecret, "no secret is given"}
	}
	found := map[string]string{}
	for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
		for given, values := range header {
			if strings.EqualFold(given, name) && len(values) > 0 {
				found[name] = values[0]
			}
		}
		if found[name] == "" {
			return &SignatureError{SignatureMissing, "the request has no header " + name}
		}
	}
	stamp := found["webhook-timestamp"]
	sent, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strings.Trim(stamp, "0123456789") != "" {
		return &SignatureError{SignatureTimestamp, "webhook-timestamp is no number of seconds"}
	}
	if age := now.Sub(time.Unix(sent, 0)); age > tolerance || age < -tolerance {
		return &SignatureError{SignatureTimestamp, "webhook-timestamp is more than five minutes away"}
	}
	ours := false
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(found["webhook-id"] + "." + stamp + "."))
		mac.Write(body)
		right := mac.Sum(nil)
		for _, signature := range strings.Fields(found["webhook-signature"]) {
			if !strings.HasPrefix(signature, "v1,") {
				continue
			}
			given, err := base64.StdEncoding.DecodeString(signature[len("v1,"):])
			ours = ours || err == nil && hmac.Equal(given, right)
		}
	}
	if !ours {
		return &SignatureError{SignatureWrong, "no signature of the request is right"}
	}
	return nil
}
