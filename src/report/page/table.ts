// table.ts - the table of peers, with a search by text and condition. The page draws only fifty rows at a time, so ten
// thousand peers cost no more time than fifty.

import { titleOf, type Condition } from '../status.ts'
import { byId, createList, elementOf, h, setAttribute, setText } from './dom.ts'
import { bitRate, duration, milliseconds, or } from './format.ts'
import type { History } from './history.ts'
import { byNeed, LOOKS, matching, type Peer } from './model.ts'

const ON_A_PAGE = 50

export function createTable(history: History, open: (lease: string) => void) {
  const text = elementOf(HTMLInputElement, 'find')
  const condition = elementOf(HTMLSelectElement, 'find-condition')
  const [before, after] = [elementOf(HTMLButtonElement, 'page-before'), elementOf(HTMLButtonElement, 'page-after')]
  let peers: readonly Peer[] = []
  let page = 0

  const showRows = createList<Peer>(
    byId('peer-rows'),
    ({ lease }) => lease,
    ({ lease }) => {
      const button = h('button', { type: 'button', class: 'link', 'aria-haspopup': 'dialog' })
      button.addEventListener('click', () => open(lease))
      const sign = h('span', { class: 'sign', 'aria-hidden': 'true' })
      const word = h('span')
      const state = h('td', {}, h('span', { class: 'condition' }, sign, word))
      const cells = HEADS.map(([head, name]) => h('td', { class: head, 'data-name': name }))
      const element = h('tr', {}, h('th', { scope: 'row' }, button), state, ...cells)
      return {
        element,
        show(peer) {
          setText(button, titleOf(peer))
          setAttribute(element, 'data-condition', peer.condition)
          setText(sign, LOOKS[peer.condition].sign)
          setText(word, `${peer.words}${peer.held ? ', held' : ''}`)
          const { tx, rx } = history.ratesOf(peer.lease)
          const texts = [
            peer.endpoint ?? peer.publicIp,
            or(peer.roundTripMs, milliseconds),
            or(peer.lossPercent, (lost) => `${lost}%`),
            or(tx, bitRate),
            or(rx, bitRate),
            or(peer.heardSecondsAgo, (ago) => `${duration(ago)} ago`),
          ]
          texts.forEach((each, at) => {
            const cell = cells[at]
            if (cell) setText(cell, each)
          })
        },
      }
    },
  )

  function show(): void {
    const found = byNeed(matching(peers, text.value, condition.value as Condition | ''))
    const pages = Math.max(1, Math.ceil(found.length / ON_A_PAGE))
    page = Math.min(page, pages - 1)
    const first = page * ON_A_PAGE
    const shown = found.slice(first, first + ON_A_PAGE)
    showRows(shown)
    const number = (value: number): string => value.toLocaleString('en')
    const range = pages > 1 ? `${number(first + 1)} to ${number(first + shown.length)} of ${number(found.length)}` : ''
    const among = found.length < peers.length ? `${number(found.length)} of ${number(peers.length)} peers match` : ''
    setText(byId('found'), found.length === 0 ? 'no peer' : [range, among].filter(Boolean).join('; '))
    byId('pages').hidden = pages === 1
    // Set aria-disabled instead of `disabled`, because a disabled button would lose the keyboard focus.
    setAttribute(before, 'aria-disabled', String(page === 0))
    setAttribute(after, 'aria-disabled', String(page === pages - 1))
    byId('peer-tools').hidden = peers.length < 2
  }
  const turn = (by: number): void => {
    page = Math.max(0, page + by)
    show()
  }
  before.addEventListener('click', () => turn(-1))
  after.addEventListener('click', () => turn(1))
  const find = (): void => {
    page = 0
    show()
  }
  text.addEventListener('input', find)
  condition.addEventListener('change', find)

  return {
    show(all: readonly Peer[]): void {
      peers = all
      show()
    },
    /** Searches the table for the peers of a subnet, and scrolls to the table. */
    list(subnet: string): void {
      text.value = subnet
      condition.value = ''
      find()
      byId('peers').scrollIntoView()
      text.focus({ preventScroll: true })
    },
  }
}

/**
 * The table's columns from the third one on: the CSS class, and the name that a narrow screen shows next to each value.
 */
const HEADS = [
  ['at', 'to'],
  ['rtt', 'round trip'],
  ['loss', 'loss'],
  ['tx', 'out'],
  ['rx', 'in'],
  ['heard', 'heard'],
] as const
