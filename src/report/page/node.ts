// node.ts - the sections of the page about this node: the verdict (one sentence on whether packets pass), the figures
// under the verdict, and the facts at the end of the page.

import { readingOf } from '../states.ts'
import { devicesText, knownWhole, type Status } from '../status.ts'
import { byId, createFacts, elementOf, setAttribute, setText } from './dom.ts'
import { bothOf, dayText, duration, milliseconds, or, percent } from './format.ts'
import { medianOf, verdictOf, type Peer } from './model.ts'

const SIGNS = { good: '✓', bad: '✕', doubtful: '…' } as const

export function createNodeView() {
  const showFacts = createFacts(byId('node-facts'))
  return {
    show(status: Status, peers: readonly Peer[]): void {
      const verdict = verdictOf(status)
      const { node, daemon, store, dataPath, config, lease } = status
      setAttribute(byId('verdict'), 'data-tone', verdict.tone)
      setText(byId('verdict-sign'), SIGNS[verdict.tone])
      setText(byId('verdict-title'), verdict.title)
      setText(byId('verdict-detail'), verdict.detail)
      const name = node?.hostname ?? 'this node'
      setText(byId('hostname'), name)
      setText(
        byId('subnet'),
        node
          ? `${bothOf(node.subnet, node.ipv6Subnet)} of ${bothOf(config?.network ?? '', config?.ipv6Network ?? null)}`
          : 'no lease yet',
      )
      document.title = `${SIGNS[verdict.tone]} ${name} – weft`
      showWhole(status)
      setText(byId('rtt'), or(medianOf(peers), milliseconds))
      setText(
        byId('compared'),
        or(store.comparedSecondsAgo, (ago) => `${duration(ago)} ago`),
      )
      const hung = dataPath?.threads.filter(({ hungSeconds }) => hungSeconds !== null) ?? []
      showFacts([
        ['State', `${readingOf(status).words}${status.trouble === null ? '' : `: ${status.trouble}`}`],
        ['Up for', duration((Date.parse(status.at) - Date.parse(daemon.startedAt)) / 1000)],
        ['weftd', `${daemon.version}, process ${daemon.pid}`],
        [
          'Public IP',
          node
            ? `${bothOf(node.publicIp, node.publicIpv6)}${node.externalInterface ? ` on ${node.externalInterface}` : ''}`
            : '–',
        ],
        [
          'Backend',
          or(config?.backendType, (type) => `${type}${dataPath?.device ? ` on ${devicesText(dataPath)}` : ''}`),
        ],
        ['Engine', or(dataPath?.engine, String)],
        ['MTU', or(dataPath?.mtu, (mtu) => `${mtu} bytes`)],
        ['Kernel features', dataPath?.features.join(', ') || '–'],
        [
          'Threads',
          dataPath && dataPath.threads.length > 0
            ? hung.length === 0
              ? `${dataPath.threads.length}, none hangs`
              : hung.map((thread) => `${thread.name} has hung for ${duration(thread.hungSeconds ?? 0)}`).join(', ')
            : '–',
        ],
        ['Store', `${store.name}, ${store.reachable ? 'reachable' : 'unreachable'}`],
        ['Leases in', daemon.leases || '–'],
        ['Lease ends', leaseEndText(lease, store.name)],
        ['subnet.env', `${daemon.subnetFile}${status.subnetFileWritten ? '' : ', not written'}`],
        ['Repairs', String(status.repairs)],
      ])
    },
  }
}

/** Describes when the lease ends. In Kubernetes a lease has no expiry time. */
function leaseEndText(lease: Status['lease'], store: string): string {
  if (!lease) return '–'
  if (lease.expiresAt !== null) return dayText(new Date(lease.expiresAt))
  return store === 'kubernetes' ? 'when the Node object is deleted' : 'never'
}

/** Shows the percentage of the network that this node reaches, as a ring and as a number inside the ring. */
function showWhole({ peers }: Status): void {
  const whole = peers ? knownWhole(peers) : undefined
  setText(byId('whole'), or(whole, percent))
  // The percentage counts all peers that short packets reach, so it can be high although long packets are lost and the
  // ring is red. In that case write under the percentage that it counts short packets.
  setText(byId('whole-of'), peers?.narrow ? 'reached by short packets' : 'reached')
  // A full ring has no dash pattern, because the pattern would show a seam.
  setAttribute(
    elementOf(SVGCircleElement, 'ring'),
    'stroke-dasharray',
    whole === 1 ? 'none' : `${100 * (whole ?? 0)} 100`,
  )
  const answering = peers?.answering ?? null
  setText(
    byId('answering'),
    peers ? `${(answering ?? peers.programmed).toLocaleString('en')} / ${peers.stored.toLocaleString('en')}` : '–',
  )
  setText(byId('answering-name'), answering === null ? 'peers programmed' : 'peers answer')
}
