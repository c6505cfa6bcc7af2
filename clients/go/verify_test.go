package dormouse

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestVerify(t *testing.T) {
	now := time.Unix(1_795_315_200, 0)
	key, other := []byte(strings.Repeat("k", 32)), []byte(strings.Repeat("o", 32))
	secret := func(key []byte) string { return "whsec_" + base64.StdEncoding.EncodeToString(key) }
	body := []byte{0, 0xff, '\n'}
	sign := func(key []byte, stamp string) string {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "job.%s.%s", stamp, body)
		return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	stamp := fmt.Sprint(now.Unix())
	for name, test := range map[string]struct {
		secrets   []string
		stamp     string
		signature string
		want      SignatureFault
	}{
		"right":               {[]string{secret(key)}, stamp, sign(key, stamp), ""},
		"without whsec_":      {[]string{secret(key)[6:]}, stamp, sign(key, stamp), ""},
		"the second secret":   {[]string{secret(other), secret(key)}, stamp, sign(key, stamp), ""},
		"the second of two":   {[]string{secret(key)}, stamp, sign(other, stamp) + " " + sign(key, stamp), ""},
		"beside other kinds":  {[]string{secret(key)}, stamp, "v1a,AAAA v2,x nonsense " + sign(key, stamp), ""},
		"another kind":        {[]string{secret(key)}, stamp, strings.Replace(sign(key, stamp), "v1,", "v2,", 1), SignatureWrong},
		"another key":         {[]string{secret(other)}, stamp, sign(key, stamp), SignatureWrong},
		"no base64":           {[]string{secret(key)}, stamp, "v1,*", SignatureWrong},
		"300 s old":           {[]string{secret(key)}, fmt.Sprint(now.Unix() - 300), sign(key, fmt.Sprint(now.Unix()-300)), ""},
		"301 s old":           {[]string{secret(key)}, fmt.Sprint(now.Unix() - 301), sign(key, fmt.Sprint(now.Unix()-301)), SignatureTimestamp},
		"301 s ahead":         {[]string{secret(key)}, fmt.Sprint(now.Unix() + 301), sign(key, fmt.Sprint(now.Unix()+301)), SignatureTimestamp},
		"a stamp with a sign": {[]string{secret(key)}, "+" + stamp, sign(key, "+"+stamp), SignatureTimestamp},
		"a stamp of words":    {[]string{secret(key)}, "now", sign(key, "now"), SignatureTimestamp},
		"a huge stamp":        {[]string{secret(key)}, strings.Repeat("9", 30), sign(key, stamp), SignatureTimestamp},
		"no stamp":            {[]string{secret(key)}, "", sign(key, stamp), SignatureMissing},
		"no signature":        {[]string{secret(key)}, stamp, "", SignatureMissing},
		"no secret":           {nil, stamp, sign(key, stamp), SignatureSecret},
		"a short secret":      {[]string{"whsec_c2hvcnQ="}, stamp, sign(key, stamp), SignatureSecret},
		"a secret of words":   {[]string{secret(key), "*"}, stamp, sign(key, stamp), SignatureSecret},
	} {
		for _, names := range [][3]string{
			{"webhook-id", "webhook-timestamp", "webhook-signature"}, {"Webhook-Id", "WEBHOOK-TIMESTAMP", "Webhook-Signature"},
		} {
			header := http.Header{}
			for i, value := range []string{"job", test.stamp, test.signature} {
				if value != "" {
					header[names[i]] = []string{value}
				}
			}
			err := VerifyAt(now, test.secrets, header, body)
			var fault *SignatureError
			if errors.As(err, &fault) != (test.want != "") || fault != nil && fault.What != test.want {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	header := http.Header{"Webhook-Id": {"job"}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {sign(key, stamp)}}
	if VerifyAt(now, []string{secret(key)}, header, body[:2]) == nil {
		t.Error("another body is taken")
	}
	var fault *SignatureError
	if err := Verify([]string{secret(key)}, header, body); !errors.As(err, &fault) || fault.What != SignatureTimestamp {
		t.Error(err) // Verify has the time of now
	}
}
