// map.ts - draws the map of peers. Up to MOST_AROUND peers are arranged around this node. If there are more, they are
// arranged in rows, in the order of their subnets.

import { briefly } from '../status.ts'
import { byId, createList, h, setAttribute, setText, type Part } from './dom.ts'
import { bitRate, count, milliseconds } from './format.ts'
import type { History } from './history.ts'
import { around, countsOf, countsText, LOOKS, placesOf, type Peer, type Place } from './model.ts'

/** The maximum number of peers or groups that the map arranges in a circle around this node. */
const MOST_AROUND = 8
const SVG = 'http://www.w3.org/2000/svg'

/**
 * The actions when the user selects an item of the map: `open` shows the details of a peer; `list` shows the peers of a
 * larger subnet in the table of peers.
 */
interface MapActions {
  open(lease: string): void
  list(subnet: string): void
}

export class PeerMap {
  readonly #history: History
  readonly #actions: MapActions
  readonly #map = byId('map')
  readonly #lines: SVGSVGElement
  /** The list with the buttons of the map: one for each item, which is a peer or a group of peers. */
  readonly #field = byId('places')
  readonly #isWide = matchMedia('(min-width: 60rem)')
  readonly #showPlaces: (places: readonly Place[]) => void
  #places: readonly Place[] = []
  /** The index of the one map button that the Tab key reaches. The arrow keys move from this button to the others. */
  #chosen = 0

  constructor(history: History, actions: MapActions) {
    this.#history = history
    this.#actions = actions
    this.#lines = this.#map.querySelector('svg') ?? this.#map.appendChild(document.createElementNS(SVG, 'svg'))
    this.#field.addEventListener('focusin', ({ target }) =>
      this.#choose(this.#buttons().indexOf(target as HTMLButtonElement), false),
    )
    this.#field.addEventListener('keydown', (event) => this.#move(event))
    this.#showPlaces = createList<Place>(
      this.#field,
      ({ key }) => key,
      ({ key }) => this.#placeItem(key),
    )
    this.#isWide.addEventListener('change', () => this.#layOut())
  }

  show(peers: readonly Peer[], hostname: string, subnet: string): void {
    this.#places = placesOf(peers)
    setText(byId('hub-name'), hostname)
    setText(byId('hub-subnet'), subnet)
    setText(byId('map-sum'), peers.length === 0 ? 'no other nodes' : countsText(countsOf(peers)))
    this.#map.hidden = peers.length === 0
    byId('map-hint').hidden = peers.length < 2
    this.#layOut()
  }

  #buttons(): HTMLButtonElement[] {
    return [...this.#field.querySelectorAll('button')]
  }

  /** Makes the Tab key reach the button at index `at`, and focuses this button if `isFocused` is true. */
  #choose(at: number, isFocused: boolean): void {
    const all = this.#buttons()
    this.#chosen = Math.max(0, Math.min(at, all.length - 1))
    all.forEach((button, index) => setAttribute(button, 'tabindex', index === this.#chosen ? '0' : '-1'))
    if (isFocused) all[this.#chosen]?.focus()
  }

  /** Moves between the buttons of the map when an arrow key is pressed. */
  #move(event: KeyboardEvent): void {
    const all = this.#buttons()
    const top = all[0]?.offsetTop
    const inRow = this.#map.dataset['layout'] === 'field' ? all.filter(({ offsetTop }) => offsetTop === top).length : 1
    const steps: Readonly<Record<string, number>> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -inRow,
      ArrowDown: inRow,
      Home: -all.length,
      End: all.length,
    }
    const step = steps[event.key]
    if (step === undefined) return
    event.preventDefault()
    this.#choose(this.#chosen + step, true)
  }

  /** Creates the list element of an item of the map, which is a peer or a group of peers. */
  #placeItem(key: string): Part<Place> {
    const sign = h('span', { class: 'sign', 'aria-hidden': 'true' })
    const name = h('span', { class: 'name' })
    const where = h('span', { class: 'where' })
    const state = h('span', { class: 'state' })
    const more = h('span', { class: 'more' })
    const button = h('button', { type: 'button', tabindex: '-1' }, sign, name, where, state, more)
    const element = h('li', {}, button)
    let isGroup = false
    button.addEventListener('click', () => (isGroup ? this.#actions.list(key) : this.#actions.open(key)))
    return {
      element,
      show: (place, at) => {
        isGroup = place.isGroup
        setAttribute(button, 'data-condition', place.condition)
        setAttribute(button, 'aria-haspopup', isGroup ? 'false' : 'dialog')
        setText(sign, LOOKS[place.condition].sign)
        const [peer] = place.peers
        const host = isGroup ? null : (peer?.name ?? null)
        setText(name, host === null ? place.name : briefly(host))
        setText(where, host === null ? '' : (peer?.subnet ?? ''))
        setText(state, isGroup || !peer ? groupText(place) : stateText(peer))
        setText(more, isGroup || !peer ? '' : ratesText(peer, this.#history))
        if (this.#map.dataset['layout'] === 'star') {
          const { x, y } = around(at, this.#places.length)
          element.style.left = `${100 * x}%`
          element.style.top = `${100 * y}%`
        } else element.removeAttribute('style')
      },
    }
  }

  #showLines(): void {
    const lines = this.#lines
    const wanted = this.#map.dataset['layout'] === 'star' ? this.#places.length : 0
    while (lines.childElementCount > wanted) lines.lastElementChild?.remove()
    while (lines.childElementCount < wanted) lines.appendChild(document.createElementNS(SVG, 'line'))
    ;[...lines.children].forEach((line, at) => {
      const { x, y } = around(at, wanted)
      const place = this.#places[at]
      const ends = { x1: 50, y1: 50, x2: 100 * x, y2: 100 * y }
      for (const [name, value] of Object.entries(ends)) setAttribute(line, name, value.toFixed(2))
      const { tx = 0, rx = 0 } = this.#history.ratesOf(place?.key ?? '')
      setAttribute(line, 'data-condition', place?.condition ?? 'stored')
      // The more traffic with a peer, the wider is the line to the peer: its width grows by 0.6 for each factor of ten.
      setAttribute(line, 'stroke-width', (1.5 + Math.max(0, Math.log10((tx + rx) / 100 || 1)) * 0.6).toFixed(1))
      setAttribute(line, 'data-moves', String(place?.condition === 'answering' && tx + rx > 0))
    })
  }

  /** Arranges the items of the map around this node, or in rows if there are many items or the window is narrow. */
  #layOut(): void {
    const isStar = this.#isWide.matches && this.#places.length <= MOST_AROUND
    setAttribute(this.#map, 'data-layout', isStar ? 'star' : 'field')
    setAttribute(this.#map, 'data-few', String(this.#places.length <= 2))
    this.#showPlaces(this.#places)
    this.#showLines()
    this.#choose(this.#chosen, false)
  }
}

function groupText({ peers }: Place): string {
  const { answering, programmed } = countsOf(peers)
  const good = answering + programmed
  return good === peers.length ? count(good, 'peer') : `${good} of ${count(peers.length, 'peer')}`
}

function stateText({ condition, words, roundTripMs }: Peer): string {
  return condition === 'answering' && roundTripMs !== null ? `${words}, ${milliseconds(roundTripMs)}` : words
}

function ratesText({ lease }: Peer, history: History): string {
  const { tx, rx } = history.ratesOf(lease)
  return tx === undefined || rx === undefined || tx + rx < 1 ? '' : `↑ ${bitRate(tx)}\n↓ ${bitRate(rx)}`
}
