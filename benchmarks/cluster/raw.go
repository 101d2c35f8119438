// Binding POSTs and nothing else, with Go's own HTTP/2 client: what a client in Go could reach.
//
//	raw HOST:PORT CA CERTIFICATE KEY FILE IN_FLIGHT
//
// FILE has a request a line: path, tab, body (raw_process.py writes it).
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(authority, certificate, key string) *http.Client {
	pem, err := os.ReadFile(authority)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	pair, err := tls.LoadX509KeyPair(certificate, key)
	check(err)
	settings := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true}}
}

func post(http *http.Client, url, body string) error {
	answer, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err = io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode != 201 {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return err
}

func main() {
	where, http := os.Args[1], client(os.Args[2], os.Args[3], os.Args[4])
	file, err := os.Open(os.Args[5])
	check(err)
	inFlight, err := strconv.Atoi(os.Args[6])
	check(err)
	var lines []string
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	fmt.Println("ready")
	queue := make(chan string, len(lines))
	for _, line := range lines {
		queue <- line
	}
	close(queue)
	var workers sync.WaitGroup
	for range inFlight {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for line := range queue {
				path, body, _ := strings.Cut(line, "\t")
				check(post(http, "https://"+where+path, body))
			}
		}()
	}
	workers.Wait()
}
