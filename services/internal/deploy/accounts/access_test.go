package accounts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/millrace/millrace/proto/bus"
)

// authority signs certificates of a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue(name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue writes name.crt and name.key.
func (a *authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.next++
	template.SerialNumber, template.Subject = big.NewInt(a.next), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	write(a.t, a.file(name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(a.t, a.file(name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// serve starts a server and returns its URL.
func serve(t *testing.T, opts *server.Options) (addr string) {
	t.Helper()
	opts.Host, opts.Port, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	return ns.Addr().String()
}

// reach connects for a moment.
func reach(cfg bus.ConnConfig, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	conn.Close()
	return nil
}

// refusal is how long a connection that is refused is tried: it comes back
// again and again, as after an outage.
const refusal = time.Second

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	ours.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	ours.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	others.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	pair, err := tls.LoadX509KeyPair(ours.file("server.crt"), ours.file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	addr := serve(t, &server.Options{TLS: true, TLSVerify: true, TLSTimeout: 5, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}})
	good := bus.ConnConfig{URL: "tls://" + addr, CAFile: ours.file("ours.crt"), CertFile: ours.file("client.crt"), KeyFile: ours.file("client.key")}
	if err := reach(good, patience); err != nil {
		t.Errorf("with the right certificates: %v", err)
	}
	for what, change := range map[string]func(*bus.ConnConfig){
		"an authority that did not sign the server": func(c *bus.ConnConfig) { c.CAFile = others.file("others.crt") },
		"the authorities of the system":             func(c *bus.ConnConfig) { c.CAFile = "" },
		"no certificate":                            func(c *bus.ConnConfig) { c.CertFile, c.KeyFile = "", "" },
		"a certificate of another authority":        func(c *bus.ConnConfig) { c.CertFile, c.KeyFile = others.file("client.crt"), others.file("client.key") },
		"a file that is not there":                  func(c *bus.ConnConfig) { c.CAFile = ours.file("nothing") },
	} {
		cfg := good
		change(&cfg)
		if err := reach(cfg, refusal); err == nil {
			t.Errorf("with %s it connects", what)
		}
	}
	// Whoever asked for TLS must not be talked out of it.
	plain := serve(t, &server.Options{})
	cfg := good
	cfg.URL = "nats://" + plain
	if err := reach(cfg, refusal); err == nil {
		t.Error("a server without TLS is believed to be the right one")
	}
}

// TestCredentials connects to a server that knows users by what an operator has
// signed, as nsc makes it.
func TestCredentials(t *testing.T) {
	t.Parallel()
	operator, account, user := pairOf(t, nkeys.CreateOperator), pairOf(t, nkeys.CreateAccount), pairOf(t, nkeys.CreateUser)
	operatorJWT := signed(t, jwt.NewOperatorClaims(operator.public), operator)
	accountJWT := signed(t, jwt.NewAccountClaims(account.public), operator)
	userJWT := signed(t, jwt.NewUserClaims(user.public), account)
	trusted, err := jwt.DecodeOperatorClaims(operatorJWT)
	if err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(account.public, accountJWT); err != nil {
		t.Fatal(err)
	}
	addr := serve(t, &server.Options{TrustedOperators: []*jwt.OperatorClaims{trusted}, AccountResolver: resolver})
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(userJWT, seed)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "edge.creds")
	write(t, file, string(creds))
	if err := reach(bus.ConnConfig{URL: "nats://" + addr, CredsFile: file}, patience); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	if err := reach(bus.ConnConfig{URL: "nats://" + addr}, refusal); err == nil {
		t.Error("without credentials it connects")
	}
	stranger, err := jwt.FormatUserConfig(signed(t, jwt.NewUserClaims(user.public), pairOf(t, nkeys.CreateAccount)), seed)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(stranger))
	if err := reach(bus.ConnConfig{URL: "nats://" + addr, CredsFile: file}, refusal); err == nil {
		t.Error("with credentials of another account it connects")
	}
}

// pair is a key with its public part.
type pair struct {
	nkeys.KeyPair

	public string
}

func pairOf(t *testing.T, create func() (nkeys.KeyPair, error)) pair {
	t.Helper()
	key, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return pair{key, public}
}

func signed(t *testing.T, claims jwt.Claims, by pair) string {
	t.Helper()
	token, err := claims.Encode(by)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(token, ".") != 2 {
		t.Fatalf("%q is no token", token)
	}
	return token
}
