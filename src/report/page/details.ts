// details.ts - a dialog with all facts about one peer. The facts are updated while the dialog is open.

import { publishers } from '../../path/catalog.ts'
import { titleOf } from '../status.ts'
import { byId, createFacts, elementOf, setAttribute, setText } from './dom.ts'
import { bitRate, bothOf, bytes, count, dayText, duration, or } from './format.ts'
import type { History } from './history.ts'
import { factsOf, LOOKS, type Peer } from './model.ts'

export function createDetails(history: History) {
  const dialog = elementOf(HTMLDialogElement, 'details')
  const showFacts = createFacts(byId('details-facts'))
  let lease: string | undefined
  let peers: readonly Peer[] = []
  dialog.addEventListener('close', () => (lease = undefined))
  byId('details-close').addEventListener('click', () => dialog.close())
  // Close the dialog on a click outside. The content covers the whole dialog, so the target of a click is the dialog
  // element itself only if the click is on the backdrop.
  dialog.addEventListener('click', ({ target }) => {
    if (target === dialog) dialog.close()
  })

  function show(): void {
    if (lease === undefined) return
    const peer = peers.find((each) => each.lease === lease)
    setAttribute(dialog, 'data-condition', peer?.condition ?? 'stored')
    setText(byId('details-sign'), peer ? LOOKS[peer.condition].sign : '–')
    setText(byId('details-title'), peer ? titleOf(peer) : lease)
    setText(byId('details-state'), peer?.words ?? 'gone')
    setText(byId('details-means'), peer ? `: ${LOOKS[peer.condition].means}.` : ': it is no longer a peer.')
    if (!peer) return
    const { tx, rx } = history.ratesOf(peer.lease)
    const traffic = (rate: number | undefined, all: number | null, packets: number | null): string =>
      all === null
        ? 'not counted'
        : `${or(rate, bitRate)}; ${bytes(all)}${packets === null ? '' : ` in ${count(packets, 'packet')}`}`
    showFacts([
      ['Name', peer.name ?? 'none; flanneld publishes no name'],
      ...(peer.ipv6Subnet === null || peer.ipv6Subnet === peer.subnet
        ? []
        : [['IPv6 subnet', peer.ipv6Subnet] as const]),
      ['Public IP', bothOf(peer.publicIp, peer.publicIpv6)],
      ...factsOf(peer),
      ...(peer.path === 'narrow' && peer.pathSince
        ? [['Long packets do not pass since', dayText(new Date(peer.pathSince))] as const]
        : []),
      ['Type', publishers(peer.type)],
      ['Last packet', or(peer.heardSecondsAgo, (ago) => `${duration(ago)} ago`)],
      ['Sent', traffic(tx, peer.txBytes, peer.txPackets)],
      ['Received', traffic(rx, peer.rxBytes, peer.rxPackets)],
      ['Known since', dayText(new Date(peer.since))],
      ['Lease', `${peer.lease}${peer.held ? ', kept although the store lacks it' : ''}`],
    ])
    setText(byId('details-command'), `weft ping ${peer.subnet}`)
  }

  return {
    show(all: readonly Peer[]): void {
      peers = all
      show()
    },
    open(key: string): void {
      lease = key
      show()
      dialog.showModal() // when the dialog closes, the browser restores the focus
    },
  }
}
