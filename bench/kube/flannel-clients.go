// flannel-clients.go - runs many of flannel's own Kubernetes subnet managers in one process, each with its own
// connection. The benchmark `kube` compares them with weft's.
//
// flannel-clients URL CA_FILE TOKEN_FILE NODES FROM COUNT creates COUNT subnet managers, of the nodes with the numbers
// from FROM, and prints `prepared`. The line `go` on stdin makes all of them start. When each of them has NODES leases
// and has reported its node, the program prints `started` and follows the nodes until stdin ends.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"k8s.io/klog/v2"
)

const netConf = `{"Network":"10.0.0.0/8","EnableIPv4":true,"Backend":{"Type":"vxlan"}}`

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "flannel-clients:", err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

// client is the subnet manager of one node.
type client struct {
	index      int
	kubeconfig string
	// gate is the path of a FIFO in place of the file with the network configuration. The subnet manager waits for the
	// configuration, so all subnet managers start when this program writes the configuration to all FIFOs.
	gate   string
	writer *os.File
}

// prepare begins to create the subnet manager, and returns when the subnet manager waits at its gate. Then the subnet
// manager has read the environment variable NODE_NAME.
func (c *client) prepare(nodes int, started *sync.WaitGroup) {
	os.Setenv("NODE_NAME", fmt.Sprintf("node-%05d", c.index))
	go c.run(nodes, started)
	writer, err := os.OpenFile(c.gate, os.O_WRONLY, 0)
	check(err)
	c.writer = writer
}

// run does what flanneld does at its start (main.go, pkg/backend/vxlan).
func (c *client) run(nodes int, started *sync.WaitGroup) {
	ctx := context.Background()
	manager, err := kube.NewSubnetManager(ctx, "", c.kubeconfig, "flannel.alpha.coreos.com", c.gate, true)
	check(err)
	manager.GetStoredPublicIP(ctx)
	manager.GetStoredMacAddresses(ctx)
	address, err := ip.ParseIP4(fmt.Sprintf("172.16.%d.%d", c.index>>8, c.index&255))
	check(err)
	data := fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, c.index>>8, c.index&255)
	attrs := lease.LeaseAttrs{PublicIP: address, BackendType: "vxlan", BackendData: data, BackendV6Data: json.RawMessage("null")}
	own, err := manager.AcquireLease(ctx, &attrs)
	check(err)
	check(manager.CompleteLease(ctx, own, &sync.WaitGroup{}))
	batches := make(chan []lease.LeaseWatchResult)
	go manager.WatchLeases(ctx, batches)
	known := map[string]bool{}
	for batch := range batches {
		for _, result := range batch {
			for _, event := range result.Events {
				known[event.Lease.Subnet.String()] = true
			}
		}
		if len(known) >= nodes && started != nil {
			started.Done()
			started = nil
		}
	}
}

func main() {
	flags := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(flags)
	check(flags.Set("logtostderr", "false"))
	klog.SetOutput(io.Discard) // flannel logs each lease
	if len(os.Args) != 7 {
		check(fmt.Errorf("the arguments are URL CA_FILE TOKEN_FILE NODES FROM COUNT"))
	}
	ca, err := os.ReadFile(os.Args[2])
	check(err)
	token, err := os.ReadFile(os.Args[3])
	check(err)
	nodes, from, count := number(os.Args[4]), number(os.Args[5]), number(os.Args[6])
	folder, err := os.MkdirTemp("", "weft-flannel-clients-")
	check(err)
	var started sync.WaitGroup
	clients := make([]*client, count)
	for at := range clients {
		// client-go shares the connection of clients with equal TLS options. flanneld processes share none, so the
		// authority of each client ends with another comment.
		own := base64.StdEncoding.EncodeToString(fmt.Appendf(ca, "# %d\n", at))
		config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",`+
			`"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority-data":%q}}],`+
			`"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`,
			os.Args[1], own, string(token))
		c := &client{
			index:      from + at,
			kubeconfig: filepath.Join(folder, fmt.Sprintf("kubeconfig-%d", at)),
			gate:       filepath.Join(folder, fmt.Sprintf("gate-%d", at)),
		}
		check(os.WriteFile(c.kubeconfig, []byte(config), 0o600))
		check(syscall.Mkfifo(c.gate, 0o600))
		started.Add(1)
		c.prepare(nodes, &started)
		clients[at] = c
	}
	fmt.Println("prepared")
	input := bufio.NewScanner(os.Stdin)
	input.Scan()
	for _, c := range clients {
		_, err := c.writer.WriteString(netConf)
		check(err)
		check(c.writer.Close())
	}
	check(os.RemoveAll(folder))
	started.Wait()
	fmt.Println("started")
	for input.Scan() {
	}
}
