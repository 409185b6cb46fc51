// weft-clients.ts - runs many of weft's Kubernetes subnet managers in one process, each with its own connections. The
// benchmark `kube` compares them with flannel's.
//
// `weft-clients.js URL FOLDER NODES FROM COUNT` creates COUNT subnet managers, of the nodes with the numbers from FROM,
// and prints `prepared`. FOLDER has the files `token` and `ca.crt`, as in a pod. The line `go` on stdin makes all of
// them start. When each of them has NODES leases and has reported its node, the program prints `started` and follows
// the nodes until stdin ends.

import { setMaxListeners } from 'node:events'
import { createInterface } from 'node:readline'
import type { Log } from '../../src/base/log.ts'
import { Secret } from '../../src/base/secret.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { createKubeManager } from '../../src/control/kube/kube-manager.ts'
import { followLeases } from '../../src/control/lease/follow.ts'
import type { LeaseAttrs } from '../../src/control/lease/lease.ts'
import type { SubnetManager } from '../../src/control/lease/subnet-manager.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { attrsBefore, obtainLease, queryPatiently } from '../../src/node/loops/lease.ts'
import { backendDataOf, hostOf, nodeName, PREFIX } from './cluster-model.ts'

const [, , server = '', folder = '', ...numbers] = process.argv
const [nodes = 0, from = 0, count = 0] = numbers.map(Number)
if (!(nodes > 0 && count > 0)) throw new Error('the arguments are URL FOLDER NODES FROM COUNT')

const log: Log = {
  info: () => {},
  warn: (line) => void process.stderr.write(`${line}\n`),
  error: (line) => void process.stderr.write(`${line}\n`),
  v: () => false,
}
const { signal } = new AbortController()
setMaxListeners(0, signal) // all clients wait for this signal
const config = parseNetworkConfig('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}', { areGiven: true })

function managerOf(index: number): Promise<SubnetManager> {
  const { hostname, port } = new URL(server)
  return createKubeManager({
    apiUrl: new Secret(''),
    kubeconfig: '',
    serviceAccount: folder,
    environment: { NODE_NAME: nodeName(index), KUBERNETES_SERVICE_HOST: hostname, KUBERNETES_SERVICE_PORT: port },
    annotationPrefix: PREFIX,
    netConfigPath: '',
    setCondition: true,
    log,
    signal,
  })
}

/** Sends the requests that weftd sends at its start, and then follows the leases. Resolves when all leases are known. */
async function start(manager: SubnetManager, index: number): Promise<void> {
  const publicIp = { ipv4: parseIpv4(hostOf(index)), ipv6: undefined }
  await queryPatiently('public IP', async (stop) => manager.publicIp?.(stop), log, signal)
  await attrsBefore(manager, log)(publicIp, signal)
  await queryPatiently('public IP', async (stop) => manager.amend?.(publicIp, stop), log, signal)
  const attrs: LeaseAttrs = {
    publicIp,
    backendType: 'vxlan',
    backendData: backendDataOf(index),
    backendV6Data: undefined,
  }
  await obtainLease({ manager, config, isMine: async () => false, log, signal }, attrs, {}, false)
  await queryPatiently('node', async (stop) => manager.ready?.(stop), log, signal)
  await new Promise<void>((resolve, reject) => {
    const follow = async (): Promise<never> => {
      for await (const { leases } of followLeases(manager.source, { log, signal })) if (leases.size >= nodes) resolve()
      throw new Error('following the leases ended')
    }
    follow().catch(reject)
  })
}

const managers = await Promise.all(Array.from({ length: count }, (_, at) => managerOf(from + at)))
const input = createInterface({ input: process.stdin })
input.once('line', () => {
  void Promise.all(managers.map((manager, at) => start(manager, from + at))).then(() =>
    process.stdout.write('started\n'),
  )
})
input.once('close', () => process.exit())
process.stdout.write('prepared\n')
