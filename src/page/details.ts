// details.ts - all that is known of one peer, in a dialog that stays right while it is open.

import { publishers } from '../kinds.ts'
import { byId, createFacts, elementOf, setAttribute, setText } from './dom.ts'
import { bitRate, bytes, duration, milliseconds, or } from './format.ts'
import type { History } from './history.ts'
import { LOOKS, type Peer } from './model.ts'

const WAYS: Readonly<Record<NonNullable<Peer['way']>, string>> = {
  direct: 'a route to its host, without a tunnel',
  tunnel: 'the tunnel of weftd',
  kernel: 'a tunnel of the kernel',
}

export function createDetails(history: History) {
  const dialog = elementOf(HTMLDialogElement, 'details')
  const showFacts = createFacts(byId('details-facts'))
  let lease: string | undefined
  let peers: readonly Peer[] = []
  dialog.addEventListener('close', () => (lease = undefined))
  byId('details-close').addEventListener('click', () => dialog.close())
  // A click beside it closes it: the dialog's own box is filled by its content.
  dialog.addEventListener('click', ({ target }) => {
    if (target === dialog) dialog.close()
  })

  function show(): void {
    if (lease === undefined) return
    const peer = peers.find((each) => each.lease === lease)
    setAttribute(dialog, 'data-condition', peer?.condition ?? 'stored')
    setText(byId('details-sign'), peer ? LOOKS[peer.condition].sign : '–')
    setText(byId('details-title'), peer?.subnet ?? lease)
    setText(byId('details-state'), peer ? LOOKS[peer.condition].name : 'gone')
    setText(byId('details-means'), peer ? `: ${LOOKS[peer.condition].means}.` : ': this is no peer any more.')
    if (!peer) return
    const { tx, rx } = history.ratesOf(peer.lease)
    const traffic = (rate: number | undefined, all: number | null, packets: number | null): string =>
      all === null
        ? 'not counted'
        : `${or(rate, bitRate)}; ${bytes(all)}${packets === null ? '' : ` in ${packets.toLocaleString('en')} packets`}`
    showFacts([
      ['Public IP', peer.publicIp],
      ['Packets go to', or(peer.endpoint, String)],
      ['By way of', or(peer.way, (way) => WAYS[way])],
      ['Type', publishers(peer.type)],
      ['Round trip', or(peer.roundTripMs, milliseconds)],
      ['Loss of the last probes', or(peer.lossPercent, (lost) => `${lost}%`)],
      ['Probed', or(peer.probedSecondsAgo, (ago) => `${duration(ago)} ago`)],
      ['Last heard', or(peer.heardSecondsAgo, (ago) => `${duration(ago)} ago`)],
      ['Sent', traffic(tx, peer.txBytes, peer.txPackets)],
      ['Received', traffic(rx, peer.rxBytes, peer.rxPackets)],
      ['Known since', new Date(peer.since).toLocaleString()],
      ['Path MTU', or(peer.pathMtu, (mtu) => `${mtu} bytes`)],
      ['Lease', `${peer.lease}${peer.held ? ', kept though the store lacks it' : ''}`],
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
      dialog.showModal() // which gives the focus back to where it was when it is closed
    },
  }
}
