// test.mjs - `helm test` runs this program in a pod: it queries the health check of weftd on each node over the pod network, and prints a
// line for each node. It exits with 1 if a node does not answer.

import { readFileSync } from 'node:fs'

const ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount'
const ANSWER_MS = 10_000
/** The number of nodes that the program queries at the same time. */
const TOGETHER = 32
/** weft's device has an address of the node's subnet with these backends. The annotation of udp is empty. */
const HAVE_DEVICE = ['', 'udp', 'vxlan', 'ipip', 'wireguard']
const { KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, HEALTH_PORT, NODE_SELECTOR } = process.env
/** The labels of the nodes on which weft must run; null if only the scheduler knows these nodes. */
const selector = JSON.parse(NODE_SELECTOR)

const inUrl = (host) => (host.includes(':') ? `[${host}]` : host)
const reasonOf = (error) => error.cause?.code ?? error.cause?.message ?? error.message

/** Lists all Node objects, 500 at a time. */
async function listNodes() {
  const headers = { authorization: `Bearer ${readFileSync(`${ACCOUNT}/token`, 'utf8')}` }
  const server = `https://${inUrl(KUBERNETES_SERVICE_HOST)}:${KUBERNETES_SERVICE_PORT}`
  const nodes = []
  let next = ''
  do {
    const url = `${server}/api/v1/nodes?limit=500&continue=${encodeURIComponent(next)}`
    const answer = await fetch(url, { headers, signal: AbortSignal.timeout(6 * ANSWER_MS) })
    if (!answer.ok) throw new Error(`the API server answers ${answer.status}`)
    const { items, metadata } = await answer.json()
    nodes.push(...items)
    next = metadata.continue ?? ''
  } while (next !== '')
  return nodes
}

/** Returns the addresses in a subnet that weft's device and the bridge of the pods have. */
function addressesOf(podCIDR) {
  const [base] = podCIDR.split('/')
  if (base.includes(':')) return [base, base.endsWith('::') ? `${base}1` : base]
  const octets = base.split('.')
  return [base, [...octets.slice(0, 3), Number(octets[3]) + 1].join('.')]
}

/** Queries the health check at the first address that answers. Returns undefined if weftd is ready, else the reason. */
async function queryAny(addresses) {
  const query = async (address) => {
    const url = `http://${inUrl(address)}:${HEALTH_PORT}/readyz`
    const { status } = await fetch(url, { signal: AbortSignal.timeout(ANSWER_MS) }).catch((error) => {
      throw new Error(`no answer at ${url}: ${reasonOf(error)}`)
    })
    return status === 200 ? undefined : `weftd is not ready: ${url} answers ${status}`
  }
  return Promise.any(addresses.map(query)).catch(({ errors }) => errors.map(({ message }) => message).join('; '))
}

/** Returns the outcome for a node: `ok`, `skipped` or `failed`, and an explanation. */
async function check({ metadata, spec }) {
  const { labels = {}, annotations = {} } = metadata
  const annotation = (name) => Object.entries(annotations).find(([key]) => key.endsWith(`/${name}`))?.[1]
  if (labels['kubernetes.io/os'] !== 'linux') return ['skipped', 'not a Linux node']
  if (annotation('kube-subnet-manager') !== 'true') {
    const isWanted = selector !== null && Object.entries(selector).every(([name, value]) => labels[name] === value)
    return isWanted ? ['failed', 'no weftd has published the node'] : ['skipped', 'weft does not run on the node']
  }
  const podCIDRs = spec.podCIDRs ?? []
  const families = podCIDRs.filter((each) => process.env[each.includes(':') ? 'HAS_IPV6' : 'HAS_IPV4'] === 'true')
  const failures = await Promise.all(families.map((podCIDR) => queryAny(addressesOf(podCIDR))))
  const failed = failures.filter((each) => each !== undefined)
  if (failed.length === 0) return ['ok', `${families.join(', ')}: weftd is ready`]
  if (HAVE_DEVICE.includes(annotation('backend-type')) || failed.some((each) => each.includes('not ready')))
    return ['failed', failed.join('; ')]
  return ['skipped', `${failed.join('; ')}; with this backend only nodes with pods have an address of the pod network`]
}

const nodes = await listNodes().catch((error) => {
  console.log(`failed: this pod cannot list the nodes at the API server: ${reasonOf(error)}`)
  process.exit(1)
})
const count = { ok: 0, skipped: 0, failed: 0 }
const rest = [...nodes]
const work = async () => {
  for (let node = rest.shift(); node; node = rest.shift()) {
    const [outcome, why] = await check(node)
    count[outcome]++
    console.log(`${outcome}: ${node.metadata.name}: ${why}`)
  }
}
await Promise.all(Array.from({ length: TOGETHER }, work))
console.log(`${count.ok} ok, ${count.failed} failed, ${count.skipped} skipped`)
process.exit(count.failed === 0 && count.ok > 0 ? 0 : 1)
